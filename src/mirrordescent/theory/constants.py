"""The constants of the theorems: α, L_ψ, L_ψ*, L_f and μ, all in ℓ₂, each with its source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Generator

from mirrordescent._internal.deprecation import renamed_property
from mirrordescent.mirrors import Conjugate, MirrorMap
from mirrordescent.problems import Problem
from mirrordescent.theory.curvature import curvature_range, has_jump
from mirrordescent.theory.geometry import LineIntegralPotential
from mirrordescent.trees import Tree

Source = Literal["formula", "certified", "sampled"]

SAFETY = 1.25
"""Safety factor for upper bounds that are estimated from samples; its inverse for lower bounds."""

NEAR_IDENTITY = 0.1
"""Largest relative spread of curvatures at which a map counts as a multiple of the identity."""


@dataclass(frozen=True)
class KnownConstant:
    """A bound and its source: a formula, a certificate, or samples with a safety factor.

    An extreme value over samples errs on the unsafe side: the largest eigenvalue found is too
    small, and the smallest is too large. ``value`` is therefore the estimate times the safety
    factor, which is above 1 for upper bounds and below 1 for lower bounds.

    >>> print(KnownConstant(2.0, "sampled", 1.25))
    2.5 (sampled: 2 times 1.25 for safety)
    """

    estimate: float
    source: Source
    safety: float = 1.0

    how = renamed_property("how", "source")

    @property
    def value(self) -> float:
        """The bound: the estimate times the safety factor."""
        return self.estimate * self.safety

    @property
    def sampled(self) -> bool:
        """Whether the constant is estimated from samples, so that it proves nothing."""
        return self.source == "sampled"

    def inverse(self) -> KnownConstant:
        """Return 1/value, which bounds from the other side; the inverse of 0 is infinite."""
        inverse = 1 / self.estimate if self.estimate else math.inf
        return KnownConstant(inverse, self.source, 1 / self.safety)

    def __str__(self) -> str:
        if self.value == 0:
            return f"0 ({self.source})"
        if math.isinf(self.value):
            return f"∞ ({self.source})"
        if self.sampled:
            factors = f"{self.estimate:.4g} times {self.safety:g} for safety"
            return f"{self.value:.4g} (sampled: {factors})"
        return f"{self.value:.4g} ({self.source})"


@dataclass(frozen=True)
class MapConstants:
    """α and L_ψ, the bounds α I ≤ ∇²ψ ≤ L_ψ I on the curvature of a mirror map.

    Attributes:
        alpha: Strong convexity α of ψ.
        smoothness: Lipschitz constant L_ψ of ∇ψ.
        smallest_curvature: Smallest curvature found at the sampled points, of ∇ψ or, for
            ψ = (M*)*, of ∇M*. None if both constants are known and nothing was sampled.
    """

    alpha: KnownConstant
    smoothness: KnownConstant
    smallest_curvature: float | None = None

    lowest = renamed_property("lowest", "smallest_curvature")

    @property
    def dual_smoothness(self) -> KnownConstant:
        """L_ψ* = 1/α, a Lipschitz constant of ∇ψ*."""
        return self.alpha.inverse()


@dataclass(frozen=True)
class IdentityComparison:
    """The range of a map's curvatures at sampled points, compared with a multiple of the identity.

    >>> print(IdentityComparison(0.98, 1.06))
    The map is 1.02 times the identity within 3.9 %: a step size could gain as much as this map.
    >>> print(IdentityComparison(0.5, 2.0))
    The map is no multiple of the identity: its curvatures lie between 0.5 and 2, 60 % around 1.25.
    """

    lowest: float
    highest: float

    @property
    def multiple(self) -> float:
        """The multiple c of the identity: the middle of the range."""
        return (self.lowest + self.highest) / 2

    @property
    def relative_spread(self) -> float:
        """The largest distance of a curvature from c, relative to c."""
        if self.multiple <= 0:
            return math.inf
        return (self.highest - self.lowest) / (self.highest + self.lowest)

    def __str__(self) -> str:
        spread = f"{100 * self.relative_spread:.2g} %"
        if self.relative_spread <= NEAR_IDENTITY:
            return (
                f"The map is {self.multiple:.4g} times the identity within {spread}: "
                "a step size could gain as much as this map."
            )
        return (
            "The map is no multiple of the identity: its curvatures lie between "
            f"{self.lowest:.4g} and {self.highest:.4g}, {spread} around {self.multiple:.4g}."
        )


def compare_with_identity(
    mirror: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree] | None = None
) -> IdentityComparison:
    """Measure how close a map is to a multiple of the identity at sampled points.

    For ψ = (M*)* the curvatures of ψ are the inverses of those of M* at the dual points.

    Args:
        mirror: Map to examine.
        points: Primal points to sample at.
        duals: Dual points for ψ = (M*)*; by default the images ∇ψ of the points.
    """
    if not isinstance(mirror, Conjugate):
        lowest, highest = curvature_range(mirror.to_dual, points)
        return IdentityComparison(lowest, highest)
    lowest, highest = curvature_range(mirror.to_primal, _dual_points(mirror, points, duals))
    return IdentityComparison(_inverse(highest), _inverse(lowest))


@dataclass(frozen=True)
class ProblemConstants:
    """L_f and μ, the bounds μ I ≤ ∇²f ≤ L_f I; L_f is infinite where f has kinks."""

    smoothness: KnownConstant
    strong_convexity: KnownConstant


def map_constants(
    mirror: MirrorMap,
    points: Sequence[Tree],
    duals: Sequence[Tree] | None = None,
    generator: Generator | None = None,
) -> MapConstants:
    """Return α, L_ψ and L_ψ* of an exact mirror map.

    Constants that the map states for its whole domain are taken as stated; the others are
    estimated from samples. Strong convexity in ℓ_p with p ≤ 2 implies strong convexity in ℓ₂ with
    the same constant. For an input-convex network α is certified, because ψ − (α/2)‖x‖² is convex
    for all values of its parameters. For ψ = (M*)* the constants are the inverted constants of M*.
    For a learned pair the constants are those of M.

    Args:
        mirror: Map to examine.
        points: Primal points to sample at.
        duals: Dual points for ψ = (M*)*; by default the images ∇ψ of the points.
        generator: Random generator for the start vectors of Lanczos' method.

    >>> import torch
    >>> from mirrordescent.mirrors import Diagonal
    >>> constants = map_constants(Diagonal(torch.tensor([0.5, 4.0])), [torch.zeros(1, 2)])
    >>> print(constants.dual_smoothness)
    2 (formula)
    """
    if isinstance(mirror, Conjugate):
        return _conjugate_constants(mirror, _dual_points(mirror, points, duals), generator)
    alpha = _stated_alpha(mirror)
    smoothness = _stated(mirror.smoothness)
    if alpha is not None and smoothness is not None:
        return MapConstants(alpha, smoothness)
    lowest, highest = curvature_range(mirror.to_dual, points, generator)
    if alpha is None:
        alpha = KnownConstant(lowest, "sampled", 1 / SAFETY)
    if smoothness is None:
        smoothness = KnownConstant(highest, "sampled", SAFETY)
    return MapConstants(alpha, smoothness, lowest)


def _conjugate_constants(
    mirror: Conjugate, duals: Sequence[Tree], generator: Generator | None
) -> MapConstants:
    """Return the constants of ψ = (M*)*: those of M*, inverted."""
    lowest, highest = curvature_range(mirror.to_primal, duals, generator)
    certified = None
    if not isinstance(mirror.dual_potential, LineIntegralPotential):
        certified = mirror.dual_potential.strong_convexity
    if certified is None:
        dual_convexity = KnownConstant(lowest, "sampled", 1 / SAFETY)
    else:
        dual_convexity = KnownConstant(certified, "certified")
    dual_smoothness = KnownConstant(highest, "sampled", SAFETY)
    return MapConstants(dual_smoothness.inverse(), dual_convexity.inverse(), lowest)


def _stated_alpha(mirror: MirrorMap) -> KnownConstant | None:
    """Return the strong convexity that a map states, if it implies strong convexity in ℓ₂."""
    stated = mirror.strong_convexity
    if stated is None or stated.p > 2:
        return None
    return KnownConstant(stated.alpha, "certified" if mirror.certified else "formula")


def problem_constants(
    problem: Problem, points: Sequence[Tree], generator: Generator | None = None
) -> ProblemConstants:
    """Return L_f and μ of a problem.

    Constants that the problem states are taken as stated; the others are estimated from ∇²f at the
    points. L_f is infinite if ∇f jumps between two of them.

    Args:
        problem: Problem to examine.
        points: Points to sample at.
        generator: Random generator for the start vectors of Lanczos' method.
    """
    smoothness = _stated(problem.smoothness())
    strong_convexity = _stated(problem.strong_convexity())
    if smoothness is not None and strong_convexity is not None:
        return ProblemConstants(smoothness, strong_convexity)
    lowest, highest = curvature_range(problem.grad, points, generator)
    if smoothness is None:
        if has_jump(problem.grad, points):
            highest = math.inf
        smoothness = KnownConstant(highest, "sampled", SAFETY)
    if strong_convexity is None:
        # Kinks of a convex function only add curvature, so the smallest eigenvalue between the
        # kinks is a lower bound.
        strong_convexity = KnownConstant(max(lowest, 0.0), "sampled", 1 / SAFETY)
    return ProblemConstants(smoothness, strong_convexity)


def _dual_points(
    mirror: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree] | None
) -> Sequence[Tree]:
    return duals or [mirror.to_dual(x) for x in points]


def _stated(value: float | None) -> KnownConstant | None:
    if value is None:
        return None
    return KnownConstant(value, "formula")


def _inverse(number: float) -> float:
    return 1 / number if number else math.inf
