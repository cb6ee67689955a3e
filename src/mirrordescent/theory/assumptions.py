"""What the theorems assume of a map and of a problem, and whether it holds, in words.

A largest value over samples is a lower bound on the true one: samples can refute an assumption, never prove it. So
what was only sampled is *not known*, unless a sample contradicts it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from mirrordescent.domains import Domain, WholeSpace
from mirrordescent.mirrors import Conjugate, MirrorMap
from mirrordescent.problems import (
    SVM,
    LeastSquares,
    LogisticRegression,
    MatrixGame,
    PoissonTomography,
    Problem,
    Quadratic,
    TVInpainting,
)
from mirrordescent.theory.constants import Constant, MapConstants, ProblemConstants
from mirrordescent.theory.curvature import Gradient, any_jumps, asymmetry, curvature_range, smallest_secant
from mirrordescent.theory.geometry import inside
from mirrordescent.trees import Tree, leaves, norm, tree_map

Answer = Literal["holds", "does not hold", "not known"]
FAR = 1e3  # how much farther out, and farther in, curvature is probed
COLLAPSE = 1e-2  # by which factor it may fall there and still count as bounded below
CONVEX = (Quadratic, LeastSquares, LogisticRegression, SVM, MatrixGame, TVInpainting, PoissonTomography)


@dataclass(frozen=True)
class Verdict:
    """An assumption, whether it holds, and why, in plain words."""

    assumption: str
    answer: Answer
    because: str

    def __str__(self) -> str:
        return f"{self.assumption}: {self.answer}. {self.because}"


def nearby_points(x0: Tree, domain: Domain, generator: Generator, count: int = 3) -> list[Tree]:
    """Return a start and points around it, all inside a domain, at distances of its own size or 1 per entry."""

    def perturb(leaf: Tensor) -> Tensor:
        noise = torch.randn(leaf.shape, generator=generator, device=generator.device, dtype=leaf.dtype)
        return leaf + float(leaf.square().mean().sqrt().clamp(min=1)) * noise.to(leaf.device)

    return [inside(x, domain) for x in (x0, *(tree_map(perturb, x0) for _ in range(count)))]


def map_verdicts(
    mirror: MirrorMap, geometry: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree], constants: MapConstants
) -> list[Verdict]:
    """Judge a map as used in a geometry: its own, M with a surrogate inverse, or (M*)*, which is known by ∇M*."""
    conjugate = isinstance(geometry, Conjugate)
    field: Gradient = geometry.to_primal if conjugate else geometry.to_dual
    name, at = ("∇M*", duals) if conjugate else ("∇ψ", points)
    lowest = curvature_range(field, at)[0] if constants.lowest is None else constants.lowest
    lowest = min(lowest, smallest_secant(field, at))
    return [
        _is_gradient(mirror, field, name, at),
        _is_monotone(name, lowest, constants),
        _is_strongly_convex(mirror, geometry, points, lowest, constants),
        _is_continuous(mirror, field, name, at),
        _is_inverted(mirror, geometry, points, duals),
    ]


def _by_construction(mirror: MirrorMap) -> bool:
    """Tell whether a map is one of the library, whose formulas are gradients of potentials and proven elsewhere."""
    return type(mirror).__module__.startswith("mirrordescent.")


def _is_gradient(mirror: MirrorMap, field: Gradient, name: str, points: Sequence[Tree]) -> Verdict:
    measured = max(asymmetry(field, x) for x in points)
    assumption = f"{name} is the gradient of a function"
    if measured > _root_eps(points):
        return Verdict(assumption, "does not hold", f"Its Jacobian is not symmetric, by {measured:.1e} of its size.")
    because = f"Its Jacobian is symmetric at {len(points)} points, to {measured:.0e}."
    return Verdict(assumption, "holds" if _by_construction(mirror) else "not known", because)


def _is_monotone(name: str, lowest: float, constants: MapConstants) -> Verdict:
    assumption = f"{name} is monotone, so that its potential is convex"
    size = constants.smoothness.estimate
    if lowest < -1e-6 * (1 + size if math.isfinite(size) else 1):
        because = f"Along some direction the curvature is {lowest:.3g}: the map is not monotone."
        return Verdict(assumption, "does not hold", because)
    if constants.alpha.how != "sampled" or constants.smoothness.how == "certified":
        return Verdict(assumption, "holds", "By construction.")
    return Verdict(assumption, "not known", f"The smallest curvature found is {lowest:.3g}; that is no proof.")


def _is_strongly_convex(
    mirror: MirrorMap, geometry: MirrorMap, points: Sequence[Tree], lowest: float, constants: MapConstants
) -> Verdict:
    assumption, alpha = "ψ is strongly convex", constants.alpha
    if isinstance(geometry, Conjugate):
        if alpha.value <= 0:
            return Verdict(assumption, "does not hold", "∇M* is not monotone, so it is no inverse mirror map.")
        because = (
            f"∇M* has slopes of at most {constants.dual_smoothness.value:.4g} where sampled, so α = {alpha} there."
        )
        return Verdict(assumption, "not known", because)
    if alpha.how != "sampled":
        if alpha.value == 0:
            because = f"The curvature of {type(mirror).__name__} has no positive lower bound on its domain."
            return Verdict(assumption, "does not hold", because)
        stated = mirror.strong_convexity
        if stated is not None and stated.p == 2 and lowest < alpha.value * (1 - 1e-3):
            because = f"The map states α = {alpha.value:.4g}, but a curvature of {lowest:.4g} was found."
            return Verdict(assumption, "does not hold", because)
        return Verdict(assumption, "holds", f"α = {alpha}.")
    if lowest <= 0:
        return Verdict(assumption, "does not hold", f"A curvature of {lowest:.3g} was found.")
    far = _curvature_far_away(geometry, points)
    if far < COLLAPSE * lowest:
        because = f"The curvature falls from {lowest:.3g} to {far:.3g} at points {FAR:g} times as far out or in."
        return Verdict(assumption, "does not hold", because)
    return Verdict(assumption, "not known", f"The smallest curvature found is {lowest:.3g}; α = {alpha} is a guess.")


def _curvature_far_away(mirror: MirrorMap, points: Sequence[Tree]) -> float:
    if not isinstance(mirror.primal_domain, WholeSpace):
        return math.inf
    scaled = [tree_map(lambda leaf, s=s: s * leaf, x) for x in points for s in (FAR, 1 / FAR)]
    return curvature_range(mirror.to_dual, scaled)[0]


def _is_continuous(mirror: MirrorMap, field: Gradient, name: str, points: Sequence[Tree]) -> Verdict:
    assumption = f"{name} is continuous, so that the potential is C¹"
    if any(getattr(part, "activation", None) == "leaky_relu" for part in mirror.modules()):
        return Verdict(assumption, "does not hold", "The activation is leaky_relu, whose slope jumps; take softplus.")
    if _by_construction(mirror):
        return Verdict(assumption, "holds", "By construction.")
    if any_jumps(field, points):
        return Verdict(assumption, "does not hold", "It jumps between two points of the sample, as at a kink.")
    return Verdict(assumption, "not known", "No jump was found on the segments between sampled points.")


def _is_inverted(mirror: MirrorMap, geometry: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree]) -> Verdict:
    assumption = "the way back is the inverse of the way there"
    worst = round_trip_error(mirror, points, duals)
    if isinstance(geometry, Conjugate) and geometry is not mirror:
        because = (
            "Dual-stored: the run is exact mirror descent for (M*)*, and ∇M enters only through y⁰. "
            f"{'The map says that it is exact, but as' if mirror.exact else 'As'} a pair it is inconsistent "
            f"by {worst:.2g} of ‖x‖."
        )
        return Verdict(assumption, "holds", because)
    if worst <= 10 * _root_eps(points):
        return Verdict(assumption, "holds", f"∇ψ*(∇ψ(x)) is x to {worst:.0e} of ‖x‖.")
    claim = "The map says that it is exact, but " if mirror.exact else ""
    because = f"{claim}∇ψ*(∇ψ(x)) differs from x by up to {worst:.2g} of ‖x‖: every step makes an error."
    return Verdict(assumption, "does not hold", because)


@torch.no_grad()
def round_trip_error(mirror: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree]) -> float:
    """Return the largest ‖∇ψ*(y) − x‖ / ‖x‖, given y = ∇ψ(x), which may have been dear."""
    pairs = ((norm(tree_map(torch.sub, mirror.to_primal(y), x)), norm(x)) for x, y in zip(points, duals, strict=True))
    return max(float((error / size.clamp(min=torch.finfo(size.dtype).tiny)).max()) for error, size in pairs)


def is_exact(mirror: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree]) -> bool:
    """Tell whether ``to_primal`` inverts ``to_dual``, y = ∇ψ(x), at these points to rounding, whatever the map says."""
    return round_trip_error(mirror, points, duals) <= 10 * _root_eps(points)


def problem_verdicts(problem: Problem, points: Sequence[Tree], constants: ProblemConstants) -> list[Verdict]:
    """Judge a problem: convexity and smoothness."""
    return [_is_convex(problem, points), _is_smooth(constants.smoothness)]


def _is_convex(problem: Problem, points: Sequence[Tree]) -> Verdict:
    assumption = "f is convex"
    if isinstance(problem, CONVEX) and not isinstance(problem, Quadratic):
        return Verdict(assumption, "holds", "By construction.")
    lowest = min(curvature_range(problem.grad, points)[0], smallest_secant(problem.grad, points))
    if lowest < -_root_eps(points):
        because = f"Along some direction the curvature is {lowest:.3g}: no theorem applies, and bounds promise nothing."
        return Verdict(assumption, "does not hold", because)
    if isinstance(problem, Quadratic):
        return Verdict(assumption, "holds", "A is positive semidefinite.")
    return Verdict(assumption, "not known", f"The smallest curvature found is {lowest:.3g}; that is no proof.")


def _is_smooth(smoothness: Constant) -> Verdict:
    assumption = "∇f is Lipschitz"
    if math.isinf(smoothness.value):
        return Verdict(assumption, "does not hold", "f has kinks, at which its gradient jumps: L_f is infinite.")
    answer: Answer = "not known" if smoothness.how == "sampled" else "holds"
    return Verdict(assumption, answer, f"L_f = {smoothness}.")


def _root_eps(points: Sequence[Tree]) -> float:
    return float(torch.finfo(next(leaves(points[0])).dtype).eps) ** 0.5
