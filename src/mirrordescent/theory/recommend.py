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
from mirrordescent.schedules import Extension, admissible_step
from mirrordescent.theory.assumptions import is_exact, nearby_points
from mirrordescent.theory.constants import (
    SAFETY,
    Constant,
    MapConstants,
    map_constants,
    problem_constants,
)
from mirrordescent.theory.curvature import curvature_range
from mirrordescent.theory.geometry import domain_of, exact_geometry
from mirrordescent.theory.watched import storage_of, theorem_of
from mirrordescent.trees import Tree


@dataclass(frozen=True)
class Advice:
    """Admissible γ and t, the extension rule the assumptions support, and why.

    ``t`` and ``gamma`` are None where no number is admissible or none is needed; ``extension`` is a
    rule of :class:`~mirrordescent.schedules.Prefix`, to be used with ``monotone=True``. ``certain``
    tells whether the numbers come from formulas and certificates alone, or from samples too.
    """

    t: float | None
    gamma: float | None
    extension: Extension
    certain: bool
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        numbers = [
            f"{name} = {value:.4g}"
            for name, value in (("γ", self.gamma), ("t", self.t))
            if value is not None
        ]
        rule = f"Prefix(…, extension={self.extension!r}, monotone=True)"
        return "\n".join([", ".join([*numbers, rule]), *self.reasons])


def recommend(
    mirror: MirrorMap,
    problem: Problem,
    method: str | Method[Any] = "AMD",
    *,
    oracle: Oracle | None = None,
    points: Sequence[Tree] | None = None,
    generator: Generator | None = None,
) -> Advice:
    """Say which γ, t and extension rule the theorems support for a map, a problem and a method.

    ======  =======================================================================================
    AMD     γ = L_ψ* = 1/α and t = 1/(L_f γ) of Lemma 1 with the Euclidean R; constant steps
            ("min"): Theorem 1's rate k^{c−1} is best for c = 0, and c = 1 is outside of it
    MD,     t = α/L_f if f is smooth and gradients are exact: f is then (L_f/α)-smooth relative to
    ψ, SMD     and falls in every step; else steps that fall like 1/√k, whose bound log k/√k is
    better than
            the 1/log k of c/k. A primal-stored pair needs constant steps: its error U_k = e_k/t_k
            grows as steps shrink
    ASMD    constant steps; t = α/(√8 L_f) balances the two terms of Theorem 3 without noise
    ======  =======================================================================================

    The method may be given by its name, and the oracle is the one it would be run with. Constants
    that are not known are sampled at ``points``, by default around the problem's start. For a map
    that is not strongly convex on its whole domain, α and with it t are those of these points.

    >>> import torch
    >>> from mirrordescent import Quadratic
    >>> from mirrordescent.mirrors import Diagonal
    >>> problem = Quadratic(torch.tensor([1.0, 4.0]), torch.zeros(2))
    >>> advice = recommend(Diagonal(torch.tensor([0.5, 2.0])), problem, "AMD")
    >>> advice.gamma, advice.t, advice.extension
    (2.0, 0.125, 'min')
    """
    method = named(method, mirror, t=1.0) if isinstance(method, str) else method
    theorem = theorem_of(method)
    storage = storage_of(method)
    if theorem is None:
        raise TypeError(
            f"no theorem is known for {type(method).__name__}, and so none that recommends step sizes"
        )
    if points is None:
        generator = generator or torch.Generator().manual_seed(0)
        points = nearby_points(problem.start(), domain_of(mirror, problem), generator)
    duals = [mirror.to_dual(x) for x in points]
    exact = is_exact(mirror, points, duals)
    geometry = exact_geometry(mirror, storage, exact)
    alpha = local_alpha(geometry, map_constants(geometry, points, duals), points)
    smoothness = problem_constants(problem, points).smoothness
    return advise(
        theorem,
        storage,
        exact,
        method.resolve_oracle(oracle or Default()).stochastic,
        alpha,
        smoothness,
    )


def local_alpha(geometry: MirrorMap, constants: MapConstants, points: Sequence[Tree]) -> Constant:
    """Return α, or that of some points for a map that is not strongly convex on its whole
    domain.
    """
    if constants.alpha.estimate > 0:
        return constants.alpha
    return Constant(curvature_range(geometry.to_dual, points)[0], "sampled", 1 / SAFETY)


def advise(
    theorem: Theorem,
    storage: Storage,
    exact: bool,
    stochastic: bool,
    alpha: Constant,
    smoothness: Constant,
) -> Advice:
    """Return the advice that follows from the constants."""
    kinks = math.isinf(smoothness.value)
    a = alpha.value
    L = smoothness.value
    t = None if kinks else a / L
    gamma = None
    decays = False
    why = ["f is smooth and gradients are exact: with t ≤ α/L_f it falls in every step."]
    if not 0 < a < math.inf:
        t = None
        why = ["No α > 0 was found: the theorems do not apply, and no step is known to be safe."]
    elif theorem == "accelerated":
        gamma = 1 / a
        decays = stochastic or kinks
        why = [
            "AMD: γ ≥ L_R L_ψ* = 1/α. Theorem 1 asks for non-increasing t = Θ(k^−c) with c < 1, which c/k is not."
        ]
        if stochastic:
            why.append(
                "There is no theorem for AMD with stochastic gradients; a decaying step keeps the noise small."
            )
        elif kinks:
            why.append("f has kinks: no t is admissible, and what AMD does with any is empirical.")
        t = None if decays else admissible_step(L, gamma)
    elif theorem == "accelerated stochastic":
        t = None if kinks else a / (math.sqrt(8) * L)
        why = ["ASMD: the theorem is for a constant step; with t it runs on t·f."]
    elif storage == "primal" and not exact:
        why = [
            "A primal-stored pair makes an error e in every step, so U = e/t grows as t shrinks: keep t constant."
        ]
    elif kinks or stochastic:
        t = None
        decays = True
        why = [
            "Σ t = ∞ and Σ t² < ∞ hold for c/k, but its bound falls like 1/log k; that of c/√k, like log k/√k."
        ]
    rule: Extension = "root_reciprocal" if decays else "min"
    certain = alpha.how != "sampled" and (smoothness.how != "sampled" or kinks)
    return Advice(t, gamma, rule, certain, (f"α = {alpha}, L_f = {smoothness}.", *why))
