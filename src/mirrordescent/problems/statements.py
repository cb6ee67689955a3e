"""Statements of users' classes: which of them a bound rests on, and tests of them at samples.

A class of a user's may state that f is convex, what its gradient is, or how a lower bound is
computed. Samples can refute such a statement but not prove it. A bound that rests on statements
that survived the test is *conditional on* them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal, cast

import torch
from torch import Tensor

from mirrordescent.domains import Box, Domain, PositiveOrthant, WholeSpace
from mirrordescent.problems.base import Function, Problem, in_double
from mirrordescent.problems.fingerprint import code_digest
from mirrordescent.problems.fits import Fit
from mirrordescent.problems.operators import ADJOINT_TOLERANCE, Linear, random_like
from mirrordescent.problems.origin import in_library, parts_of, user_definition
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.problems.sizes import entry_sizes, inner_point, natural_length
from mirrordescent.problems.terms import Term
from mirrordescent.trees import Tree, dot, leaves, norm, tree_map

Way = Literal["minimiser", "saddle point", "gradients"]
"""How a lower bound is proven."""

FACTORS = (1.0, 0.3, 3.0, 0.03, 1.0)
"""Distances of the test points from the start, relative to the size of the start or the set."""

ROUNDING = 256
"""Rounding error of a value in units of the last place of the numbers that it is computed from."""

CONTRADICTION = 1000
"""Excess of a bound over a value that can be due to rounding, in units of the last place."""

_SADDLE_POINT = (
    "saddle_point",
    "lower_bound",
    "bound_of_pair",
    "tight_bound",
    "K",
    "K_adjoint",
    "prox_G_conjugate",
)
_TERM = (
    "value",
    "add_gradient",
    "K",
    "add_adjoint",
    "conjugate",
    "dual_gauge",
    "residual_bound",
    "deviation_bound",
    "scaled_weight",
    "convexity",
    "weakly_convex",
)
_GRADIENT = ("value", "grad", "misfit", "misfit_gradient", "observe", "observe_adjoint")
_FUNCTION = (*_GRADIENT, "apply_mask", "curvature", "convex", "strong_convexity")
_FIT = (*_FUNCTION, "conjugate", "largest_observation", "weighted_sum_bound")


class StatementRefuted(ValueError):
    """A sample contradicts a statement of a class."""


class ContradictoryBound(AssertionError):
    """A lower bound exceeds a value of f, although every premise is derived by this library."""


# Which statements a bound rests on.


def premises(problem: Problem, way: Way | None = None) -> tuple[str, ...]:
    """Return the statements of users that lower bounds on min f rest on, in words.

    These are statements of their classes and about their data. The result is empty if every premise
    is derived by this library.

    Args:
        problem: Batch of problems.
        way: How the bound is proven; None for bounds of methods, from dual points or gradients.
    """
    words = list(problem.assumptions)
    for part in parts_of(problem):
        if part is problem:
            words.extend(_premises_of_root(problem, way))
        elif way == "minimiser":
            continue
        elif isinstance(part, Fit):
            if name := user_definition(part, *_FIT):
                words.append(f"conjugate() of {name} belongs to its misfit()")
            words.extend(_premises_of_function(part, type(part).__name__))
        elif isinstance(part, Problem):
            words.extend(_premises_of_function(part, type(part).__name__))
        elif isinstance(part, Term):
            if name := user_definition(part, *_TERM):
                words.append(f"conjugate() and dual_gauge() of {name} belong to its value()")
        elif isinstance(part, Domain):
            if name := user_definition(part, "_least", "least", "_project", "project"):
                words.append(f"least() and project() of {name} are right")
        elif isinstance(part, Linear):
            if not in_library(part.function):
                words.append("the function of Linear is linear")
        elif hasattr(part, "A"):
            if name := user_definition(part, "A", "A_adjoint"):
                words.append(f"A of {name} is linear and A_adjoint its adjoint")
            name = user_definition(part, "A", "A_adjoint", "orthonormal")
            if name and getattr(part, "orthonormal", False):
                words.append(f"{name} is orthonormal")
    return tuple(dict.fromkeys(words))


def _premises_of_root(problem: Problem, way: Way | None) -> list[str]:
    owner = user_definition(problem, *_GRADIENT)
    if way == "minimiser":
        name = user_definition(problem, "minimiser") or owner
        return [f"minimiser() of {name} returns lower bounds"] if name else []
    words = []
    if way in ("saddle point", None) and problem.saddle_point() is not None:
        owner = user_definition(problem, *_SADDLE_POINT) or owner
        if owner is not None:
            words.append(f"the saddle-point form of {owner} belongs to its value()")
    if way in ("gradients", None):
        if name := user_definition(problem, "bound_at", "bound_from_means"):
            words.append(f"bound_at() of {name} returns lower bounds")
        words.extend(_premises_of_function(problem, "f"))
    return words


def _premises_of_function(problem: Problem, name: str) -> list[str]:
    """Return the statements on convexity and gradients, if a class of a user's makes them."""
    if not states_function(problem) or not problem.convex:
        return []
    words = [f"{name} is convex"]
    if user_definition(problem, *_GRADIENT):
        words.append("grad() is its gradient" if name == "f" else f"grad() of {name} is right")
    if convexity := problem.strong_convexity():
        words.append(f"{name} is strongly convex with μ = {convexity:.4g}")
    return words


def states_function(problem: Problem) -> bool:
    """Tell whether f, ∇f or facts about f are defined by a user."""
    return user_definition(problem, *_FUNCTION) is not None or isinstance(problem, Function)


def in_words(conditions: Sequence[str]) -> str:
    """Return "if …, as stated", for a sentence that begins with "proven".

    >>> in_words(["f is convex", "grad() is its gradient"])
    'if f is convex and grad() is its gradient, as stated'
    """
    first = ", ".join(conditions[:-1])
    listed = f"{first} and {conditions[-1]}" if first else conditions[-1]
    return f"if {listed}, as stated"


# Tests of the statements.


def sample_points(
    domain: Domain, start: Tree, count: int = len(FACTORS), length: float = 1.0
) -> list[Tree]:
    """Return random points of a set around a start, the same ones for every call.

    Their distances from the start have several scales. They lie in the interior of the set.

    Args:
        domain: Set.
        start: Start.
        count: Number of points.
        length: Typical distance, for tensors of the start that are 0.
    """
    scales = _scales(domain, start, length)
    points = []
    for index in range(count):
        factor = FACTORS[index % len(FACTORS)]
        seeds = iter(range(1000 * index, 1000 * index + 1000))

        def perturb(
            leaf: Tensor, scale: Tensor, factor: float = factor, seeds: Any = seeds
        ) -> Tensor:
            return leaf + factor * scale * random_like(leaf, next(seeds))

        point = tree_map(perturb, start, scales)
        if not isinstance(domain, WholeSpace):
            inner = inner_point(domain, point, scales)
            point = tree_map(lambda a, b: a + 0.1 * (b - a), domain.project(point), inner)
        points.append(point)
    return points


def _scales(domain: Domain, start: Tree, length: float) -> Tree:
    """Return the typical size of an entry, for every leaf: of a bounded set, or of the start."""
    if domain.bounded:
        direction = tree_map(lambda leaf: random_like(leaf, 7), start)
        opposite = tree_map(torch.neg, direction)
        width = -(domain.least(direction) + domain.least(opposite)) / norm(direction)
        entries = sum(leaf[0].numel() for leaf in leaves(start))
        typical = float(width.max()) / math.sqrt(entries)
        if math.isfinite(typical):
            return tree_map(lambda leaf: leaf.new_tensor(typical), start)
    return entry_sizes(start, length)


_TESTED: set[str] = set()
"""Hashes of the code whose statements were tested in this process."""


def require_statements_once(problem: Problem, x0: Tree) -> None:
    """Test the statements of users' classes, unless the same code was tested in this process.

    A class that was edited is tested again, as is one that uses objects of unknown content.
    """
    if not premises(problem):
        return
    source = source_digest(problem)
    if source is not None and source in _TESTED:
        return
    require_statements(problem, x0)
    if source is not None:
        _TESTED.add(source)


def source_digest(problem: Problem) -> str | None:
    """Hash the code of all users' classes and functions that a problem is composed of.

    The result is None if the content of something that the code depends on is unknown.
    """
    digests = []
    for part in parts_of(problem):
        definition = part if isinstance(part, type) or hasattr(part, "__code__") else type(part)
        if in_library(definition) or definition.__module__.startswith("torch."):
            continue
        digest = code_digest(definition)
        if digest is None:
            return None
        digests.append(digest)
    return " ".join(digests)


def require_consistent(
    problem: Problem,
    lower: Tensor,
    value: Tensor,
    start_value: Tensor,
    conditions: Sequence[str] = (),
    error: Callable[[], Tensor] | None = None,
) -> None:
    """Raise an error if a lower bound exceeds a value of f by more than rounding.

    Args:
        problem: Batch of problems.
        lower: Lower bounds, (batch,).
        value: Values of f at some points, (batch,).
        start_value: Values of f at the start, (batch,).
        conditions: Statements that the bounds rest on.
        error: Function that returns how far a bound may exceed the values, (batch,), such as
            :func:`allowed_excess`. It is called only if a bound exceeds a value.

    Raises:
        StatementRefuted: If the bounds rest on statements, one of which is false.
        ContradictoryBound: If they do not; this is an error in this library.
    """
    least = torch.minimum(value.double(), start_value.double())
    size = value.double().abs() + start_value.double().abs()
    rounding = CONTRADICTION * torch.finfo(value.dtype).eps * size
    largest = torch.finfo(torch.float64).max
    excess = lower.double().clamp(max=largest) - least - rounding
    if _worst(excess) is not None and error is not None:
        excess = excess - error().double()
    worst = _worst(excess)
    if worst is None:
        return
    name = type(problem).__name__
    numbers = (
        f"the lower bound {float(lower[worst]):.10g} on the minimum of {name} exceeds the value "
        f"{float(least[worst]):.10g} (sample {worst})"
    )
    if conditions:
        raise StatementRefuted(f"{numbers}: it is not true that {in_words(conditions)[3:]}")
    raise ContradictoryBound(f"{numbers}. The bounds of {name} are wrong")


def allowed_excess(problem: Problem, *points: Tree) -> Tensor:
    """Return how far a correct lower bound may exceed the computed values of f at points: (batch,).

    It may exceed them by their rounding errors. If constraints enter f by a penalty, bounds are on
    the minimum over feasible points. A penalty that is too small permits lower values at points
    that violate a constraint by no more than a rounding error. So the result is infinite unless the
    point is certainly feasible.

    Args:
        problem: Batch of problems.
        points: Points, one or more for every sample.
    """
    allowed = []
    for x in points:
        excess = problem.value_error(x, problem.value(x))
        feasible = problem.certainly_feasible(x)
        if feasible is not None:
            excess = torch.where(feasible, excess, torch.inf)
        allowed.append(excess)
    return torch.stack(allowed).amax(0)


@torch.no_grad()
def require_statements(problem: Problem, x0: Tree | None = None) -> Tensor | None:
    """Test the statements of users' classes that bounds rest on, at random points of the domain.

    Every function of a user's is evaluated at most 20 times. Operators are tested when a problem is
    constructed (:func:`~mirrordescent.problems.operators.require_adjoint`).

    Args:
        problem: Batch of problems, preferably in double precision.
        x0: Start; the problem's own by default.

    Returns:
        The least value of f at the test points, (batch,), which is an upper bound on min f; None if
        nothing was tested.

    Raises:
        StatementRefuted: If a sample contradicts a statement; the message has the numbers.
    """
    least: Tensor | None = None
    for part in parts_of(problem):
        is_root = part is problem
        if isinstance(part, Problem) and (states_function(part) or (is_root and premises(part))):
            start = x0 if is_root and x0 is not None else _start_of(part)
            if start is None:
                continue
            samples = _test_problem(part, start)
            if is_root:
                least = samples.least
        elif isinstance(part, Term) and user_definition(part, *_TERM):
            start = _start_of(problem) if x0 is None else x0
            if start is not None:
                length = natural_length(problem, start)
                _test_term(part, cast(Tensor, start), length)
    return least


def _start_of(problem: Problem) -> Tree | None:
    return None if problem.sample_shape is None else problem.start()


@dataclass
class _Samples:
    """Points, values and gradients of a function, with the rounding error of comparisons."""

    name: str
    value: Callable[[Tree], Tensor]
    points: list[Tree]
    values: list[Tensor]
    grads: list[Tree]

    @property
    def least(self) -> Tensor:
        """The least value found, (batch,)."""
        values = torch.stack(self.values)
        return torch.where(values.isfinite(), values, torch.inf).amin(0)

    def size(self, i: int, j: int) -> Tensor:
        """Return a bound on the rounding error of f(xⱼ) − f(xᵢ) − ⟨gᵢ, xⱼ − xᵢ⟩."""
        lengths = norm(self.points[i]) + norm(self.points[j])
        total = self.values[i].abs() + self.values[j].abs() + norm(self.grads[i]) * lengths
        return ROUNDING * torch.finfo(total.dtype).eps * total


def _test_problem(problem: Problem, start: Tree) -> _Samples:
    """Test the statements of one problem, and return the samples."""
    problem, start = in_double(problem, start)
    name = type(problem).__name__
    length = natural_length(problem, start)
    points = sample_points(problem.domain, start, length=length)
    stated = bool(problem.convex) and states_function(problem)
    samples = _sample(name, problem.value, problem.grad if stated else None, points)
    if stated:
        by_entries = isinstance(problem.domain, WholeSpace | PositiveOrthant | Box)
        convexity = problem.strong_convexity() or 0.0
        near = 3 if length == 1 else 2  # the length has cost evaluations
        _test_function(samples, convexity, problem.smoothness(), "convex", by_entries, near)
    if isinstance(problem, Fit) and user_definition(problem, *_FIT):
        _test_fit(problem, points)
    elif user_definition(problem, *_SADDLE_POINT) and problem.saddle_point() is not None:
        _test_saddle_point(name, cast(SaddlePoint, problem.saddle_point()), samples)
    if user_definition(problem, "bound_at"):
        bound = problem.bound_at(points[0])
        if bound is not None:
            _require_below(samples, bound, f"bound_at() of {name}")
    return samples


def _sample(
    name: str,
    value: Callable[[Tree], Tensor],
    grad: Callable[[Tree], Tree] | None,
    points: list[Tree],
) -> _Samples:
    values = [value(x) for x in points]
    grads = []
    if grad is not None:
        grads = [tree_map(torch.clone, grad(x)) for x in points]
    for x, g in zip(points, grads, strict=grad is not None):
        shapes = [tuple(leaf.shape) for leaf in leaves(g)]
        if shapes != [tuple(leaf.shape) for leaf in leaves(x)]:
            raise StatementRefuted(
                f"grad() of {name} must return the shape of x, got {shapes} for points of shape "
                f"{[tuple(leaf.shape) for leaf in leaves(x)]}"
            )
    return _Samples(name, value, points, values, grads)


def _test_function(
    samples: _Samples,
    convexity: float,
    smoothness: float | None,
    statement: str,
    by_entries: bool,
    near: int = 3,
) -> None:
    """Test gradients against values, convexity, strong convexity and smoothness.

    All tests are inequalities that hold for every convex function, also at kinks:

    .. code-block:: none

        f((1−t)a + tb) ≤ (1−t)f(a) + tf(b)
        f(b) ≥ f(a) + ⟨g(a), b − a⟩ + (μ/2)‖b − a‖²
        ‖g(a) − g(b)‖ ≤ L‖a − b‖

    Args:
        samples: Points, values and gradients.
        convexity: Stated μ.
        smoothness: Stated L, if any.
        statement: Statement of convexity, for messages.
        by_entries: Whether single entries may change without leaving the domain.
        near: Number of points near which gradients are tested.
    """
    count = len(samples.points)
    step = float(torch.finfo(samples.values[0].dtype).eps) ** (1 / 3)
    for i in range(near):  # near the points: gradients
        j = (i + 1) % count
        forward = _along(samples, i, j, step)
        backward = _along(samples, i, j, -step)
        _require_chord(samples, backward, i, forward, 0.5, statement)
        _require_subgradient(samples, i, forward, backward, step)
    _require_chord(samples, 0, _along(samples, 0, 3, 0.5), 3, 0.5, statement)
    end = _with_one_entry(samples, 1, 4) if by_entries else 4
    _require_chord(samples, 1, _along(samples, 1, end, 0.3), end, 0.3, statement)
    total = len(samples.points)
    for i in range(count):
        for j in range(total):
            if i != j:
                _require_tangent(samples, i, j, convexity, statement)
    if smoothness is not None and math.isfinite(smoothness):
        for i, j in permutations(range(count), 2):
            if i < j:
                _require_smooth(samples, i, j, smoothness)


def _along(samples: _Samples, i: int, j: int, t: float) -> int:
    """Add the point xᵢ + t(xⱼ − xᵢ) and its value; return its index."""
    x = tree_map(lambda a, b: a + t * (b - a), samples.points[i], samples.points[j])
    samples.points.append(x)
    samples.values.append(samples.value(x))
    return len(samples.points) - 1


def _with_one_entry(samples: _Samples, i: int, j: int) -> int:
    """Add the point xᵢ with one random entry of xⱼ; return its index.

    In many dimensions the curvature along a random direction is an average, which hides directions
    of negative curvature.
    """

    def replace(a: Tensor, b: Tensor) -> Tensor:
        entry = random_like(a, 11).flatten(1).argmax(1, keepdim=True)
        flat = a.flatten(1)
        return flat.scatter(1, entry, b.flatten(1).gather(1, entry)).reshape(a.shape)

    x = tree_map(replace, samples.points[i], samples.points[j])
    samples.points.append(x)
    samples.values.append(samples.value(x))
    return len(samples.points) - 1


def _require_chord(samples: _Samples, a: int, m: int, b: int, t: float, statement: str) -> None:
    """Raise an error unless f(m) ≤ (1−t)f(a) + tf(b)."""
    f_a = samples.values[a]
    f_b = samples.values[b]
    middle = samples.values[m]
    chord = (1 - t) * f_a + t * f_b
    origin = next(i for i in (a, m, b) if i < len(samples.grads))
    rounding = samples.size(origin, a) + samples.size(origin, b) + samples.size(origin, m)
    worst = _worst(middle - chord - rounding)
    if worst is not None:
        raise StatementRefuted(
            f"{samples.name} states {statement} = True, but its values are not convex: "
            f"f = {float(f_a[worst]):.10g} and {float(f_b[worst]):.10g} at two points, and "
            f"{float(middle[worst]):.10g} between them, which is above the chord by "
            f"{float((middle - chord)[worst]):.3g} (t = {t:g}, sample {worst}). Correct value(), "
            "or do not state it"
        )


def _require_subgradient(
    samples: _Samples, i: int, forward: int, backward: int, step: float
) -> None:
    """Raise an error unless f(x ± h) ≥ f(x) ± ⟨g, h⟩ for a small h."""
    moves = tree_map(torch.sub, samples.points[forward], samples.points[i])
    slope = dot(samples.grads[i], moves)
    rise = samples.values[forward] - samples.values[i]
    fall = samples.values[i] - samples.values[backward]
    rounding = samples.size(i, forward)
    worst = _worst(torch.maximum(slope - rise, fall - slope) - rounding)
    if worst is not None and bool(rise[worst] < slope[worst] < fall[worst]):
        raise StatementRefuted(
            f"{samples.name} states convex = True, but its values are not convex: along a random "
            f"direction they change at the rate {float(fall[worst]) / step:.8g} before a point and "
            f"{float(rise[worst]) / step:.8g} after it (sample {worst}). Correct value(), or do "
            "not state it"
        )
    if worst is not None:
        measured = float((rise + fall)[worst]) / (2 * step)
        raise StatementRefuted(
            f"grad() of {samples.name} is not the gradient of its value(): along a random "
            f"direction d, ⟨grad(x), d⟩ = {float(slope[worst]) / step:.8g}, but values change at "
            f"the rate {measured:.8g} (between {float(fall[worst]) / step:.8g} and "
            f"{float(rise[worst]) / step:.8g}; sample {worst}). Correct grad(), or use "
            "Function, which differentiates values automatically"
        )


def _require_tangent(samples: _Samples, i: int, j: int, convexity: float, statement: str) -> None:
    """Raise an error unless f(xⱼ) ≥ f(xᵢ) + ⟨gᵢ, xⱼ − xᵢ⟩ + (μ/2)‖xⱼ − xᵢ‖²."""
    step = tree_map(torch.sub, samples.points[j], samples.points[i])
    tangent = samples.values[i] + dot(samples.grads[i], step)
    square = dot(step, step)
    rounding = samples.size(i, j)
    excess = tangent - samples.values[j] - rounding
    worst = _worst(excess)
    if worst is not None:
        raise StatementRefuted(
            f"{samples.name} states {statement} = True, but at one of its points "
            f"f = {float(samples.values[j][worst]):.10g} lies below the tangent of another, "
            f"{float(tangent[worst]):.10g} (sample {worst}). Correct value() and grad(), or do "
            "not state it"
        )
    worst = _worst(excess + convexity / 2 * square * (1 - 1e-9))
    if worst is not None:
        largest = 2 * float((samples.values[j] - tangent)[worst]) / float(square[worst])
        raise StatementRefuted(
            f"{samples.name} states strong convexity μ = {convexity:.8g}, but between two points "
            f"μ is at most {largest:.8g} (sample {worst}). Correct strong_convexity()"
        )


def _require_smooth(samples: _Samples, i: int, j: int, smoothness: float) -> None:
    """Raise an error unless ‖gᵢ − gⱼ‖ ≤ L‖xᵢ − xⱼ‖."""
    change = norm(tree_map(torch.sub, samples.grads[i], samples.grads[j]))
    distance = norm(tree_map(torch.sub, samples.points[i], samples.points[j]))
    eps = torch.finfo(change.dtype).eps
    sizes = norm(samples.grads[i]) + norm(samples.grads[j])
    sizes = sizes + smoothness * (norm(samples.points[i]) + norm(samples.points[j]))
    worst = _worst(change - smoothness * distance * (1 + 1e-6) - ROUNDING * eps * sizes)
    if worst is not None:
        raise StatementRefuted(
            f"{samples.name} states smoothness L = {smoothness:.8g}, but between two points the "
            f"gradient changes by {float(change[worst]) / float(distance[worst]):.8g} times their "
            f"distance (sample {worst}). Correct smoothness()"
        )


def _require_below(samples: _Samples, bound: Tensor, source: str) -> None:
    """Raise an error if a lower bound exceeds a value of f."""
    least = samples.least
    rounding = ROUNDING * torch.finfo(least.dtype).eps * (least.abs() + bound.abs())
    worst = _worst(bound - least - rounding)
    if worst is not None:
        raise StatementRefuted(
            f"{source} is {float(bound[worst]):.10g}, but f = {float(least[worst]):.10g} at "
            f"another point (sample {worst})"
        )


def _worst(excess: Tensor) -> int | None:
    """Return the sample with the largest positive excess; None if there is none."""
    excess = torch.where(excess.isfinite(), excess, -torch.inf)
    return int(excess.argmax()) if bool((excess > 0).any()) else None


def _test_term(term: Term, start: Tensor, length: float) -> None:
    """Test the gradient, the adjoint and the conjugate of a term."""
    name = type(term).__name__
    points = sample_points(WholeSpace(), start, length=length)

    def value(x: Tree) -> Tensor:
        return term.value(cast(Tensor, x))

    def grad(x: Tree) -> Tree:
        return term.add_gradient(torch.zeros_like(cast(Tensor, x)), cast(Tensor, x), 0.0)

    samples = _sample(name, value, grad, points)
    curvature = term.curvature
    _test_function(samples, term.convexity, curvature, "convex", True)
    try:
        image = term.K(cast(Tensor, points[0]))
        u = {key: random_like(block, index) for index, (key, block) in enumerate(image.items())}
        # The size of a gradient with respect to Kx, which has the units of u.
        size = (2 * samples.values[0].abs() / (norm(image) * norm(u))).nan_to_num(1.0, 1.0)
        u = {
            key: _like(torch.where(size > 0, size, 1.0), block) * block for key, block in u.items()
        }
        gauge = term.dual_gauge(u)
        inside = tree_map(lambda block: block * (1 - 1e-6) / _like(gauge.clamp(min=1.0), block), u)
        conjugate = term.conjugate(inside)
        back = term.add_adjoint(torch.zeros_like(start), dict(u))
    except NotImplementedError:  # a term for gradient methods only proves no bounds
        return
    _require_adjoint_pair(f"add_adjoint() of {name}", "K()", points[0], image, u, back)
    for i in range(3):
        product = dot(term.K(cast(Tensor, points[i])), inside)
        _require_fenchel(f"conjugate() of {name}", samples.values[i], conjugate, product)


def _test_fit(fit: Fit, points: Sequence[Tree]) -> None:
    """Test the conjugate of the misfit of a fit."""
    images = [fit.observe(cast(Tensor, x)) for x in points[:3]]
    try:
        v = fit.misfit_gradient(images[0])
        conjugate, _ = fit.conjugate(v)
    except NotImplementedError:
        return
    for z in images:
        name = f"conjugate() of {type(fit).__name__}"
        _require_fenchel(name, fit.misfit(z), conjugate, dot(z, v))


def _test_saddle_point(name: str, saddle: SaddlePoint, samples: _Samples) -> None:
    """Test the adjoint of K, and the bound of a dual point against values."""
    x = cast(Tensor, samples.points[0])
    image = saddle.K(x)
    u = tree_map(lambda block: random_like(block, 3), image)
    _require_adjoint_pair(f"K_adjoint() of {name}", "K()", x, image, u, saddle.K_adjoint(u))
    for dual in (u, image):
        _require_below(samples, saddle.lower_bound(dual), f"lower_bound() of {name}")


def _require_adjoint_pair(source: str, of: str, x: Tree, image: Tree, u: Tree, back: Tree) -> None:
    """Raise an error unless ⟨Kx, u⟩ = ⟨x, Kᵀu⟩."""
    forward = dot(image, u)
    backward = dot(x, back)
    worst = _worst((forward - backward).abs() - ADJOINT_TOLERANCE * norm(image) * norm(u))
    if worst is not None:
        raise StatementRefuted(
            f"{source} is not the adjoint of {of}: ⟨Kx, u⟩ = {float(forward[worst]):.6g} but "
            f"⟨x, Kᵀu⟩ = {float(backward[worst]):.6g}"
        )


def _require_fenchel(source: str, value: Tensor, conjugate: Tensor, product: Tensor) -> None:
    """Raise an error unless g(z) + g*(u) ≥ ⟨z, u⟩."""
    eps = torch.finfo(value.dtype).eps
    rounding = ROUNDING * eps * (value.abs() + conjugate.abs() + product.abs())
    worst = _worst(product - value - conjugate - rounding)
    if worst is not None:
        raise StatementRefuted(
            f"{source} is too small: g(z) + g*(u) = {float((value + conjugate)[worst]):.8g} must "
            f"be at least ⟨z, u⟩ = {float(product[worst]):.8g}"
        )


def _like(numbers: Tensor, block: Tensor) -> Tensor:
    return numbers.reshape(-1, *(1 for _ in block.shape[1:]))
