"""Optimisers that are compared on the frozen tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from mirrordescent import optim
from mirrordescent.recipes.general_tasks import GeneralTask
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import Make
from mirrordescent_experiments.contestants import (
    ADAMW,
    MUON,
    ONCE,
    Setting,
    Shape,
    TunableOptimiser,
    grid,
)

WARMUP = 0.05
"""Share of the steps over which learning rates of rivals rise."""

OLDER = f"{ENTRY}@3"
"""The version that the entry is compared with."""


def warmed_cosine(optimiser: Optimizer, steps: int) -> LRScheduler:
    """Return a scheduler that rises over the first twentieth and falls like a cosine to 0."""
    rise = max(1, round(WARMUP * steps))

    def factor(k: int) -> float:
        if k < rise:
            return (k + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (k - rise) / max(1, steps - rise)))

    return LambdaLR(optimiser, factor)


def adamw(lr: float, shape: Shape) -> Make:
    """AdamW with torch's default decay and moments."""

    def make(model: nn.Module, steps: int) -> tuple[Optimizer, LRScheduler]:
        optimiser = torch.optim.AdamW(model.parameters(), lr, fused=True)
        return optimiser, warmed_cosine(optimiser, steps)

    return make


class MuonOnMatrices(Optimizer):
    """``torch.optim.Muon`` on all inner matrices, and AdamW with a third of its rate on the rest.

    Embeddings, output layers (called ``head``), tokens and positions are left to AdamW.
    Convolutions are flattened, and stacks of matrices are divided into matrices.
    """

    def __init__(self, model: nn.Module, lr: float) -> None:
        embeddings = {
            id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)
        }
        named = dict(model.named_parameters())
        super().__init__(named.values(), {"lr": lr})
        self.pairs: list[tuple[Tensor, list[Tensor]]] = []
        rest = []
        for name, p in named.items():
            if p.ndim < 2 or id(p) in embeddings or name.startswith(("head", "cls_", "pos_")):
                rest.append(p)
                continue
            parts = list(p.detach()) if p.ndim == 3 else [p.detach().flatten(1)]
            self.pairs.append((p, [nn.Parameter(part) for part in parts]))
        matrices = [part for _, parts in self.pairs for part in parts]
        self.inner: list[tuple[Any, float]] = [(torch.optim.AdamW(rest, lr, fused=True), 1 / 3)]
        if matrices:
            muon = torch.optim.Muon(matrices, lr, adjust_lr_fn="match_rms_adamw")
            self.inner.append((muon, 1.0))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step with both."""
        for p, parts in self.pairs:
            if p.grad is None:
                continue
            gradients = list(p.grad) if p.ndim == 3 else [p.grad.flatten(1)]
            for part, gradient in zip(parts, gradients, strict=True):
                part.grad = gradient
        for inner, share in self.inner:
            inner.param_groups[0]["lr"] = share * self.param_groups[0]["lr"]
            inner.step()


def muon(lr: float, shape: Shape) -> Make:
    """Muon with AdamW."""

    def make(model: nn.Module, steps: int) -> tuple[Optimizer, LRScheduler]:
        optimiser = MuonOnMatrices(model, lr)
        return optimiser, warmed_cosine(optimiser, steps)

    return make


def entry(lr: float, shape: Shape) -> Make:
    """The entry without tuning, as a user runs it."""

    def make(model: nn.Module, steps: int) -> tuple[Optimizer, None]:
        return optim.SpectralDescent(model, lr, steps=steps), None

    return make


def older_entry(lr: float, shape: Shape) -> Make:
    """The version before it, in the same optimiser."""

    def make(model: nn.Module, steps: int) -> tuple[Optimizer, None]:
        return optim.SpectralDescent(model, lr, OLDER, steps=steps), None

    return make


def entry_of_unknown_length(lr: float, shape: Shape) -> Make:
    """The entry without the number of steps; averaged weights are judged."""

    def make(model: nn.Module, steps: int) -> tuple[Optimizer, None]:
        return optim.SpectralDescent(model, lr), None

    return make


OURS = TunableOptimiser(ENTRY, entry, ONCE, of_entry=True)
UNKNOWN_LENGTH = TunableOptimiser(
    f"{ENTRY} without steps", entry_of_unknown_length, ONCE, of_entry=True
)
OLD = TunableOptimiser(OLDER, older_entry, ONCE)
RIVALS = (
    TunableOptimiser(ADAMW, adamw, grid((1e-3, 3e-3, 1e-2), ("cosine",))),
    TunableOptimiser(MUON, muon, grid((3e-3, 1e-2, 3e-2), ("cosine",))),
)
FINE_TUNING = grid((5e-5, 1.5e-4, 4.5e-4), ("cosine",))
"""Learning rates of AdamW to begin with, for trained weights."""


WITHOUT_MUON = ("fine-tuning of MiniLM", "skip-gram embeddings")


def settings_on(task: GeneralTask, rival: TunableOptimiser) -> Sequence[Setting]:
    """Return the learning rates of a rival to begin with; best ones at an end extend them."""
    return FINE_TUNING if task.name == "fine-tuning of MiniLM" else rival.settings


def takes_part(task: GeneralTask, rival: TunableOptimiser) -> bool:
    """Return whether a rival is run.

    Muon is not run where its matrices take minutes a run, and where there are no matrices inside
    the network, so that it is AdamW.
    """
    return not (rival.name == MUON and task.name in WITHOUT_MUON)
