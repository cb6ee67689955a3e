"""Step sizes and extension rules that the theorems support."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator

from mirrordescent.methods import Method, named
from mirrordescent.methods.base import Storage, Theorem
from mirrordescent.mirrors import MirrorMap
from mirrordescent.oracles import Default, Oracle
from mirrordescent.problems import Problem
from mirrordescent.problems.sizes import natural_length
from mirrordescent.schedules import Extension, admissible_step
from mirrordescent.theory.assumptions import inverts_exactly, sample_nearby_points
from mirrordescent.theory.constants import (
    SAFETY,
    KnownConstant,
    MapConstants,
    map_constants,
    problem_constants,
)
from mirrordescent.theory.curvature import curvature_range
from mirrordescent.theory.geometry import exact_geometry, usable_domain
from mirrordescent.theory.recording import storage_of, theorem_of
from mirrordescent.trees import Tree


@dataclass(frozen=True)
class Advice:
    """Step sizes that a theorem supports, with the reasons.

    Attributes:
        t: Admissible step size; None if no number is admissible.
        gamma: Admissible γ of AMD; None for other methods.
        extension: Rule of :class:`~mirrordescent.schedules.Prefix` for steps beyond those given,
            to be used with ``monotone=True``.
        certain: Whether all numbers come from formulas and certificates, and none from samples.
        reasons: Explanations in words.
    """

    t: float | None
    gamma: float | None
    extension: Extension
    certain: bool
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        head = []
        if self.gamma is not None:
            head.append(f"γ = {self.gamma:.4g}")
        if self.t is not None:
            head.append(f"t = {self.t:.4g}")
        head.append(f"Prefix(…, extension={self.extension!r}, monotone=True)")
        return "\n".join([", ".join(head), *self.reasons])


def recommend(
    mirror: MirrorMap,
    problem: Problem,
    method: str | Method[Any] = "AMD",
    *,
    oracle: Oracle | None = None,
    points: Sequence[Tree] | None = None,
    generator: Generator | None = None,
) -> Advice:
    """Return the γ, t and extension rule that the theorems support.

    - AMD: γ = L_ψ* = 1/α and t = 1/(L_f γ), by Lemma 1 with the Euclidean R. Steps are constant
      (``"min"``): the rate k^{c−1} of Theorem 1 is best for c = 0, and c = 1 is excluded.
    - MD and SMD: t = α/L_f if f is smooth and gradients are exact. Then f is (L_f/α)-smooth
      relative to ψ and falls in every step. Otherwise steps fall like 1/√k, because their bound
      log k/√k is better than the bound 1/log k of c/k. A primal-stored pair needs constant steps:
      its error U_k = e_k/t_k grows as steps shrink.
    - ASMD: constant steps; t = α/(√8 L_f) balances the two terms of Theorem 3 without noise.

    Unknown constants are estimated from samples. If the map is not strongly convex on its whole
    domain, α and t are valid at the sampled points only.

    Args:
        mirror: Mirror map of the method.
        problem: Problem to solve.
        method: Method, or its name.
        oracle: Oracle that the method will be run with.
        points: Points to sample at; by default around the problem's start.
        generator: Random generator for the points.

    >>> import torch
    >>> from mirrordescent import Quadratic
    >>> from mirrordescent.mirrors import Diagonal
    >>> problem = Quadratic(torch.tensor([1.0, 4.0]), torch.zeros(2))
    >>> advice = recommend(Diagonal(torch.tensor([0.5, 2.0])), problem, "AMD")
    >>> advice.gamma, advice.t, advice.extension
    (2.0, 0.125, 'min')
    """
    if isinstance(method, str):
        method = named(method, mirror, t=1.0)
    theorem = theorem_of(method)
    if theorem is None:
        raise TypeError(
            f"no theorem is known for {type(method).__name__}, so that no step size can be "
            "recommended; use MD, SMD, AMD or ASMD"
        )
    if points is None:
        generator = generator or torch.Generator().manual_seed(0)
        start = problem.start()
        points = sample_nearby_points(
            start,
            usable_domain(mirror, problem),
            generator,
            length=natural_length(problem, start),
        )
    storage = storage_of(method)
    duals = [mirror.to_dual(x) for x in points]
    exact = inverts_exactly(mirror, points, duals)
    geometry = exact_geometry(mirror, storage, exact)
    alpha = local_alpha(geometry, map_constants(geometry, points, duals), points)
    smoothness = problem_constants(problem, points).smoothness
    stochastic = method.resolve_oracle(oracle or Default()).stochastic
    return advise(theorem, storage, exact, stochastic, alpha, smoothness)


def local_alpha(
    geometry: MirrorMap, constants: MapConstants, points: Sequence[Tree]
) -> KnownConstant:
    """Return α or, for a map that is not strongly convex everywhere, the α of some points."""
    if constants.alpha.estimate > 0:
        return constants.alpha
    return KnownConstant(curvature_range(geometry.to_dual, points)[0], "sampled", 1 / SAFETY)


def advise(
    theorem: Theorem,
    storage: Storage,
    exact: bool,
    stochastic: bool,
    alpha: KnownConstant,
    smoothness: KnownConstant,
) -> Advice:
    """Return the advice that follows from the constants.

    Args:
        theorem: Theorem about the method.
        storage: Space in which the method keeps its mirror iterate.
        exact: Whether the inverse of the map is exact.
        stochastic: Whether gradients are stochastic.
        alpha: Strong convexity α of the geometry.
        smoothness: L_f.
    """
    kinks = math.isinf(smoothness.value)
    t: float | None = None
    gamma: float | None = None
    extension: Extension = "min"
    if not 0 < alpha.value < math.inf:
        reasons = [
            "No α > 0 was found: the theorems do not apply, and no step is known to be safe."
        ]
    elif theorem == "accelerated":
        gamma = 1 / alpha.value
        reasons = _accelerated_reasons(stochastic, kinks)
        if stochastic or kinks:
            extension = "root_reciprocal"
        else:
            t = admissible_step(smoothness.value, gamma)
    elif theorem == "accelerated stochastic":
        reasons = ["ASMD: the theorem is for a constant step; with t it runs on t·f."]
        if not kinks:
            t = alpha.value / (math.sqrt(8) * smoothness.value)
    elif storage == "primal" and not exact:
        reasons = [
            "A primal-stored pair makes an error e in every step, so U = e/t grows as t shrinks: "
            "keep t constant."
        ]
        if not kinks:
            t = alpha.value / smoothness.value
    elif kinks or stochastic:
        extension = "root_reciprocal"
        reasons = [
            "Σ t = ∞ and Σ t² < ∞ hold for c/k, but its bound falls like 1/log k; that of c/√k, "
            "like log k/√k."
        ]
    else:
        t = alpha.value / smoothness.value
        reasons = ["f is smooth and gradients are exact: with t ≤ α/L_f it falls in every step."]
    certain = not alpha.sampled and (kinks or not smoothness.sampled)
    constants = f"α = {alpha}, L_f = {smoothness}."
    return Advice(t, gamma, extension, certain, (constants, *reasons))


def _accelerated_reasons(stochastic: bool, kinks: bool) -> list[str]:
    reasons = [
        "AMD: γ ≥ L_R L_ψ* = 1/α. Theorem 1 requires non-increasing t = Θ(k^−c) with c < 1, which "
        "excludes c/k."
    ]
    if stochastic:
        reasons.append(
            "There is no theorem for AMD with stochastic gradients; a decaying step keeps the "
            "noise small."
        )
    elif kinks:
        reasons.append(
            "f has kinks: no t is admissible, and the behaviour of AMD is empirical here."
        )
    return reasons
