"""The constants of the theorems: α, L_ψ, L_ψ*, L_f, μ, all in ℓ₂, each with how it is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator

from mirrordescent.mirrors import (
    Burg,
    Conjugate,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    Layerwise,
    LearnedPair,
    Logit,
    MirrorMap,
    Multipliers,
    NegativeEntropy,
    PNorm,
    SimplexEntropy,
    Spline,
    SquaredPNorm,
)
from mirrordescent.problems import SVM, LeastSquares, LogisticRegression, Problem, Quadratic, TVInpainting
from mirrordescent.theory.curvature import any_jumps, curvature_range
from mirrordescent.theory.geometry import Field, Inverted
from mirrordescent.trees import Tree

How = Literal["formula", "certified", "sampled"]
SAFETY = 1.25


@dataclass(frozen=True)
class Constant:
    """A bound, and how it is known: by a formula, by a certificate, or from samples with a factor for safety.

    An extreme over samples errs on the unsafe side: a largest eigenvalue found is too small, a smallest one too
    large. ``value`` is the estimate times the factor, which is above 1 for upper bounds and below 1 for lower ones.

    >>> print(Constant(2.0, "sampled", 1.25))
    2.5 (sampled: 2 times 1.25 for safety)
    """

    estimate: float
    how: How
    safety: float = 1.0

    @property
    def value(self) -> float:
        """The number to compute with."""
        return self.estimate * self.safety

    def inverse(self) -> Constant:
        """1/value, which bounds from the other side; the inverse of 0 is infinite."""
        return Constant(1 / self.estimate if self.estimate else math.inf, self.how, 1 / self.safety)

    def __str__(self) -> str:
        if math.isinf(self.value) or not self.value:
            return f"{'∞' if self.value else '0'} ({self.how})"
        if self.how == "sampled":
            return f"{self.value:.4g} (sampled: {self.estimate:.4g} times {self.safety:g} for safety)"
        return f"{self.value:.4g} ({self.how})"


@dataclass(frozen=True)
class MapConstants:
    """α and L_ψ, between which ∇²ψ lies, and L_ψ*, the Lipschitz constant of ∇ψ*: at most 1/α.

    ``lowest`` is the smallest curvature met, of ∇ψ or, for ψ = (M*)*, of ∇M*; None if nothing had to be sampled.
    """

    alpha: Constant
    smoothness: Constant
    dual_smoothness: Constant
    lowest: float | None = None


@dataclass(frozen=True)
class ProblemConstants:
    """L_f and μ, between which ∇²f lies; L_f is infinite where f has kinks."""

    smoothness: Constant
    strong_convexity: Constant


def map_constants(
    mirror: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree] | None = None, generator: Generator | None = None
) -> MapConstants:
    """Return α, L_ψ and L_ψ* of an exact map, over the whole domain where they are known, else at these points.

    Strong convexity is taken as stated, in ℓ_p with p ≤ 2, which implies ℓ₂; that of an input-convex network is
    certified, since ψ − (α/2)‖x‖² is convex for all values of its parameters. For ψ = (M*)* the constants
    are those of M*, inverted, at the dual points given or the images of the points. Of a pair, M is meant.

    >>> import torch
    >>> from mirrordescent.mirrors import Diagonal
    >>> print(map_constants(Diagonal(torch.tensor([0.5, 4.0])), [torch.zeros(1, 2)]).dual_smoothness)
    2 (formula)
    """
    if isinstance(mirror, Conjugate):
        return _constants_of_a_conjugate(mirror, duals or [mirror.to_dual(x) for x in points], generator)
    alpha, smoothness, lowest = _known_alpha(mirror), _known_smoothness(mirror), None
    if alpha is None or smoothness is None:
        lowest, highest = curvature_range(mirror.to_dual, points, generator)
        alpha = alpha or Constant(lowest, "sampled", 1 / SAFETY)
        smoothness = smoothness or Constant(highest, "sampled", SAFETY)
    return MapConstants(alpha, smoothness, alpha.inverse(), lowest)


def problem_constants(problem: Problem, points: Sequence[Tree], generator: Generator | None = None) -> ProblemConstants:
    """Return L_f and μ, by formula where there is one, else from ∇²f at these points; L_f = ∞ where ∇f jumps."""
    smoothness, strong = _known_problem_smoothness(problem), _known_convexity(problem)
    if smoothness is None or strong is None:
        lowest, highest = curvature_range(problem.grad, points, generator)
        if smoothness is None and any_jumps(problem.grad, points):
            highest = math.inf
        smoothness = smoothness or Constant(highest, "sampled", SAFETY)
        # Kinks of a convex function only add curvature, so the smallest eigenvalue between them is a lower bound.
        strong = strong or Constant(max(lowest, 0.0), "sampled", 1 / SAFETY)
    return ProblemConstants(smoothness, strong)


def has_kinks(problem: Problem) -> bool:
    """Tell whether a problem is nonsmooth by its own account: it knows how to smooth its kinks."""
    return type(problem).smoothed_grad is not Problem.smoothed_grad


def _constants_of_a_conjugate(mirror: Conjugate, duals: Sequence[Tree], generator: Generator | None) -> MapConstants:
    lowest, highest = curvature_range(mirror.to_primal, duals, generator)
    dual_smoothness = Constant(highest, "sampled", SAFETY)
    if isinstance(mirror.dual_potential, Field):
        smoothness = Constant(lowest, "sampled", 1 / SAFETY).inverse()
    else:
        smoothness = Constant(1 / mirror.dual_potential.strong_convexity, "certified")
    return MapConstants(dual_smoothness.inverse(), smoothness, dual_smoothness, lowest)


def _known_alpha(mirror: MirrorMap) -> Constant | None:
    """Return α over the whole domain: stated, or known to be 0."""
    stated = mirror.strong_convexity
    if stated is not None and stated.p <= 2:
        learned = isinstance(mirror.mirror if isinstance(mirror, Inverted) else mirror, LearnedPair)
        return Constant(stated.alpha, "certified" if learned else "formula")
    if isinstance(mirror, (NegativeEntropy, Burg, HyperbolicEntropy, PNorm, SquaredPNorm)):
        return Constant(0.0, "formula")
    return None


def _known_smoothness(mirror: MirrorMap) -> Constant | None:
    """Return L_ψ over the whole domain, where there is a formula."""
    match mirror:
        case Euclidean():
            value = 1.0
        case Diagonal():
            value = float(mirror.d.detach().max())
        case Multipliers():
            value = 1 / float(mirror.multipliers.detach().min())
        case Spline():
            value = float(mirror.slopes.detach().max())
        case Layerwise():
            parts = [_known_smoothness(part) for part in mirror.by_name.values()]
            known = [part.value for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            value = max(known)
        case HyperbolicEntropy():
            value = 1 / mirror.beta
        case PNorm():
            value = 1.0 if mirror.p == 2 else math.inf
        case SquaredPNorm():
            value = mirror.p - 1 if mirror.p >= 2 else math.inf
        case NegativeEntropy() | SimplexEntropy() | Burg() | Logit():
            value = math.inf
        case _:
            return None
    return Constant(value, "formula")


def _known_problem_smoothness(problem: Problem) -> Constant | None:
    if has_kinks(problem):
        return Constant(math.inf, "formula")
    known = problem.smoothness()
    return None if known is None else Constant(known, "formula")


def _known_convexity(problem: Problem) -> Constant | None:
    """Return μ of the problems that come with the library."""
    match problem:
        case Quadratic():
            eigenvalues = problem.A if problem.A.ndim == 1 else torch.linalg.eigvalsh(problem.A)
            value = max(float(eigenvalues.min()), 0.0)
        case LeastSquares():
            flat = problem.A.shape[-2] < problem.A.shape[-1]
            value = 0.0 if flat else float(torch.linalg.svdvals(problem.A).min()) ** 2
        case LogisticRegression() | SVM():
            value = float(problem.ridge.min())
        case TVInpainting():
            value = problem.F_convexity
        case _:
            return None
    return Constant(value, "formula")
