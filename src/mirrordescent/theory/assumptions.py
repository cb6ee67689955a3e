"""The assumptions of the theorems on a map and on a problem, checked and explained in words.

A largest value over samples is a lower bound on the true one. Samples can therefore refute an
assumption, but not prove it: an assumption that was only sampled is *not known*, unless a sample
contradicts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from mirrordescent._internal.deprecation import renamed_property
from mirrordescent.domains import Domain, WholeSpace
from mirrordescent.mirrors import Conjugate, MirrorMap
from mirrordescent.parts import claim_holds
from mirrordescent.problems import Problem
from mirrordescent.problems.origin import user_definition
from mirrordescent.problems.sizes import entry_sizes
from mirrordescent.problems.statements import states_function
from mirrordescent.theory import curvature
from mirrordescent.theory.constants import MapConstants, ProblemConstants
from mirrordescent.theory.geometry import difference, move_inside
from mirrordescent.trees import Tree, leaves, norm, tree_map

Answer = Literal["holds", "does not hold", "not known"]
ANSWERS: dict[bool | None, Answer] = {True: "holds", False: "does not hold", None: "not known"}

FAR = 1e3
"""Factor by which points are scaled up and down to examine a function far away and near 0."""

COLLAPSE = 1e-2
"""Factor by which the curvature may fall far away and still count as bounded below."""


@dataclass(frozen=True)
class Verdict:
    """An assumption, whether it holds, and the reason in plain words."""

    assumption: str
    answer: Answer
    reason: str

    because = renamed_property("because", "reason")

    @classmethod
    def of(
        cls, assumption: str, holds: bool | None, reason: str, reason_against: str | None = None
    ) -> Verdict:
        """Return a verdict.

        Args:
            assumption: Statement that was checked.
            holds: Whether it holds; None if that is not known.
            reason: Explanation.
            reason_against: Explanation to use instead if the assumption does not hold.
        """
        if holds is False and reason_against:
            reason = reason_against
        return cls(assumption, ANSWERS[holds], reason)

    def __str__(self) -> str:
        return f"{self.assumption}: {self.answer}. {self.reason}"


def sample_nearby_points(
    x0: Tree, domain: Domain, generator: Generator, count: int = 3, length: float = 1.0
) -> list[Tree]:
    """Return a start and random points around it, all in the interior of a domain.

    The noise has the root mean square of each leaf of the start as its standard deviation.

    Args:
        x0: Start.
        domain: Domain of the points.
        generator: Random generator for the noise.
        count: Number of points besides the start.
        length: Standard deviation for leaves that are 0, such as
            :func:`~mirrordescent.problems.sizes.natural_length`.
    """
    sizes = entry_sizes(x0, length)

    def perturb(leaf: Tensor, size: Tensor) -> Tensor:
        noise = torch.randn(
            leaf.shape, generator=generator, device=generator.device, dtype=leaf.dtype
        )
        return leaf + size * noise.to(leaf.device)

    points = [x0, *(tree_map(perturb, x0, sizes) for _ in range(count))]
    return [move_inside(x, domain, sizes) for x in points]


def map_verdicts(
    mirror: MirrorMap,
    geometry: MirrorMap,
    points: Sequence[Tree],
    duals: Sequence[Tree],
    constants: MapConstants,
) -> list[Verdict]:
    """Check the assumptions of the theorems on a map.

    Args:
        mirror: Map as methods use it.
        geometry: Exact geometry of the run: the map itself, M with its true inverse, or (M*)*. The
            last is known only by ∇M*, so that its checks are made at the dual points.
        points: Primal points to sample at.
        duals: The images of the points under the map.
        constants: α and L_ψ of the geometry.
    """
    checks = _MapChecks(mirror, geometry, points, duals, constants)
    return [
        checks.is_gradient_field(),
        checks.potential_matches(),
        checks.is_monotone(),
        checks.is_strongly_convex(),
        checks.is_continuous(),
        checks.inverse_matches(),
    ]


class _MapChecks:
    """The checks of :func:`map_verdicts`, one method an assumption."""

    def __init__(
        self,
        mirror: MirrorMap,
        geometry: MirrorMap,
        points: Sequence[Tree],
        duals: Sequence[Tree],
        constants: MapConstants,
    ) -> None:
        self.mirror = mirror
        self.geometry = geometry
        self.points = points
        self.duals = duals
        self.constants = constants
        self.field: curvature.Gradient
        self.potential: Callable[[Tree], Tensor]
        self.samples: Sequence[Tree]
        self.is_conjugate = isinstance(geometry, Conjugate)
        if isinstance(geometry, Conjugate):
            self.field_name = "∇M*"
            self.field = geometry.to_primal
            self.potential = geometry.dual_value
            self.samples = duals
        else:
            self.field_name = "∇ψ"
            self.field = geometry.to_dual
            self.potential = geometry.potential
            self.samples = points
        smallest = constants.smallest_curvature
        if smallest is None:
            smallest = curvature.curvature_range(self.field, self.samples)[0]
        smallest_secant = curvature.smallest_secant(self.field, self.samples)
        self.smallest_curvature = min(smallest, smallest_secant)

    def claims(self, *names: str, about: Sequence[str] = ("_to_dual", "to_dual")) -> bool:
        """Tell whether the map makes one of these claims about its own methods.

        A subclass that overrides one of the methods does not inherit claims about them.
        """
        for name in names:
            if name in vars(self.mirror):
                return True
            if claim_holds(type(self.mirror), name, *about):
                return True
        return False

    def is_gradient_field(self) -> Verdict:
        """∇ψ is the gradient of a function. Its Jacobian is then symmetric everywhere.

        All theorems need this: divergences B_ψ exist only for a potential ψ.
        """
        error = max(curvature.asymmetry(self.field, x) for x in self.samples)
        holds: bool | None = None
        if error > _root_epsilon(self.samples):
            holds = False
        elif self.mirror.proven and self.claims("proven"):
            holds = True
        return Verdict.of(
            f"{self.field_name} is the gradient of a function",
            holds,
            f"Its Jacobian is symmetric at {len(self.samples)} points, to {error:.0e}.",
            f"Its Jacobian is not symmetric, by {error:.1e} of its size.",
        )

    def potential_matches(self) -> Verdict:
        """The gradient of the potential ψ is the map ∇ψ.

        Divergences are computed from ψ and steps from ∇ψ, so that bounds on a run make sense only
        if both belong together.
        """
        assumption = f"∇ of the potential is the map, {self.field_name}"
        errors = []
        for x in self.samples:
            error = curvature.potential_error(
                self.potential, self.field, x, self.geometry.primal_domain
            )
            if error is not None:
                errors.append(math.inf if math.isnan(error) else error)
        if not errors:
            return Verdict.of(assumption, None, "The potential passes no derivatives.")
        largest = max(errors)
        methods = ("_to_dual", "to_dual", "_potential", "potential")
        holds: bool | None = None
        if largest > _root_epsilon(self.samples):
            holds = False
        elif self.mirror.proven and self.claims("proven", about=methods):
            holds = True
        return Verdict.of(
            assumption,
            holds,
            f"They differ by {largest:.0e} of its size at {len(errors)} points.",
            f"They differ by {largest:.2g} of its size, so that divergences, energies and bounds "
            "do not belong to the map.",
        )

    def is_monotone(self) -> Verdict:
        """∇ψ is monotone, ⟨∇ψ(a) − ∇ψ(b), a − b⟩ ≥ 0, which means that ψ is convex."""
        smallest = self.smallest_curvature
        alpha = self.constants.alpha
        smoothness = self.constants.smoothness
        scale = abs(smoothness.estimate)
        if not math.isfinite(scale):
            scale = curvature.curvature_range(self.field, self.samples)[1]
        holds: bool | None = None
        reason = f"The smallest curvature found is {smallest:.3g}; this is no proof."
        if not alpha.sampled or smoothness.source == "certified":
            holds = True
            reason = "By construction."
        if smallest < -1e-6 * scale:
            holds = False
            reason = f"Along some direction the curvature is {smallest:.3g}: it is not monotone."
        return Verdict.of(
            f"{self.field_name} is monotone, so that its potential is convex", holds, reason
        )

    def is_strongly_convex(self) -> Verdict:
        """ψ is α-strongly convex with α > 0 on its whole domain, ∇²ψ ≥ α I.

        All bounds contain 1/α.
        """
        holds, reason = self._conjugate_convexity() if self.is_conjugate else self._convexity()
        return Verdict.of("ψ is strongly convex", holds, reason)

    def _conjugate_convexity(self) -> tuple[bool | None, str]:
        """Judge (M*)*: it is strongly convex where ∇M* is Lipschitz."""
        alpha = self.constants.alpha
        if alpha.value <= 0:
            return False, "∇M* is not monotone, so it is no inverse mirror map."
        slope = self.constants.dual_smoothness.value
        return None, f"∇M* has slopes of at most {slope:.4g} where sampled, so α = {alpha} there."

    def _convexity(self) -> tuple[bool | None, str]:
        alpha = self.constants.alpha
        smallest = self.smallest_curvature
        if not alpha.sampled:
            return self._stated_convexity()
        if smallest <= 0:
            return False, f"A curvature of {smallest:.3g} was found."
        far = self._curvature_far_away()
        if far < COLLAPSE * smallest:
            return False, (
                f"The curvature falls from {smallest:.3g} to {far:.3g} at points that are "
                f"{FAR:g} times as far from the origin, or as near to it."
            )
        return None, f"The smallest curvature found is {smallest:.3g}; α = {alpha} is a guess."

    def _stated_convexity(self) -> tuple[bool, str]:
        """Compare the α that a map states with the curvatures found."""
        alpha = self.constants.alpha
        smallest = self.smallest_curvature
        if alpha.value == 0:
            name = type(self.mirror).__name__
            return False, f"The curvature of {name} has no positive lower bound on its domain."
        stated = self.mirror.strong_convexity
        euclidean = stated is not None and stated.p == 2
        if euclidean and smallest < alpha.value * (1 - 1e-3):
            return False, (
                f"The map states α = {alpha.value:.4g}, but a curvature of {smallest:.4g} was "
                "found."
            )
        return True, f"α = {alpha}."

    def _curvature_far_away(self) -> float:
        """Return the smallest curvature at points scaled by FAR and 1/FAR, on the whole space."""
        if not isinstance(self.geometry.primal_domain, WholeSpace):
            return math.inf
        smallest = []
        largest = []
        for x in self.points:
            for scale in (FAR, 1 / FAR):
                scaled = tree_map(lambda leaf, scale=scale: scale * leaf, x)
                low, high = curvature.extreme_eigenvalues(self.geometry.to_dual, scaled)
                smallest.append(low)
                largest.append(high)
        low = torch.cat(smallest)
        high = torch.cat(largest)
        # Small eigenvalues are lost in the rounding of much larger ones.
        lost = low.abs() < curvature.ROUNDING * torch.finfo(low.dtype).eps * high
        return float(torch.where(lost, math.inf, low).min())

    def is_continuous(self) -> Verdict:
        """∇ψ is continuous, so that ψ is continuously differentiable, as a mirror map must be."""
        stated = self.mirror.continuous
        holds: bool | None = None
        reason = "No jump was found on the segments between sampled points."
        if stated is False:
            holds = False
            reason = "It jumps by construction, as with the activation leaky_relu; take softplus."
        elif stated and self.claims("continuous", "proven"):
            holds = True
            reason = "By construction."
        elif curvature.has_jump(self.field, self.samples):
            holds = False
            reason = "It jumps between two points of the sample, as at a kink."
        return Verdict.of(
            f"{self.field_name} is continuous, so that the potential is C¹", holds, reason
        )

    def inverse_matches(self) -> Verdict:
        """∇ψ* is the inverse of ∇ψ.

        If not, every primal-stored step makes an error. Dual-stored runs are exact mirror descent
        for (M*)* in any case.
        """
        error = round_trip_error(self.mirror, self.points, self.duals)
        holds = True
        reason = f"∇ψ*(∇ψ(x)) is x to {error:.0e} of ‖x‖."
        if self.is_conjugate and self.geometry is not self.mirror:
            beginning = "As"
            if self.mirror.exact:
                beginning = "The map says that it is exact, but as"
            reason = (
                "Dual-stored: the run is exact mirror descent for (M*)*, and ∇M enters only "
                f"through y⁰. {beginning} a pair it is inconsistent by {error:.2g} of ‖x‖."
            )
        elif error > 10 * _root_epsilon(self.points):
            holds = False
            reason = (
                f"∇ψ*(∇ψ(x)) differs from x by up to {error:.2g} of ‖x‖: every step makes an error."
            )
            if self.mirror.exact:
                reason = f"The map says that it is exact, but {reason}"
        return Verdict.of("∇ψ* is the inverse of ∇ψ", holds, reason)


@torch.no_grad()
def round_trip_error(mirror: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree]) -> float:
    """Return the largest ‖∇ψ*(y) − x‖ / ‖x‖ over all samples.

    If ‖x‖ is less than a hundredth of the largest ‖x‖, the error is divided by that hundredth
    instead, because rounding is large compared with points near the origin.

    Args:
        mirror: Map to examine.
        points: Points x.
        duals: The images y = ∇ψ(x), which may be expensive to compute.
    """
    errors = []
    for x, y in zip(points, duals, strict=True):
        errors.append(norm(difference(mirror.to_primal(y), x)))
    sizes = torch.cat([norm(x) for x in points])
    smallest_size = max(float(sizes.max()) / 100, torch.finfo(sizes.dtype).tiny)
    return float((torch.cat(errors) / sizes.clamp(min=smallest_size)).max())


def inverts_exactly(mirror: MirrorMap, points: Sequence[Tree], duals: Sequence[Tree]) -> bool:
    """Test whether ``to_primal`` inverts ``to_dual`` at some points, to rounding.

    The claim ``mirror.exact`` is not used.

    Args:
        mirror: Map to examine.
        points: Points x.
        duals: The images y = ∇ψ(x).
    """
    return round_trip_error(mirror, points, duals) <= 10 * _root_epsilon(points)


@torch.no_grad()
def takes_exact_steps(
    mirror: MirrorMap, dual_stored: bool, geometry: MirrorMap, points: Sequence[Tree]
) -> bool:
    """Test whether steps with a map are exact mirror steps of a geometry, at some points.

    Dual-stored methods apply only ∇ψ*, so that only ∇ψ* must agree. Primal-stored methods apply
    both directions, which must be inverse to each other. The claim ``mirror.exact`` is not used.

    Args:
        mirror: Map of the run.
        dual_stored: Whether the method keeps its mirror iterate in the dual space.
        geometry: Exact map to compare with.
        points: Points to test at.
    """
    duals = [mirror.to_dual(x) for x in points]
    if geometry is mirror:
        return inverts_exactly(mirror, points, duals)
    if dual_stored:
        values = [mirror.to_primal(y) for y in duals]
        expected = [geometry.to_primal(y) for y in duals]
    else:
        if not inverts_exactly(mirror, points, duals):
            return False
        values = duals
        expected = [geometry.to_dual(x) for x in points]
    tolerance = 10 * _root_epsilon(points)
    for a, b in zip(values, expected, strict=True):
        # Rounding is large compared with samples that are much smaller than the others.
        size = norm(b).clamp(min=float(norm(b).max()) / 100)
        if not bool((norm(difference(a, b)) <= tolerance * size).all()):
            return False
    return True


def problem_verdicts(
    problem: Problem, points: Sequence[Tree], constants: ProblemConstants
) -> list[Verdict]:
    """Check the assumptions of the theorems on a problem: convexity and smoothness.

    Args:
        problem: Problem to examine.
        points: Points to sample at.
        constants: L_f and μ of the problem.
    """
    return [_convex(problem, points), _lipschitz(problem, constants)]


def _convex(problem: Problem, points: Sequence[Tree]) -> Verdict:
    """f is convex: all theorems assume it."""
    assumption = "f is convex"
    if problem.convex and not states_function(problem):
        return Verdict.of(assumption, True, "By construction.")
    smallest_eigenvalue, largest_eigenvalue = curvature.curvature_range(problem.grad, points)
    smallest_secant = curvature.smallest_secant(problem.grad, points)
    smallest = min(smallest_eigenvalue, smallest_secant)
    consequence = "no theorem applies, and bounds promise nothing."
    size = max(
        abs(smallest_eigenvalue),
        abs(largest_eigenvalue),
        curvature.secant_scale(problem.grad, points),
    )
    if smallest < -_root_epsilon(points) * size:
        reason = f"Along some direction the curvature is {smallest:.3g}: {consequence}"
        return Verdict.of(assumption, False, reason)
    if problem.convex is False:
        return Verdict.of(assumption, False, f"The problem says that it is not: {consequence}")
    if problem.convex:
        return Verdict.of(assumption, None, _stated(problem))
    reason = f"The smallest curvature found is {smallest:.3g}; this is no proof."
    return Verdict.of(assumption, None, reason)


def _stated(problem: Problem) -> str:
    """Return the reason of a verdict on a fact that a user's class states."""
    return f"Stated by {type(problem).__name__}, not disproved by samples."


def _lipschitz(problem: Problem, constants: ProblemConstants) -> Verdict:
    """∇f is Lipschitz with a finite L_f: Theorems 1 and 3 assume it."""
    smoothness = constants.smoothness
    assumption = "∇f is Lipschitz"
    if math.isinf(smoothness.value):
        kinks = "f has kinks, at which its gradient jumps: L_f is infinite."
        return Verdict.of(assumption, False, kinks)
    if not smoothness.sampled and user_definition(problem, "value", "grad", "smoothness"):
        reason = f"L_f = {smoothness.value:.4g}. {_stated(problem)}"
        return Verdict.of(assumption, None, reason)
    holds = None if smoothness.sampled else True
    return Verdict.of(assumption, holds, f"L_f = {smoothness}.")


def _root_epsilon(points: Sequence[Tree]) -> float:
    """Return the square root of the machine epsilon of the points' precision."""
    return float(torch.finfo(next(leaves(points[0])).dtype).eps) ** 0.5
