"""Numbers that depend on the problem: schedules, and parameters of maps, as functions of a few
features.

A problem describes itself by features φ, one number each for every sample, such as
log(weight/contrast) (:meth:`~mirrordescent.problems.base.Problem.features`). A *conditional* part
is a family of parts, one for every φ; :func:`given` takes the member for the problem at hand, of it
and of everything that contains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from mirrordescent.parts import Config, rebuild_module, shallow_copy
from mirrordescent.schedules import (
    TABULATED,
    PowerLaws,
    Schedule,
    Values,
    as_numbers,
    as_schedule,
    between,
    log_hats,
)

Features: TypeAlias = Mapping[str, Tensor]
M = TypeVar("M", bound=nn.Module)


class FeatureTable(dict[str, Tensor]):
    """Features, with their numbers beside them: many parts ask for the same."""

    def __init__(self, features: Features) -> None:
        super().__init__(features)
        self._rows: dict[tuple[str, ...], np.ndarray] = {}

    def rows(self, *names: str) -> np.ndarray:
        """Return some features as an array (features, batch)."""
        if names not in self._rows:
            self._rows[names] = np.stack([as_numbers(self[name]) for name in names])
        return self._rows[names]


class Conditional(Protocol):
    """A part that depends on features. Without them it is what it is at φ = 0."""

    def given(self, features: Features) -> nn.Module:
        """Return the part for problems with these features."""


def given(module: M, features: Features) -> M:
    """Return a module in which every conditional part is the one for these features; the rest is
    shared, not copied.
    """
    return rebuild_module(
        module,
        lambda part: cast(Conditional, part).given(features) if _conditional(type(part)) else part,
    )


def _conditional(kind: type) -> bool:
    return hasattr(kind, "given")  # a module itself is asked for what it has not much more slowly


def per_sample_parameters(module: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of which every sample may have its own."""
    return {
        p
        for part in module.modules()
        if isinstance(part, ConditionalLaws)
        for p in part.parameters()
    }


def with_sample_parameters(module: M, values: Mapping[nn.Parameter, Tensor]) -> M:
    """Return a module in which some of ``own_parameters`` have values (batch, …) in place of those
    for all samples.
    """

    def change(part: nn.Module) -> nn.Module:
        found = {name: values[p] for name, p in part._parameters.items() if p in values}  # type: ignore[index]
        if not found:
            return part
        return shallow_copy(part, _parameters={**part._parameters, **found})

    return rebuild_module(module, change)


class ConditionalLaws(PowerLaws):
    """t(k) = base(k)·exp(φ·θ(k)): power laws of k whose logarithms are linear in features.

    Between the counts of ``slopes`` θ is linear in log k, and constant beyond them. With a
    ``bound`` it is the logit that is shifted. θ is learned and begins at 0. With ``units`` φ is
    (feature − origin)/unit, so that all θ are learned at one pace, and base is the schedule in the
    middle.

    Args:
        counts, values, power, bound: the base, see :class:`~mirrordescent.schedules.PowerLaws`.
        features: the names of the features it depends on.
        slope_counts: where θ has values of its own.
        exponents: features with a fixed θ, which an exact symmetry of the problem prescribes.
        units: the origin and the unit of features, by their names, such as mean and spread over
            some problems.

    >>> import torch
    >>> t = ConditionalLaws([1], [2.0], features=["weight"])
    >>> _ = t.slopes.data.fill_(1.0)
    >>> t.given({"weight": torch.tensor([0.0, 1.0])})(1).detach()
    tensor([2.0000, 5.4366])
    """

    def __init__(
        self,
        counts: Sequence[int],
        values: Values,
        power: float = 0.0,
        bound: float = math.inf,
        features: Sequence[str] = (),
        slope_counts: Sequence[int] = (1,),
        exponents: Mapping[str, float] | None = None,
        units: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        super().__init__(counts, values, power, bound)
        self.features = list(features)
        self.slope_counts = list(slope_counts)
        self.exponents = dict(exponents or {})
        self.units = {
            name: [float(origin), float(unit)] for name, (origin, unit) in (units or {}).items()
        }
        self.slopes = nn.Parameter(
            torch.zeros(len(self.slope_counts), len(self.features)).to(self.raw)
        )
        self.found: FeatureTable | None = None  # once they are given
        self._told: tuple[tuple[int, ...], Tensor] | None = (
            None  # the last sequence, and what it depends on
        )
        self._first: tuple[tuple[int, ...], Tensor] | None = None  # the first values, likewise

    def given(self, features: Features) -> ConditionalLaws:
        """Return the schedule for these features."""
        if missing := [name for name in (*self.features, *self.exponents) if name not in features]:
            raise TypeError(
                f"the problem does not tell its {missing[0]!r}, on which a schedule depends; it tells "
                f"{', '.join(features) or 'nothing'}. Problems describe themselves in features()"
            )
        if self.units:
            shifts = {
                name: (features[name] - origin) / unit
                for name, (origin, unit) in self.units.items()
            }
            features = {**features, **shifts}
        return shallow_copy(
            self,
            found=features if isinstance(features, FeatureTable) else FeatureTable(features),
            _told=None,
            _first=None,
        )

    def __call__(self, k: int) -> float | Tensor:
        return super().__call__(k) if self.found is None else self.forward(k)

    def forward(self, k: int) -> float | Tensor:
        if self.found is None:
            return super().forward(k)
        wanted = torch.is_grad_enabled() and (self.raw.requires_grad or self.slopes.requires_grad)
        if wanted or self.raw.is_cuda or k > TABULATED:
            return self._value(self._raw(k) + self._shift(k, self.found))
        asked = (self.raw._version, self.slopes._version)
        if (
            self._first is None or self._first[0] != asked
        ):  # a row of a table takes less time than its formula
            self._first = asked, super().sequence(1, TABULATED).to(self.raw)
        return self._first[1][k - 1]

    def sequence(self, first: int, count: int) -> Tensor:
        """Return what it returned before if nothing has changed: a step size and a curvature may
        share a schedule.
        """
        asked = (first, count, self.raw._version, self.slopes._version)
        if self.found is None or self._told is None or self._told[0] != asked:
            self._told = asked, super().sequence(first, count)
        return self._told[1]

    def _raws(self, first: int, count: int) -> np.ndarray:
        raws = super()._raws(first, count)
        if self.found is None:
            return raws
        for name, power in self.exponents.items():
            raws = raws + power * self.found.rows(name)[0]
        if not self.features:
            return raws
        if self.slopes.ndim == 2:
            slopes = between(self.slopes, self.slope_counts, first, count)[
                ..., None
            ]  # (count, features, 1)
        else:
            hats = log_hats(tuple(self.slope_counts), first, count)[0]
            slopes = np.einsum("cs,bsf->cfb", hats, as_numbers(self.slopes))
        # A product and a sum, not a product of matrices, whose digits depend on how many samples
        # there are.
        return raws + (slopes * self.found.rows(*self.features)).sum(1)

    def _shift(self, k: int, found: Features) -> Tensor:
        """φ·θ at a count: (batch,)."""
        shift = torch.zeros(()).to(self.slopes)
        for name, power in self.exponents.items():
            shift = shift + power * found[name].to(self.slopes)
        if not self.features:
            return shift
        hats = torch.from_numpy(log_hats(tuple(self.slope_counts), k, 1)[0][0]).to(self.slopes)
        here = (
            hats @ self.slopes
        )  # (features,), or (batch, features) if samples have slopes of their own
        return shift + (
            here * torch.stack([found[name].to(here) for name in self.features], -1)
        ).sum(-1)

    def config(self) -> Config:
        return {
            **super().config(),
            "features": self.features,
            "slope_counts": self.slope_counts,
            "exponents": self.exponents,
            "units": self.units,
        }


class Within(Schedule):
    """t(k) = share(k) / (ℓ(k) + b·a(k)): a share of the longest safe step for a curvature a that is
    a schedule too.

    f_a, rounded to a curvature a, has second derivatives up to ℓ + b·a, in the geometry of the map.
    Where a depends on features, so does the step.

    Args:
        share: of the longest step.
        curvature: a(k), often the very schedule of a :class:`~mirrordescent.oracles.Rounded`
            oracle.
        smooth: ℓ, of the smooth part.
        rough: b, of the rounded kinks.

    >>> from mirrordescent.schedules import Constant
    >>> Within(1.0, Constant(4.0), smooth=1.0, rough=2.0)(1)
    0.111...
    """

    def __init__(
        self,
        share: Schedule | float,
        curvature: Schedule,
        smooth: Schedule | float = 1.0,
        rough: float = 1.0,
    ) -> None:
        super().__init__()
        self.share = as_schedule(share, "share")
        self.curvature = curvature
        self.smooth = as_schedule(smooth, "smooth")
        self.rough = float(rough)

    def forward(self, k: int) -> float | Tensor:
        return self.share(k) / (self.smooth(k) + self.rough * self.curvature(k))

    def sequence(self, first: int, count: int) -> Tensor:
        share, smooth, curvature = (
            part.sequence(first, count) for part in (self.share, self.smooth, self.curvature)
        )
        return share / (smooth + self.rough * curvature)
