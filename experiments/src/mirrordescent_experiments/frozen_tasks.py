"""The entry for networks, untuned, on tasks that were fixed before it was learned."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from mirrordescent import optim, zoo
from mirrordescent._internal import cache
from mirrordescent.mirrors import roles_of
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
from mirrordescent_experiments.frozen import EXPENSIVE, FROZEN
from mirrordescent_experiments.intervals import student
from mirrordescent_experiments.ledger import TEST_SEED, TUNING_SEED, Ledger, best_of, number
from mirrordescent_experiments.result import Claim, Result, Table
from mirrordescent_experiments.scales import Say, Scale

WARMUP = 0.05
SEEDS: dict[Scale, int] = {"quick": 2, "standard": 2, "paper": 5}
MARGIN = 1.03
"""Largest ratio to AdamW's loss that an interval may lie wholly above."""
FACTORS = {False: 1.2, True: 3.0}
"""Largest ratio to the best rival's loss, for ordinary losses and for those over decades."""


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
    """The entry without tuning."""

    def make(model: nn.Module, steps: int) -> tuple[Optimizer, None]:
        optimiser = optim.Preconditioned(
            model.named_parameters(), lr, ENTRY, steps=steps, roles=roles_of(model)
        )
        return optimiser, None

    return make


OURS = TunableOptimiser(ENTRY, entry, ONCE, of_entry=True)
RIVALS = (
    TunableOptimiser(ADAMW, adamw, grid((1e-3, 3e-3, 1e-2), ("cosine",))),
    TunableOptimiser(MUON, muon, grid((3e-3, 1e-2, 3e-2), ("cosine",))),
)
FINE_TUNING = grid((5e-5, 1.5e-4, 4.5e-4), ("cosine",))
"""Learning rates of AdamW to begin with, for trained weights."""


def settings_on(task: GeneralTask, rival: TunableOptimiser) -> Sequence[Setting]:
    """Return the learning rates of a rival to begin with; best ones at an end extend them."""
    return FINE_TUNING if task.name == "fine-tuning of MiniLM" else rival.settings


def takes_part(task: GeneralTask, rival: TunableOptimiser) -> bool:
    """Return whether a rival is run: Muon is not, where its matrices take minutes a run."""
    return not (rival.name == MUON and task.name == "fine-tuning of MiniLM")


class Comparison:
    """Runs of the entry and of tuned rivals on tasks, seed by seed.

    Args:
        ledger: Runs made before.
        tasks: Tasks.
    """

    def __init__(self, ledger: Ledger, tasks: Sequence[GeneralTask]) -> None:
        self.ledger = ledger
        self.tasks = tasks

    def tuned(self, task: GeneralTask, rival: TunableOptimiser) -> Setting:
        """Return the setting of a rival with the least held-out loss on a network for tuning."""
        return best_of(
            settings_on(task, rival),
            lambda setting: number(self.ledger.run(task, rival, setting, TUNING_SEED).test_loss),
        )

    def tune(self) -> None:
        """Tune all rivals on all tasks, the cheap ones first."""
        for task in sorted(self.tasks, key=lambda each: each.name in EXPENSIVE):
            for rival in RIVALS:
                if takes_part(task, rival):
                    self.tuned(task, rival)

    def rivals(self, seeds: int) -> None:
        """Run all tuned rivals."""
        for seed in range(seeds):
            for task in self.tasks:
                for rival in RIVALS:
                    if takes_part(task, rival):
                        self.loss(task, rival, seed)

    def ours(self, seeds: int) -> None:
        """Run the entry."""
        for seed in range(seeds):
            for task in self.tasks:
                self.loss(task, OURS, seed)

    def loss(self, task: GeneralTask, contestant: TunableOptimiser, seed: int) -> float:
        """Return the held-out loss of one run."""
        setting = contestant.settings[0] if contestant is OURS else self.tuned(task, contestant)
        return number(self.ledger.run(task, contestant, setting, TEST_SEED + seed).test_loss)

    def losses(
        self, task: GeneralTask, contestant: TunableOptimiser, seeds: int
    ) -> list[float] | None:
        """Return the held-out losses of some runs, or None for a rival that takes no part."""
        if not takes_part(task, contestant):
            return None
        return [self.loss(task, contestant, seed) for seed in range(seeds)]


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Tune the rivals, run everybody seed by seed, and judge."""
    tasks: Sequence[GeneralTask] = FROZEN
    if scale == "quick":
        names = ("physics residual", "Poisson equation")
        tasks = [replace(task, steps=4) for task in FROZEN if task.name in names]
    path = None if scale == "quick" else ledger_path()
    comparison = Comparison(Ledger(path, directory, say), tasks)
    seeds = SEEDS[scale]
    comparison.tune()
    comparison.rivals(seeds)
    comparison.ours(seeds)
    result = Result(
        "frozen-tasks",
        "Tasks that were fixed before learning",
        {
            "scale": scale,
            "seeds": seeds,
            "entry": zoo.versioned(ENTRY),
            "rivals": (
                "cosine with 5 % warm-up; at least three learning rates, extended by factors of 3 "
                "while the best is at an end; chosen by held-out loss on a network for tuning"
            ),
        },
    )
    judge(result, comparison, seeds)
    if scale == "quick":
        result.claims = []
    return result


def ledger_path() -> Path:
    """Return the file of runs."""
    return cache.directory() / "frozen-tasks-v1.json"


def judge(result: Result, comparison: Comparison, seeds: int) -> None:
    """Add the table of held-out losses and the claims."""
    rows: list[tuple[str, ...]] = []
    behind: list[str] = []
    far: list[str] = []
    ahead = {rival.name: 0 for rival in RIVALS}
    counts = {rival.name: 0 for rival in RIVALS}
    for task in comparison.tasks:
        ours = comparison.losses(task, OURS, seeds)
        assert ours is not None
        cells = [spread(ours)]
        best = math.inf
        for rival in RIVALS:
            theirs = comparison.losses(task, rival, seeds)
            if theirs is None:
                cells += ["–", "–"]
                continue
            ratios = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
            low, high = interval(ratios)
            mean = statistics.mean(ratios)
            best = min(best, statistics.mean(theirs))
            counts[rival.name] += 1
            ahead[rival.name] += mean <= 0
            cells += [
                spread(theirs),
                f"{math.exp(mean):.3g} [{math.exp(low):.3g}, {math.exp(high):.3g}]",
            ]
            if rival.name == ADAMW and low > math.log(MARGIN):
                behind.append(f"{task.name} ×{math.exp(mean):.3g}")
        if statistics.mean(ours) > FACTORS[task.decades] * best:
            far.append(f"{task.name} ×{statistics.mean(ours) / best:.3g}")
        rows.append((task.name, *cells))
    header = ["task", ENTRY]
    for rival in RIVALS:
        header += [rival.name, "ratio of losses"]
    result.tables["Held-out loss, mean ± standard error, and geometric mean of ratios"] = Table(
        tuple(header), rows
    )
    result.claims.append(
        Claim(
            f"on no task does the 95 % interval lie wholly above {MARGIN:g} times tuned AdamW's "
            f"loss",
            not behind,
            ", ".join(behind) or "on none",
        )
    )
    for name, share in ((ADAMW, 3 / 4), (MUON, 2 / 3)):
        wanted = math.ceil(share * counts[name])
        result.claims.append(
            Claim(
                f"ahead of tuned {name} on at least {wanted} of {counts[name]} tasks",
                ahead[name] >= wanted,
                f"on {ahead[name]}",
            )
        )
    result.claims.append(
        Claim(
            "nowhere more than 1.2 times the best rival's loss, or 3 times where losses span "
            "decades",
            not far,
            ", ".join(far) or "nowhere",
        )
    )


def spread(losses: Sequence[float]) -> str:
    """Return a mean with its standard error."""
    mean = statistics.mean(losses)
    if len(losses) < 2:
        return f"{mean:.4g}"
    return f"{mean:.4g} ± {statistics.stdev(losses) / len(losses) ** 0.5:.2g}"


def interval(logs: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean."""
    if len(logs) < 2:
        return -math.inf, math.inf
    mean = statistics.mean(logs)
    half = student(len(logs) - 1, 0.95) * statistics.stdev(logs) / math.sqrt(len(logs))
    return mean - half, mean + half
