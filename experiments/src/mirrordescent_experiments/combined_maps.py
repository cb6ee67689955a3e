"""Test whether maps that combine second moments and singular values pay off.

.. code-block:: none

    entries (diagonal):     n ← β₂n + (1 − β₂) D²                         D ← D/√n
    rows (left, diagonal):  n ← β₂n + (1 − β₂) mean over columns of D²    D ← D/√n, norm as before
    two sides (Shampoo):    L ← β₂L + (1 − β₂) GGᵀ                        D = L^−¼ V R^−¼
                            R ← β₂R + (1 − β₂) GᵀG

D is the direction of a matrix in the geometry set by hand (its polar factor), G its gradient and V
its momentum. The first two rescale the direction of the map of singular values. The last one
replaces this map by a quadratic map with full matrices on both sides. The first one, for every
tensor, is ``methods.AdaptivePreconditioned``, with which ``network-spectral`` is learned. The other
kinds of layers, the momentum and the schedule are the same for all.

The experiment also runs ``network-spectral`` without its second moments. All else stays as it was
learned together with them, except for a factor of all steps. So the difference is an upper bound
of the gain from second moments.

The learning rate and β₂ are tuned on the tasks on which the entry is learned. The numbers shown are
from validation tasks, with networks on which nothing was tuned. Rows and two sides leave the gates
of recurrent layers alone, which are several matrices in one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mirrordescent import zoo
from mirrordescent.methods import AdaptivePreconditioned, Preconditioned
from mirrordescent.mirrors import ByKind, roles_of, spectral_by_kind
from mirrordescent.mirrors.by_kind import ScaledMap
from mirrordescent.mirrors.singular_values import SingularValues, as_matrices
from mirrordescent.optim.preconditioned import MOMENTUM
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import LEARNING, VALIDATION, Make, Task, optimiser_of
from mirrordescent.schedules import OverRun
from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.network_geometry import small
from mirrordescent_experiments.result import Claim, Result, Table
from mirrordescent_experiments.scales import Say, Scale

RATES = (2.5e-3, 4e-3, 6e-3, 1e-2, 1.6e-2, 2.5e-2)
BETAS = (0.9, 0.98)
EVERY = 5  # steps between two roots of the matrices of two sides
DAMPING = 1e-6  # relative to the largest eigenvalue
TUNING_SEED = 300
TEST_SEED = 40_000
NONE = "none"
LEARNED = f"{ENTRY}, as learned"
BARE = f"{ENTRY} without them"
MULTIPLES = (0.4, 0.63, 1.0, 1.6, 2.5)  # of the entry's own steps


@dataclass(frozen=True)
class Size:
    """How large it is: networks of every validation task, and whether everything is small."""

    networks: int
    small: bool = False


SIZES: dict[Scale, Size] = {"quick": Size(1, True), "standard": Size(10), "paper": Size(20)}


class Combined:
    """State of a combination for one matrix, and its direction for d, momentum v, gradient g."""

    def __init__(self, beta: float) -> None:
        self.beta = beta
        self.steps = 0

    def __call__(self, d: Tensor, v: Tensor, g: Tensor) -> Tensor:
        """Return the new direction, as long as d."""
        self.steps += 1
        new = self.direction(d, v, g)
        return new * (d.norm() / new.norm().clamp(min=torch.finfo(d.dtype).tiny))

    def mean(self, old: Tensor | None, new: Tensor) -> Tensor:
        """β₂·old + (1 − β₂)·new."""
        return (1 - self.beta) * new if old is None else torch.lerp(old, new, 1 - self.beta)

    def direction(self, d: Tensor, v: Tensor, g: Tensor) -> Tensor:
        """Return the new direction, of any length: what a combination is."""
        raise NotImplementedError


class Rows(Combined):
    """D/√n with a second moment for every row."""

    n: Tensor | None = None

    def direction(self, d: Tensor, v: Tensor, g: Tensor) -> Tensor:
        self.n = self.mean(self.n, d.square().mean(1, keepdim=True))
        return d / (self.n.sqrt() + 1e-8)


class TwoSides(Combined):
    """L^−¼ V R^−¼."""

    L: Tensor | None = None
    R: Tensor | None = None
    roots: tuple[Tensor, Tensor]

    def direction(self, d: Tensor, v: Tensor, g: Tensor) -> Tensor:
        self.L, self.R = self.mean(self.L, g @ g.T), self.mean(self.R, g.T @ g)
        if self.steps % EVERY == 1:
            self.roots = _root(self.L), _root(self.R)
        return self.roots[0] @ v @ self.roots[1]


def _root(S: Tensor) -> Tensor:
    """S^−¼, damped."""
    values, vectors = torch.linalg.eigh(S.double())
    floor = DAMPING * values[-1].clamp(min=torch.finfo(torch.float64).tiny)
    return ((vectors * (values.clamp(min=0) + floor) ** -0.25) @ vectors.T).to(S)


COMBINED: dict[str, Callable[[float], Combined]] = {"rows": Rows, "two sides": TwoSides}
KINDS_OF_MOMENTS = ("entries", *COMBINED)


class CombinedOptimiser(Optimizer):
    """A geometry by kinds of layers whose matrix directions are combined with second moments."""

    def __init__(
        self,
        model: nn.Module,
        method: Preconditioned,
        steps: int,
        lr: float,
        make: Callable[[], Combined],
    ) -> None:
        super().__init__(model.parameters(), {})
        known = roles_of(model)
        mirror = cast(ByKind, method.mirror)
        self.maps: list[ScaledMap] = [
            mirror.of(known[name]) for name, _ in model.named_parameters()
        ]
        self.momenta = [torch.zeros_like(p) for p in model.parameters()]
        bare = [each.mirror for each in self.maps]
        self.combined = [
            make() if isinstance(m, SingularValues) and m.parts == 1 else None for m in bare
        ]
        self.method = method
        self.t = cast(OverRun, method.t).over(steps)
        self.lr = lr
        self.k = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        self.k += 1
        t = self.lr * float(self.t(self.k))
        beta = self.method.momentum
        for p, m, each, combined in zip(
            self.param_groups[0]["params"], self.momenta, self.maps, self.combined, strict=True
        ):
            m.lerp_(p.grad, 1 - beta)
            v = torch.lerp(p.grad, m, beta)
            d = cast(Tensor, each.direction(v[None]))[0]
            if combined is not None:
                matrices = (as_matrices(tensor[None])[0] for tensor in (d, v, p.grad))
                d = combined(*matrices).reshape(d.shape)
            p.mul_(1 - t * self.method.decay).sub_(d, alpha=t)


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Tune every combination on the learning tasks, and compare it with none on the others."""
    size = SIZES[scale]
    learning = LEARNING
    validation = VALIDATION
    if size.small:
        learning, validation = (
            tuple(small(task, 0.02) for task in some[:2]) for some in (learning, validation)
        )
    method = Preconditioned(
        spectral_by_kind(), OverRun(1), MOMENTUM, normalised=True
    ).requires_grad_(False)
    entry = cast(AdaptivePreconditioned, zoo.load(ENTRY).requires_grad_(False))
    others: dict[str, Callable[[float], Preconditioned]] = {
        NONE: lambda beta: method,
        "entries": lambda beta: AdaptivePreconditioned(method.mirror, method.t, MOMENTUM, beta),
        LEARNED: lambda beta: entry,
        BARE: lambda beta: without_second_moments(entry),
    }
    result = Result(
        "combined-maps",
        "Second moments beside singular values",
        {
            "scale": scale,
            "networks": size.networks,
            "learning rates": list(RATES),
            "β₂": list(BETAS),
            "multiples of learned steps": list(MULTIPLES),
        },
    )

    def log_losses(make: Make, tasks: tuple[Task, ...], seed: int) -> Tensor:
        ends = [task.train(make, seed, directory).loss for task in tasks]
        return torch.tensor(ends, dtype=torch.float64).nan_to_num(nan=1e6).clamp(max=1e6).log()

    def made(kind: str, lr: float, beta: float) -> Make:
        def make(model: nn.Module, steps: int) -> tuple[Optimizer, None]:
            if kind in COMBINED:
                return CombinedOptimiser(
                    model, method, steps, lr, lambda: COMBINED[kind](beta)
                ), None
            return optimiser_of(others[kind](beta), model, steps, lr), None

        return make

    found: dict[str, Tensor] = {}
    rows = []
    for kind in (NONE, *KINDS_OF_MOMENTS, LEARNED, BARE):
        settings = [(c, 0.0) for c in (MULTIPLES if kind in (LEARNED, BARE) else RATES)]
        if kind in KINDS_OF_MOMENTS:
            settings = list(product(RATES, BETAS))
        settings = settings[:1] if size.small else settings
        scores = {
            each: float(log_losses(made(kind, *each), learning, TUNING_SEED).mean())
            for each in settings
        }
        best = min(scores, key=lambda each: scores[each])
        seeds = range(TEST_SEED, TEST_SEED + size.networks)
        found[kind] = torch.stack(
            [log_losses(made(kind, *best), validation, seed) for seed in seeds]
        )
        chosen = f"{best[0]:g}" + (f", β₂ {best[1]:g}" if kind in KINDS_OF_MOMENTS else "")
        rows.append(
            (
                kind,
                chosen,
                f"{scores[best]:.3f}",
                *(f"{x:.3f}" for x in found[kind].mean(0).tolist()),
            )
        )
        say(" ".join(rows[-1]))
    result.tables["Mean log loss at the end"] = Table(
        (
            "second moments",
            "learning rate, or multiple of learned steps",
            "learning tasks",
            *(task.name for task in validation),
        ),
        rows,
    )
    compared = {kind: (kind, NONE) for kind in KINDS_OF_MOMENTS} | {
        f"those of {ENTRY} with all else as learned": (LEARNED, BARE)
    }
    for called, (kind, without) in compared.items() if scale != "quick" else ():
        margin = paired(
            (found[without] - found[kind]).mean(1)
        )  # networks differ by seeds, tasks are what they are
        measured = f"lower by {margin.mean:.3f} [{margin.low:.3f}, {margin.high:.3f}]"
        statement = (
            f"combined with second moments, {called}, the mean log loss on validation tasks is "
            "lower"
        )
        result.claims.append(Claim.by(statement, margin.low, margin.high, measured))
    return result


def without_second_moments(method: AdaptivePreconditioned) -> Preconditioned:
    """Return dual-space preconditioning with the same map, steps, momentum and decay."""
    return Preconditioned(
        method.mirror,
        method.t,
        method.momentum,
        method.lookahead,
        normalised=True,
        decay=method.decay,
    )
