"""Numbers that depend on the problem: schedules, and parameters of maps, as functions of a few features.

A problem describes itself by features φ, one number each for every sample, such as log(weight/contrast)
(:meth:`~mirrordescent.problems.base.Problem.features`). A *conditional* part is a family of parts, one for every φ;
:func:`given` takes the member for the problem at hand, of it and of everything that contains it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from mirrordescent.parts import Config
from mirrordescent.schedules import PowerLaws, Schedule, Values, as_schedule

Features: TypeAlias = Mapping[str, Tensor]
M = TypeVar("M", bound=nn.Module)


class Conditional(Protocol):
    """A part that depends on features. Without them it is what it is at φ = 0."""

    def given(self, features: Features) -> nn.Module:
        """Return the part for problems with these features."""


def given(module: M, features: Features) -> M:
    """Return a module in which every conditional part is the one for these features; the rest is shared, not copied."""
    made: dict[int, nn.Module] = {}  # one part in two places stays one

    def visit(part: nn.Module) -> nn.Module:
        if id(part) not in made:
            children = {name: visit(child) for name, child in part._modules.items() if child is not None}
            other = part
            if any(child is not part._modules[name] for name, child in children.items()):
                other = copy.copy(part)
                other._modules = {**part._modules, **children}
            made[id(part)] = cast(Conditional, other).given(features) if hasattr(other, "given") else other
        return made[id(part)]

    return visit(module)  # type: ignore[return-value]


class ConditionalLaws(PowerLaws):
    """t(k) = base(k)·exp(φ·θ(k)): power laws of k whose logarithms are linear in features.

    Between the counts of ``slopes`` θ is linear in log k, and constant beyond them. With a ``bound`` it is the logit
    that is shifted. θ is learned and begins at 0.

    Args:
        counts, values, power, bound: the base, see :class:`~mirrordescent.schedules.PowerLaws`.
        features: the names of the features it depends on.
        slope_counts: where θ has values of its own.
        exponents: features with a fixed θ, which an exact symmetry of the problem prescribes.

    >>> import torch
    >>> t = ConditionalLaws([1], [2.0], features=["weight"])
    >>> _ = t.slopes.data.fill_(1.0)
    >>> t.given({"weight": torch.tensor([0.0, 1.0])})(1).detach()
    tensor([2.0000, 5.4366])
    """

    def __init__(
        self, counts: Sequence[int], values: Values, power: float = 0.0, bound: float = math.inf,
        features: Sequence[str] = (), slope_counts: Sequence[int] = (1,), exponents: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(counts, values, power, bound)
        self.features, self.slope_counts, self.exponents = list(features), list(slope_counts), dict(exponents or {})
        self.slopes = nn.Parameter(torch.zeros(len(self.slope_counts), len(self.features)).to(self.raw))
        self.found: Tensor | None = None  # the features, (batch, features), once they are given
        self.fixed: Tensor | None = None  # Σ exponent · feature, (batch,)

    def given(self, features: Features) -> ConditionalLaws:
        """Return the schedule for these features."""
        if missing := [name for name in (*self.features, *self.exponents) if name not in features]:
            raise TypeError(
                f"the problem does not tell its {missing[0]!r}, on which a schedule depends; it tells "
                f"{', '.join(features) or 'nothing'}. Problems describe themselves in features()"
            )
        other = copy.copy(self)
        if self.features:
            other.found = torch.stack([features[name].to(self.slopes) for name in self.features], 1)
        if self.exponents:
            terms = [power * features[name].to(self.slopes) for name, power in self.exponents.items()]
            other.fixed = torch.stack(terms).sum(0)
        return other

    def forward(self, k: int) -> float | Tensor:
        if self.found is None and self.fixed is None:
            return super().forward(k)
        return self._value(self._raw(k) + self._shift(self._hats(math.log(k))))

    @torch.no_grad()
    def sequence(self, first: int, count: int) -> Tensor:
        if self.found is None and self.fixed is None:
            return super().sequence(first, count)
        at = np.log(np.arange(first, first + count))
        raw = torch.from_numpy(self._raws(at))[:, None]
        if self.fixed is not None:
            raw = raw + self.fixed.double().cpu()
        if self.found is not None:  # in NumPy, since there is little to compute and it is done before every call
            knots, slopes = np.log(self.slope_counts), self.slopes.double().cpu().numpy()
            here = np.stack([np.interp(at, knots, slope) for slope in slopes.T], 1)
            raw = raw + torch.from_numpy(here @ self.found.double().cpu().numpy().T)
        return self._value(raw)

    def _hats(self, log_count: float) -> Tensor:
        """Return how much each of the slope counts has to say at another count; they sum to 1."""
        knots, each = np.log(self.slope_counts), np.eye(len(self.slope_counts))
        hats = [float(np.interp(log_count, knots, hat)) for hat in each]
        return torch.tensor(hats, dtype=torch.float64).to(self.slopes)

    def _shift(self, hats: Tensor) -> Tensor:
        """φ·θ at a count: (batch,)."""
        shift = torch.zeros(()).to(self.slopes) if self.fixed is None else self.fixed
        return shift if self.found is None else shift + hats @ self.slopes @ self.found.T

    def config(self) -> Config:
        return {
            **super().config(), "features": self.features, "slope_counts": self.slope_counts,
            "exponents": self.exponents,
        }  # fmt: skip


class Within(Schedule):
    """t(k) = share(k) / (ℓ(k) + b·a(k)): a share of the longest safe step for a curvature a that is a schedule too.

    f_a, rounded to a curvature a, has second derivatives up to ℓ + b·a, in the geometry of the map. Where a depends on
    features, so does the step.

    Args:
        share: of the longest step.
        curvature: a(k), often the very schedule of a :class:`~mirrordescent.oracles.Rounded` oracle.
        smooth: ℓ, of the smooth part.
        rough: b, of the rounded kinks.

    >>> from mirrordescent.schedules import Constant
    >>> Within(1.0, Constant(4.0), smooth=1.0, rough=2.0)(1)
    0.111...
    """

    def __init__(
        self, share: Schedule | float, curvature: Schedule, smooth: Schedule | float = 1.0, rough: float = 1.0
    ) -> None:
        super().__init__()
        self.share, self.curvature, self.smooth = as_schedule(share, "share"), curvature, as_schedule(smooth, "smooth")
        self.rough = float(rough)

    def forward(self, k: int) -> float | Tensor:
        return self.share(k) / (self.smooth(k) + self.rough * self.curvature(k))

    @torch.no_grad()
    def sequence(self, first: int, count: int) -> Tensor:
        share, smooth, curvature = (part.sequence(first, count) for part in (self.share, self.smooth, self.curvature))
        return share / (smooth + self.rough * curvature)
