"""Optimisers that train networks, and the settings over which they are tuned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from mirrordescent import optim
from mirrordescent.mirrors import Euclidean, MirrorMap, SpectralPower, roles_of, spectral_by_kind
from mirrordescent.mirrors.by_kind import KINDS
from mirrordescent.mirrors.roles import LayerKind
from mirrordescent.recipes.training_tasks import Make, optimiser_of

Shape: TypeAlias = Literal["constant", "cosine", "linear"]
Setting: TypeAlias = tuple[float, Shape] | tuple[float, Shape, float]
"""A learning rate, the shape of its schedule, and what else an optimiser may be tuned over."""
SHAPES: tuple[Shape, ...] = ("constant", "cosine", "linear")
FALLING: tuple[Shape, ...] = ("cosine", "linear")
BETAS = (0.999, 0.95)  # β₂ of AdamW
ADAMW = "AdamW"
MUON = "Muon with AdamW"
SGD = "SGD with momentum"
HAND = "set by hand"
CONTROL = "the identity in its place"
ONCE: list[Setting] = [(1.0, "constant")]  # of what is not tuned
MULTIPLES: list[Setting] = [
    (c, "constant") for c in (0.5, 1.0, 2.0, 4.0)
]  # of the control's own steps
HAND_SETTINGS: list[Setting] = [(rate, "linear") for rate in (2.5e-3, 5e-3, 1e-2)]
ADAMW_SHARE = 1 / 3  # of Muon's learning rate
MATRICES: tuple[LayerKind, ...] = ("input", "hidden", "conv")


@dataclass(frozen=True)
class TunableOptimiser:
    """An optimiser with a free learning rate and schedule, and the settings to try.

    Those that are ``judged`` are run as often as claims about them need; those ``of_entry`` change
    when it is learned anew.
    """

    name: str
    make: Callable[..., Make]
    settings: Sequence[Setting]
    judged: bool = True
    of_entry: bool = False


def scheduled(optimiser: Optimizer, shape: Shape, steps: int) -> LRScheduler:
    """Return a scheduler that keeps the learning rate, or lets it fall to 0 over the run."""
    falls: dict[Shape, Callable[[int], float]] = {
        "constant": lambda k: 1.0,
        "cosine": lambda k: 0.5 * (1 + math.cos(math.pi * k / steps)),
        "linear": lambda k: 1 - k / steps,
    }
    return LambdaLR(optimiser, falls[shape])


def adamw(lr: float, shape: Shape, beta: float = 0.999) -> Make:
    """AdamW without decay; β₂ may be tuned."""

    def make(model: nn.Module, steps: int) -> tuple[Optimizer, LRScheduler]:
        optimiser = torch.optim.AdamW(
            model.parameters(), lr, betas=(0.9, beta), weight_decay=0.0, fused=True
        )
        return optimiser, scheduled(optimiser, shape, steps)

    return make


def sgd(lr: float, shape: Shape) -> Make:
    """Stochastic gradient descent with Nesterov's momentum 0.9."""

    def make(model: nn.Module, steps: int) -> tuple[Optimizer, LRScheduler]:
        optimiser = torch.optim.SGD(model.parameters(), lr, momentum=0.9, nesterov=True)
        return optimiser, scheduled(optimiser, shape, steps)

    return make


class MuonWithAdamW(Optimizer):
    """``torch.optim.Muon`` for inner matrices and AdamW for the rest, as Muon's documentation says.

    Muon refuses tensors that are not matrices: it is given convolutions flattened to (outputs, all
    inputs), which share memory with the layers. Its steps are scaled like those of AdamW, times
    0.2, so that one learning rate serves both; AdamW gets a third of it, with which both are near
    their best.
    """

    def __init__(self, model: nn.Module, lr: float) -> None:
        kinds = roles_of(model)
        named = dict(model.named_parameters())
        super().__init__(named.values(), {"lr": lr})
        inside = {name: p for name, p in named.items() if kinds[name].kind in MATRICES}
        self.pairs = [(p, nn.Parameter(p.detach().flatten(1))) for p in inside.values()]
        self.muon = torch.optim.Muon(
            [flat for _, flat in self.pairs], lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
        )
        rest = [p for name, p in named.items() if name not in inside]
        self.adamw = torch.optim.AdamW(rest, lr, weight_decay=0.0, fused=True)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step with both."""
        for inner, share in ((self.muon, 1.0), (self.adamw, ADAMW_SHARE)):
            inner.param_groups[0]["lr"] = share * self.param_groups[0]["lr"]
        for p, flat in self.pairs:
            flat.grad = None if p.grad is None else p.grad.flatten(1)
        self.muon.step()  # type: ignore[no-untyped-call]
        self.adamw.step()


def muon(lr: float, shape: Shape) -> Make:
    """Muon with AdamW."""

    def make(model: nn.Module, steps: int) -> tuple[Optimizer, LRScheduler]:
        optimiser = MuonWithAdamW(model, lr)
        return optimiser, scheduled(optimiser, shape, steps)

    return make


def has_soap() -> bool:
    """Return whether SOAP is installed, from pytorch_optimizer in the extra ``bench``."""
    return find_spec("pytorch_optimizer") is not None


def soap(lr: float, shape: Shape) -> Make:
    """SOAP: Adam in the eigenbasis of Shampoo's preconditioners, renewed every ten steps."""
    from pytorch_optimizer import SOAP

    def make(model: nn.Module, steps: int) -> tuple[Optimizer, LRScheduler]:
        optimiser: Optimizer = SOAP(model.parameters(), lr, weight_decay=0.0)
        return optimiser, scheduled(optimiser, shape, steps)

    return make


@contextmanager
def muon_in_single_precision() -> Iterator[None]:
    """Run torch's Muon in float32 inside this context.

    Its products in bfloat16 take up to 60 times as long on processors without instructions for it.
    The algorithm is the same.
    """
    from torch.optim import _muon

    original = _muon._zeropower_via_newtonschulz

    def newton_schulz(
        grad: Tensor, ns_coefficients: tuple[float, float, float], ns_steps: int, eps: float
    ) -> Tensor:
        a, b, c = ns_coefficients
        tall = grad.shape[0] > grad.shape[1]
        X = grad.T if tall else grad
        X = X / X.norm().clamp(min=eps)
        for _ in range(ns_steps):
            gram = X @ X.T
            X = torch.addmm(X, torch.addmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
        return X.T if tall else X

    _muon._zeropower_via_newtonschulz = newton_schulz
    try:
        yield
    finally:
        _muon._zeropower_via_newtonschulz = original


def by_hand(p: float = 0.0) -> Callable[[float, Shape], Make]:
    """Return the geometry set by hand: σᵖ for matrices inside the network, a sign for the rest."""

    def of(lr: float, shape: Shape) -> Make:
        def make(model: nn.Module, steps: int) -> tuple[Optimizer, None]:
            options: Any = {
                "mirror": spectral_by_kind(p),
                "roles": roles_of(model),
                "nonfinite": None,
            }
            return optim.Preconditioned(model.named_parameters(), lr, steps=steps, **options), None

        return make

    return of


def learned(
    entry: Any, maps: dict[LayerKind, MirrorMap] | None = None
) -> Callable[[float, Shape], Make]:
    """Return a learned method, with other maps if given; its scales and schedules stay."""
    own = dict(zip(KINDS, entry.mirror.maps, strict=True))
    method = entry.replace(mirror=entry.mirror.replace(maps={**own, **(maps or {})}))

    def of(lr: float, shape: Shape) -> Make:
        return lambda model, steps: (optimiser_of(method, model, steps, lr), None)

    return of


def with_power(entry: Any, p: float) -> Callable[[float, Shape], Make]:
    """Return a learned method with σᵖ in place of what it has learned to do to singular values."""
    return learned(entry, {kind: SpectralPower(p, products=4) for kind in MATRICES})


def control(entry: Any) -> Callable[[float, Shape], Make]:
    """Return a learned method with identity maps, and the same momentum, scales and schedules."""
    return learned(entry, {kind: Euclidean() for kind in KINDS})


def grid(rates: Sequence[float], shapes: Sequence[Shape] = SHAPES) -> list[Setting]:
    """Return all pairs of learning rates and shapes."""
    return list(product(rates, shapes))


def adamw_grid(rates: Sequence[float], shapes: Sequence[Shape] = SHAPES) -> list[Setting]:
    """Return learning rates, shapes and both β₂."""
    return list(product(rates, shapes, BETAS))


def rivals(shapes: Sequence[Shape] = SHAPES) -> list[TunableOptimiser]:
    """Return common optimisers; all but AdamW have decaying schedules only."""
    falling = [shape for shape in shapes if shape in FALLING]
    made = [
        TunableOptimiser(ADAMW, adamw, adamw_grid((1e-3, 3e-3, 1e-2, 3e-2), shapes)),
        TunableOptimiser(MUON, muon, grid((1e-2, 3e-2, 1e-1), falling)),
        TunableOptimiser(SGD, sgd, grid((0.03, 0.1, 0.3), falling), judged=False),
    ]
    return [
        *made,
        *(
            [TunableOptimiser("SOAP", soap, grid((3e-3, 1e-2, 3e-2), falling))]
            if has_soap()
            else []
        ),
    ]
