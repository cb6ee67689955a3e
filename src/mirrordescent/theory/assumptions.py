"""What the theorems assume of a map and of a problem, and whether it holds, in words.

A largest value over samples is a lower bound on the true one: samples can refute an assumption,
never prove it. So what was only sampled is *not known*, unless a sample contradicts it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Generator, Tensor

from mirrordescent.domains import Domain, WholeSpace
from mirrordescent.mirrors import Conjugate, MirrorMap
from mirrordescent.parts import written_together
from mirrordescent.problems import Problem
from mirrordescent.theory import curvature
from mirrordescent.theory.constants import MapConstants, ProblemConstants
from mirrordescent.theory.geometry import difference, inside
from mirrordescent.trees import Tree, leaves, norm, tree_map

Answer = Literal["holds", "does not hold", "not known"]
ANSWERS: dict[bool | None, Answer] = {True: "holds", False: "does not hold", None: "not known"}
FAR = 1e3  # how much farther out, and farther in, curvature is probed
COLLAPSE = 1e-2  # by which factor it may fall there and still count as bounded below


@dataclass(frozen=True)
class Verdict:
    """An assumption, whether it holds, and why, in plain words."""

    assumption: str
    answer: Answer
    because: str

    @classmethod
    def of(
        cls, assumption: str, holds: bool | None, because: str, otherwise: str | None = None
    ) -> Verdict:
        """Make one of a truth, or None where it is not known. ``otherwise`` is the reason if it
        does not hold.
        """
        return cls(
            assumption, ANSWERS[holds], otherwise if holds is False and otherwise else because
        )

    def __str__(self) -> str:
        return f"{self.assumption}: {self.answer}. {self.because}"


def nearby_points(x0: Tree, domain: Domain, generator: Generator, count: int = 3) -> list[Tree]:
    """Return a start and points around it, all inside a domain, at distances of its own size or 1
    per entry.
    """

    def perturb(leaf: Tensor) -> Tensor:
        noise = torch.randn(
            leaf.shape, generator=generator, device=generator.device, dtype=leaf.dtype
        )
        return leaf + float(leaf.square().mean().sqrt().clamp(min=1)) * noise.to(leaf.device)

    return [inside(x, domain) for x in (x0, *(tree_map(perturb, x0) for _ in range(count)))]


def map_verdicts(
    mirror: MirrorMap,
    geometry: MirrorMap,
    points: Sequence[Tree],
    duals: Sequence[Tree],
    constants: MapConstants,
) -> list[Verdict]:
    """Judge a map as used in a geometry: its own, M with a surrogate inverse, or (M*)*, which is
    known by ∇M*.
    """
    judged = _Map(mirror, geometry, points, duals, constants)
    of_gradient = [judged.gradient(), judged.of_potential(), judged.monotone()]
    return [*of_gradient, judged.strongly_convex(), judged.continuous(), judged.inverted()]


class _Map:
    """What is assumed of a map: see :func:`map_verdicts`."""

    def __init__(
        self,
        mirror: MirrorMap,
        geometry: MirrorMap,
        points: Sequence[Tree],
        duals: Sequence[Tree],
        of_map: MapConstants,
    ) -> None:
        self.mirror = mirror
        self.geometry = geometry
        self.points = points
        self.duals = duals
        self.constants = of_map
        self.conjugate = isinstance(geometry, Conjugate)
        self.field: curvature.Gradient = geometry.to_primal if self.conjugate else geometry.to_dual
        self.name, self.at = ("∇M*", duals) if self.conjugate else ("∇ψ", points)
        lowest = (
            curvature.curvature_range(self.field, self.at)[0]
            if of_map.lowest is None
            else of_map.lowest
        )
        self.lowest = min(lowest, curvature.smallest_secant(self.field, self.at))

    def states(self, *claims: str, of: Sequence[str] = ("_to_dual", "to_dual")) -> bool:
        """Tell whether the map claims something of its own ∇ψ: a subclass with another one inherits
        no claims.
        """
        cls = type(self.mirror)
        own = vars(self.mirror)
        return any(claim in own or written_together(cls, claim, *of) for claim in claims)

    def gradient(self) -> Verdict:
        measured = max(curvature.asymmetry(self.field, x) for x in self.at)
        holds = (
            False
            if measured > _root_eps(self.at)
            else (self.mirror.proven and self.states("proven")) or None
        )
        symmetric = f"Its Jacobian is symmetric at {len(self.at)} points, to {measured:.0e}."
        skew = f"Its Jacobian is not symmetric, by {measured:.1e} of its size."
        return Verdict.of(f"{self.name} is the gradient of a function", holds, symmetric, skew)

    def of_potential(self) -> Verdict:
        """Divergences are made of ψ and steps of ∇ψ: nothing else tells whether they belong
        together.
        """
        value = (
            cast(Conjugate, self.geometry).dual_value if self.conjugate else self.geometry.potential
        )
        errors = [
            curvature.potential_error(value, self.field, x, self.geometry.primal_domain)
            for x in self.at
        ]
        known = [error for error in errors if error is not None]
        worst = max((math.inf if math.isnan(error) else error for error in known), default=math.nan)
        proven = self.mirror.proven and self.states(
            "proven", of=("_to_dual", "to_dual", "_potential", "potential")
        )
        holds = False if worst > _root_eps(self.at) else proven or None
        because = f"They differ by {worst:.0e} of its size at {len(known)} points."
        if not known:
            holds = None
            because = "The potential passes no derivatives."
        differs = f"They differ by {worst:.2g} of its size, so that divergences, energies and bounds are not the map's."
        return Verdict.of(f"∇ of the potential is the map, {self.name}", holds, because, differs)

    def monotone(self) -> Verdict:
        lowest = self.lowest
        alpha = self.constants.alpha
        L = self.constants.smoothness
        negative = lowest < -1e-6 * (1 + L.estimate if math.isfinite(L.estimate) else 1)
        known = True if alpha.how != "sampled" or L.how == "certified" else None
        because = (
            "By construction."
            if known
            else f"The smallest curvature found is {lowest:.3g}; that is no proof."
        )
        otherwise = f"Along some direction the curvature is {lowest:.3g}: the map is not monotone."
        convex = f"{self.name} is monotone, so that its potential is convex"
        return Verdict.of(convex, False if negative else known, because, otherwise)

    def strongly_convex(self) -> Verdict:
        alpha = self.constants.alpha
        lowest = self.lowest
        stated = self.mirror.strong_convexity
        holds: bool | None = False
        if self.conjugate and alpha.value <= 0:
            because = "∇M* is not monotone, so it is no inverse mirror map."
        elif self.conjugate:
            slope = self.constants.dual_smoothness.value
            holds = None
            because = f"∇M* has slopes of at most {slope:.4g} where sampled, so α = {alpha} there."
        elif alpha.how != "sampled" and alpha.value == 0:
            because = f"The curvature of {type(self.mirror).__name__} has no positive lower bound on its domain."
        elif (
            alpha.how != "sampled"
            and stated
            and stated.p == 2
            and lowest < alpha.value * (1 - 1e-3)
        ):
            because = (
                f"The map states α = {alpha.value:.4g}, but a curvature of {lowest:.4g} was found."
            )
        elif alpha.how != "sampled":
            holds = True
            because = f"α = {alpha}."
        elif lowest <= 0:
            because = f"A curvature of {lowest:.3g} was found."
        elif (far := self.curvature_far_away()) < COLLAPSE * lowest:
            because = f"The curvature falls from {lowest:.3g} to {far:.3g} at points {FAR:g} times as far out or in."
        else:
            holds = None
            because = f"The smallest curvature found is {lowest:.3g}; α = {alpha} is a guess."
        return Verdict.of("ψ is strongly convex", holds, because)

    def curvature_far_away(self) -> float:
        if not isinstance(self.geometry.primal_domain, WholeSpace):
            return math.inf
        scaled = [
            tree_map(lambda leaf, s=s: s * leaf, x) for x in self.points for s in (FAR, 1 / FAR)
        ]
        found = [curvature.extreme_eigenvalues(self.geometry.to_dual, x) for x in scaled]
        low, high = (torch.cat(each) for each in zip(*found, strict=True))
        lost = (
            low.abs() < curvature.ROUNDING * torch.finfo(low.dtype).eps * high
        )  # beside huge curvatures
        return float(torch.where(lost, math.inf, low).min())

    def continuous(self) -> Verdict:
        stated = self.mirror.continuous
        holds = None
        because = "No jump was found on the segments between sampled points."
        if stated is False:
            holds = False
            because = "It jumps by construction, as with the activation leaky_relu; take softplus."
        elif stated and self.states("continuous", "proven"):
            holds = True
            because = "By construction."
        elif curvature.any_jumps(self.field, self.at):
            holds = False
            because = "It jumps between two points of the sample, as at a kink."
        return Verdict.of(f"{self.name} is continuous, so that the potential is C¹", holds, because)

    def inverted(self) -> Verdict:
        worst = round_trip_error(self.mirror, self.points, self.duals)
        claim = "The map says that it is exact, but " if self.mirror.exact else ""
        holds = True
        because = f"∇ψ*(∇ψ(x)) is x to {worst:.0e} of ‖x‖."
        if self.conjugate and self.geometry is not self.mirror:
            because = (
                "Dual-stored: the run is exact mirror descent for (M*)*, and ∇M enters only through y⁰. "
                f"{f'{claim}as' if claim else 'As'} a pair it is inconsistent by {worst:.2g} of ‖x‖."
            )
        elif worst > 10 * _root_eps(self.points):
            holds = False
            differs = f"∇ψ*(∇ψ(x)) differs from x by up to {worst:.2g} of ‖x‖"
            because = f"{claim}{differs}: every step makes an error."
        return Verdict.of("the way back is the inverse of the way there", holds, because)


@torch.no_grad()
def round_trip_error(mirror: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree]) -> float:
    """Return the largest ‖∇ψ*(y) − x‖ / ‖x‖, given y = ∇ψ(x), which may have been expensive to
    compute.

    Points near the origin count with a hundredth of the largest ‖x‖: beside a smaller one all
    rounding is large.
    """
    errors = torch.cat(
        [norm(difference(mirror.to_primal(y), x)) for x, y in zip(points, duals, strict=True)]
    )
    sizes = torch.cat([norm(x) for x in points])
    return float(
        (
            errors / sizes.clamp(min=max(float(sizes.max()) / 100, torch.finfo(sizes.dtype).tiny))
        ).max()
    )


def is_exact(mirror: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree]) -> bool:
    """Tell whether ``to_primal`` inverts ``to_dual``, y = ∇ψ(x), at these points to rounding,
    whatever the map says.
    """
    return round_trip_error(mirror, points, duals) <= 10 * _root_eps(points)


@torch.no_grad()
def runs_exactly(
    mirror: MirrorMap, dual_stored: bool, geometry: MirrorMap, points: Sequence[Tree]
) -> bool:
    """Tell whether steps with a map are exact mirror steps of a geometry, at these points, whatever
    the map says.

    Dual-stored methods apply only ∇ψ*, primal-stored ones both ways, one of which has to invert the
    other.
    """
    duals = [mirror.to_dual(x) for x in points]
    if geometry is mirror:
        return is_exact(mirror, points, duals)
    if dual_stored:
        there, here = ([each.to_primal(y) for y in duals] for each in (mirror, geometry))
    elif not is_exact(mirror, points, duals):
        return False
    else:
        there = duals
        here = [geometry.to_dual(x) for x in points]
    pairs = zip(there, here, strict=True)
    return all(
        bool((norm(difference(a, b)) <= 10 * _root_eps(points) * (1 + norm(b))).all())
        for a, b in pairs
    )


def problem_verdicts(
    problem: Problem, points: Sequence[Tree], constants: ProblemConstants
) -> list[Verdict]:
    """Judge a problem: convexity and smoothness."""
    smoothness = constants.smoothness
    convex = problem.convex
    because = "By construction."
    if not convex:
        smallest = curvature.curvature_range(problem.grad, points)[0]
        lowest = min(smallest, curvature.smallest_secant(problem.grad, points))
        because = f"The smallest curvature found is {lowest:.3g}; that is no proof."
        negative = lowest < -_root_eps(points)
        if negative or convex is False:
            found = f"Along some direction the curvature is {lowest:.3g}"
            why = found if negative else "The problem says that it is not"
            convex = False
            because = f"{why}: no theorem applies, and bounds promise nothing."
    smooth = (
        False if math.isinf(smoothness.value) else None if smoothness.how == "sampled" else True
    )
    kinks = "f has kinks, at which its gradient jumps: L_f is infinite."
    lipschitz = Verdict.of("∇f is Lipschitz", smooth, f"L_f = {smoothness}.", kinks)
    return [Verdict.of("f is convex", convex, because), lipschitz]


def _root_eps(points: Sequence[Tree]) -> float:
    return float(torch.finfo(next(leaves(points[0])).dtype).eps) ** 0.5
