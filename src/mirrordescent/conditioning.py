"""Conditioning: schedules and maps as functions of features of the problem.

A problem describes every sample by a few features φ, such as log(weight/contrast)
(:meth:`~mirrordescent.problems.base.Problem.features`). A *conditional* part is a family of parts,
one for every φ. :func:`given` replaces all conditional parts of a method by those for the features
of a problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from mirrordescent._internal.derived import version_of
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
    """Features by their names, and a cache of their values as arrays, which many parts need."""

    def __init__(self, features: Features) -> None:
        super().__init__(features)
        self._rows: dict[tuple[str, ...], np.ndarray] = {}

    def rows(self, *names: str) -> np.ndarray:
        """Return some features as one array (features, batch)."""
        if names not in self._rows:
            self._rows[names] = np.stack([as_numbers(self[name]) for name in names])
        return self._rows[names]


class Conditional(Protocol):
    """A part that depends on features. Without features it is the part for φ = 0."""

    def given(self, features: Features) -> nn.Module:
        """Return the part for problems with these features."""


def given(module: M, features: Features) -> M:
    """Return a module with every conditional part replaced by the part for these features.

    Parts that do not depend on features are shared, not copied.
    """

    def change(part: nn.Module) -> nn.Module:
        # hasattr on the module itself is slow if the attribute is missing.
        if hasattr(type(part), "given"):
            return cast(Conditional, part).given(features)
        return part

    return rebuild_module(module, change)


def per_sample_parameters(module: nn.Module) -> set[nn.Parameter]:
    """Return the parameters that may differ between samples (:func:`with_sample_parameters`)."""
    parameters: set[nn.Parameter] = set()
    for part in module.modules():
        if isinstance(part, ConditionalLaws):
            parameters.update(part.parameters())
    return parameters


def with_sample_parameters(module: M, values: Mapping[nn.Parameter, Tensor]) -> M:
    """Return a module with values (batch, …) in place of some parameters.

    Args:
        module: Module to copy; it is not modified.
        values: Values by their parameters, which must be among :func:`per_sample_parameters`.
    """

    def change(part: nn.Module) -> nn.Module:
        replaced: dict[str, Tensor] = {}
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter in values:
                replaced[name] = values[parameter]
        if not replaced:
            return part
        return shallow_copy(part, _parameters={**part._parameters, **replaced})

    return rebuild_module(module, change)


class ConditionalLaws(PowerLaws):
    """t(k) = base(k)·exp(φ·θ(k)): power laws of k whose logarithms are linear in features φ.

    θ is learned and begins at 0. It is linear in log k between the counts of θ, and constant
    beyond them. If the base has a bound, φ·θ(k) is added to the logit instead of the logarithm.

    Args:
        counts: Counts of the base (:class:`~mirrordescent.schedules.PowerLaws`).
        values: Values of the base at these counts.
        power: Exponent of the base after its last count.
        bound: Upper bound of the base.
        features: Names of the features.
        slope_counts: Counts at which θ has values.
        exponents: Fixed θ by names of features, prescribed by exact symmetries of the problem.
        units: Origin and unit by names of features, such as mean and standard deviation over some
            problems. Then φ is (feature − origin)/unit, so that all θ are of similar size, and base
            is the schedule of a typical problem.

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
        self.feature_values: FeatureTable | None = None
        # Caches of the last sequence and of the first values, with the numbers they depend on.
        self._last_sequence: tuple[tuple[object, ...], Tensor] | None = None
        self._first_values: tuple[tuple[object, ...], Tensor] | None = None

    def given(self, features: Features) -> ConditionalLaws:
        """Return the schedule for these features."""
        for name in (*self.features, *self.exponents):
            if name not in features:
                raise TypeError(
                    f"a schedule depends on the feature {name!r}, but the problem has "
                    f"{', '.join(features) or 'no features'}: return it from features()"
                )
        if self.units:
            features = dict(features)
            for name, (origin, unit) in self.units.items():
                features[name] = (features[name] - origin) / unit
        if not isinstance(features, FeatureTable):
            features = FeatureTable(features)
        return shallow_copy(self, feature_values=features, _last_sequence=None, _first_values=None)

    def __call__(self, k: int) -> float | Tensor:
        if self.feature_values is None:
            return super().__call__(k)
        return self.forward(k)

    def forward(self, k: int) -> float | Tensor:
        if self.feature_values is None:
            return super().forward(k)
        learned = self.raw.requires_grad or self.slopes.requires_grad
        needs_graph = learned and torch.is_grad_enabled()
        has_table = k <= TABULATED and not self.raw.is_cuda and not self.raw.is_inference()
        if needs_graph or not has_table:
            return self._value(self._raw(k) + self._shift(k, self.feature_values))
        # Reading a row of a table is faster than evaluating the formula.
        versions = (version_of(self.raw), version_of(self.slopes))
        if self._first_values is None or self._first_values[0] != versions:
            self._first_values = versions, super().sequence(1, TABULATED).to(self.raw)
        return self._first_values[1][k - 1]

    def sequence(self, first: int, count: int) -> Tensor:
        """Return t(first), …, cached, since a step size and a curvature may share a schedule."""
        key = (first, count, version_of(self.raw), version_of(self.slopes))
        cached = self._last_sequence
        if self.feature_values is None or cached is None or cached[0] != key:
            cached = key, super().sequence(first, count)
            self._last_sequence = cached
        return cached[1]

    def _raws(self, first: int, count: int) -> np.ndarray:
        raws = super()._raws(first, count)
        values = self.feature_values
        if values is None:
            return raws
        for name, power in self.exponents.items():
            raws = raws + power * values.rows(name)[0]
        if not self.features:
            return raws
        if self.slopes.ndim == 2:  # slopes are (count, features, 1)
            slopes = between(self.slopes, self.slope_counts, first, count)[..., None]
        else:  # samples have their own, (count, features, batch)
            hats = log_hats(tuple(self.slope_counts), first, count)[0]
            slopes = np.einsum("cs,bsf->cfb", hats, as_numbers(self.slopes))
        # The digits of a product of matrices would depend on the number of samples.
        return raws + (slopes * values.rows(*self.features)).sum(1)

    def _shift(self, k: int, values: Features) -> Tensor:
        """Return φ·θ(k), (batch,)."""
        shift = torch.zeros(()).to(self.slopes)
        for name, power in self.exponents.items():
            shift = shift + power * values[name].to(self.slopes)
        if not self.features:
            return shift
        hats = torch.from_numpy(log_hats(tuple(self.slope_counts), k, 1)[0][0]).to(self.slopes)
        slopes = hats @ self.slopes  # (features,), or (batch, features) if samples differ
        phi = torch.stack([values[name].to(slopes) for name in self.features], -1)
        return shift + (slopes * phi).sum(-1)

    def config(self) -> Config:
        return {
            **super().config(),
            "features": self.features,
            "slope_counts": self.slope_counts,
            "exponents": self.exponents,
            "units": self.units,
        }


class Within(Schedule):
    """t(k) = share(k) / (ℓ(k) + b·a(k)): a share of the largest admissible step size.

    If kinks are rounded to a curvature a, second derivatives of f are at most ℓ + b·a, in the
    geometry of the map. If a depends on features, so does t.

    Args:
        share: Share of the largest step size.
        curvature: a(k), often the schedule of a :class:`~mirrordescent.oracles.Rounded` oracle.
        smooth: ℓ(k), the second derivative of the smooth part.
        rough: b, the factor of the rounded kinks.

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
