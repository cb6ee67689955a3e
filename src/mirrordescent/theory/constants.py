"""The constants of the theorems: α, L_ψ, L_ψ*, L_f, μ, all in ℓ₂, each with how it is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Generator

from mirrordescent.mirrors import Conjugate, MirrorMap
from mirrordescent.problems import Problem
from mirrordescent.theory.curvature import any_jumps, curvature_range
from mirrordescent.theory.geometry import Field
from mirrordescent.trees import Tree

How = Literal["formula", "certified", "sampled"]
SAFETY = 1.25
# a map whose curvatures lie within this share of a number is said to be a multiple of the identity
NEARLY = 0.1


@dataclass(frozen=True)
class Constant:
    """A bound, and how it is known: by a formula, by a certificate, or from samples with a factor
    for safety.

    An extreme over samples errs on the unsafe side: a largest eigenvalue found is too small, a
    smallest one too large. ``value`` is the estimate times the factor, which is above 1 for upper
    bounds and below 1 for lower ones.

    >>> print(Constant(2.0, "sampled", 1.25))
    2.5 (sampled: 2 times 1.25 for safety)
    """

    estimate: float
    how: How
    safety: float = 1.0

    @property
    def value(self) -> float:
        return self.estimate * self.safety

    def inverse(self) -> Constant:
        """1/value, which bounds from the other side; the inverse of 0 is infinite."""
        return Constant(1 / self.estimate if self.estimate else math.inf, self.how, 1 / self.safety)

    def __str__(self) -> str:
        if math.isinf(self.value) or not self.value:
            return f"{'∞' if self.value else '0'} ({self.how})"
        sampled = (
            f": {self.estimate:.4g} times {self.safety:g} for safety"
            if self.how == "sampled"
            else ""
        )
        return f"{self.value:.4g} ({self.how}{sampled})"


@dataclass(frozen=True)
class MapConstants:
    """α and L_ψ, between which ∇²ψ lies.

    ``lowest`` is the smallest curvature met, of ∇ψ or, for ψ = (M*)*, of ∇M*; None if nothing had
    to be sampled.
    """

    alpha: Constant
    smoothness: Constant
    lowest: float | None = None

    @property
    def dual_smoothness(self) -> Constant:
        """L_ψ* = 1/α, a Lipschitz constant of ∇ψ*."""
        return self.alpha.inverse()


@dataclass(frozen=True)
class Likeness:
    """How near a map is to a multiple of the identity: its curvatures lie within a share of a
    number c, where sampled.

    >>> print(Likeness(0.98, 1.06))
    The map is 1.02 times the identity within 3.9 %: what a run gains by it, a step size could gain.
    >>> print(Likeness(0.5, 2.0))
    The map is no multiple of the identity: its curvatures lie between 0.5 and 2, 60 % around 1.25.
    """

    lowest: float
    highest: float

    @property
    def multiple(self) -> float:
        """c, the middle of the curvatures."""
        return (self.lowest + self.highest) / 2

    @property
    def within(self) -> float:
        """By which share of c they lie around it."""
        return (
            (self.highest - self.lowest) / (self.highest + self.lowest)
            if self.multiple > 0
            else math.inf
        )

    def __str__(self) -> str:
        share = f"{100 * self.within:.2g} %"
        if self.within <= NEARLY:
            of = f"The map is {self.multiple:.4g} times the identity within {share}"
            return f"{of}: what a run gains by it, a step size could gain."
        between = (
            f"between {self.lowest:.4g} and {self.highest:.4g}, {share} around {self.multiple:.4g}"
        )
        return f"The map is no multiple of the identity: its curvatures lie {between}."


def likeness(
    mirror: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree] | None = None
) -> Likeness:
    """Compare a map with multiples of the identity, at points or, for ψ = (M*)*, by the inverse
    slopes of ∇M*.
    """
    if not isinstance(mirror, Conjugate):
        return Likeness(*curvature_range(mirror.to_dual, points))
    low, high = curvature_range(mirror.to_primal, duals or [mirror.to_dual(x) for x in points])
    return Likeness(1 / high if high else math.inf, 1 / low if low else math.inf)


@dataclass(frozen=True)
class ProblemConstants:
    """L_f and μ, between which ∇²f lies; L_f is infinite where f has kinks."""

    smoothness: Constant
    strong_convexity: Constant


def map_constants(
    mirror: MirrorMap,
    points: Sequence[Tree],
    duals: Sequence[Tree] | None = None,
    generator: Generator | None = None,
) -> MapConstants:
    """Return α, L_ψ and L_ψ* of an exact map: as it states them for its whole domain, else from
    samples.

    Strong convexity is taken as stated, in ℓ_p with p ≤ 2, which implies ℓ₂; that of an
    input-convex network is certified, since ψ − (α/2)‖x‖² is convex for all values of its
    parameters. For ψ = (M*)* the constants are those of M*, inverted, at the dual points given or
    the images of the points. Of a pair, M is meant.

    >>> import torch
    >>> from mirrordescent.mirrors import Diagonal
    >>> print(map_constants(Diagonal(torch.tensor([0.5, 4.0])), [torch.zeros(1, 2)]).dual_smoothness)
    2 (formula)
    """
    if isinstance(mirror, Conjugate):
        lowest, highest = curvature_range(
            mirror.to_primal, duals or [mirror.to_dual(x) for x in points], generator
        )
        known = (
            None
            if isinstance(mirror.dual_potential, Field)
            else mirror.dual_potential.strong_convexity
        )
        of_dual = (
            Constant(lowest, "sampled", 1 / SAFETY)
            if known is None
            else Constant(known, "certified")
        )
        return MapConstants(
            Constant(highest, "sampled", SAFETY).inverse(), of_dual.inverse(), lowest
        )
    stated = mirror.strong_convexity
    how: How = "certified" if mirror.certified else "formula"
    alpha = None if stated is None or stated.p > 2 else Constant(stated.alpha, how)
    smoothness = _stated(mirror.smoothness)
    if alpha is not None and smoothness is not None:
        return MapConstants(alpha, smoothness)
    lowest, highest = curvature_range(mirror.to_dual, points, generator)
    alpha = alpha or Constant(lowest, "sampled", 1 / SAFETY)
    return MapConstants(alpha, smoothness or Constant(highest, "sampled", SAFETY), lowest)


def problem_constants(
    problem: Problem, points: Sequence[Tree], generator: Generator | None = None
) -> ProblemConstants:
    """Return L_f and μ: as the problem states them, else from ∇²f at these points; L_f = ∞ where ∇f
    jumps.
    """
    smoothness = _stated(problem.smoothness())
    strong = _stated(problem.strong_convexity())
    if smoothness is None or strong is None:
        lowest, highest = curvature_range(problem.grad, points, generator)
        if smoothness is None and any_jumps(problem.grad, points):
            highest = math.inf
        smoothness = smoothness or Constant(highest, "sampled", SAFETY)
        # Kinks of a convex function only add curvature, so the smallest eigenvalue between them is
        # a lower bound.
        strong = strong or Constant(max(lowest, 0.0), "sampled", 1 / SAFETY)
    return ProblemConstants(smoothness, strong)


def _stated(value: float | None) -> Constant | None:
    return None if value is None else Constant(value, "formula")
