"""Certified optima: a point, its value and a proven lower bound, for every problem of a batch."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from mirrordescent._internal.cache import remember
from mirrordescent.domains import WholeSpace
from mirrordescent.methods.base import Method
from mirrordescent.methods.fista import FISTA
from mirrordescent.methods.lbfgs import LBFGS
from mirrordescent.methods.primal_dual import PDHG, CondatVu, DualFISTA, PrimalDual
from mirrordescent.problems.base import Problem, in_double
from mirrordescent.problems.fingerprint import fingerprint
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.references.estimate import estimate as estimate_optimum
from mirrordescent.solving import Rule, Snapshot, relative_gap, solve
from mirrordescent.trees import Tree, tree_map

ITERATIONS = 40_000
"""Largest number of steps of a solver that certifies."""

TRIAL_ITERATIONS = 200
"""Steps of each trial run that chooses the ratio of step sizes."""

RATIOS = (0.1, 0.5, 2.0, 10.0, 50.0)
"""Ratios of step sizes that are tried."""

VALUE_NAMES = frozenset(("value", "lower", "start_value"))
"""Names of the numbers in a stored certificate."""

ROUNDING = 1e-9
"""Relative rounding error of a sum of many terms."""

P = TypeVar("P", bound=Problem)
Optimum: TypeAlias = tuple[Tensor, Tensor]
"""Minimisers (batch, …) and lower bounds (batch,)."""

_CERTIFIERS: dict[type[Problem], Callable[..., Optimum]] = {}


@dataclass(frozen=True)
class Certificate:
    """A point x*, its value and a lower bound per problem: lower ≤ min f ≤ value, in float64.

    Attributes:
        x: Best points found.
        value: f(x*).
        lower: Lower bounds on min f.
        start_value: f at the problem's own start, to which relative gaps refer.
        proven: Whether ``lower`` is proven. If not, it is an estimate a little below the least
            value found.
    """

    x: Tensor
    value: Tensor
    lower: Tensor
    start_value: Tensor
    proven: bool = True

    @property
    def relative_gap(self) -> Tensor:
        """(f(x*) − lower) / (f(x₀) − lower), per problem."""
        return relative_gap(self.value, self.lower, self.start_value)


class NotCertifiable(TypeError):
    """Nothing can be proven about the minimum of a problem."""


def register(kind: type[P], certifier: Callable[[P, float], Optimum]) -> None:
    """Register a function that certifies problems of a class and of its subclasses.

    Args:
        kind: Class of problems.
        certifier: Function of a problem in float64 and a relative gap, which returns minimisers
            (batch, …) and lower bounds (batch,).

    >>> from mirrordescent import Quadratic
    >>> register(Quadratic, lambda problem, tolerance: problem.minimiser(tolerance))
    """
    _CERTIFIERS[kind] = certifier


def certify(
    problem: Problem,
    tolerance: float = 1e-6,
    *,
    cache: bool = True,
    estimate: bool = False,
    x0: Tree | None = None,
) -> Certificate:
    """Solve a batch of problems in float64 to a certified relative gap.

    These are tried in order:

    1. A function given to :func:`register`.
    2. The problem's own minimiser (:meth:`Problem.minimiser`): the SVM, quadratics, least squares.
    3. The saddle-point form (:meth:`Problem.saddle_point`): total variation, Poisson tomography,
       matrix games. It is solved by dual FISTA if it is strongly convex, else by PDHG.
    4. FISTA or L-BFGS, if the problem can prove bounds from gradients (:meth:`Problem.bound_at`).
       This needs a convex f that is strongly convex or has a bounded domain.

    Results are cached on disk under a hash of the problem's content. If the tolerance was not
    reached, there is a warning, and the certificate has the gap that was reached.

    Args:
        problem: Batch of problems.
        tolerance: Relative gap to reach.
        cache: Whether to read the result from disk, and to store it there.
        estimate: Whether to return the least values of long runs, marked as not proven, if nothing
            can be proven. By default this is an error.
        x0: Start of these runs; by default the problem's own start.

    >>> import torch
    >>> from mirrordescent import TVDenoising
    >>> reference = certify(TVDenoising(torch.rand(1, 1, 8, 8)), cache=False)
    >>> bool(reference.lower <= reference.value), bool(reference.relative_gap <= 1e-6)
    (True, True)
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    key = None
    if cache and x0 is None:
        purpose = f"certify {tolerance:g}"
        if estimate:
            purpose += ", or estimate"
        key = fingerprint(problem, purpose)
    entry = remember(
        key, lambda: _compute(problem, tolerance, estimate, x0), partial(_matches, problem)
    )
    # Entries without this field were stored by versions that had only proven bounds.
    proven = bool(entry.pop("proven", True))
    device = next(problem.buffers(), torch.empty(0)).device
    tensors: dict[str, Any] = {}
    for name, stored in entry.items():
        tensors[name] = tree_map(lambda leaf: leaf.to(device), stored)
    certificate = Certificate(**tensors, proven=proven)
    largest_gap = float(certificate.relative_gap.max())
    if proven and largest_gap > tolerance:
        warnings.warn(
            f"certified to a relative gap of {largest_gap:.1e} only, not {tolerance:.1e}",
            stacklevel=2,
        )
    return certificate


def _matches(problem: Problem, entry: dict[str, Tensor]) -> bool:
    """Tell whether a stored entry can be a certificate of a problem.

    All names must be there, all shapes must be those of the problem, and no value may be below its
    lower bound.
    """
    required = VALUE_NAMES | {"x"}
    if not required <= entry.keys() <= required | {"proven"}:
        return False
    if "proven" in entry and entry["proven"].ndim:
        return False
    x = entry["x"]
    batch = problem.batch or len(x)
    sample_shape = x.shape[1:] if problem.sample_shape is None else problem.sample_shape
    if x.shape != (batch, *sample_shape):
        return False
    if any(entry[name].shape != x.shape[:1] for name in VALUE_NAMES):
        return False
    return bool((entry["lower"] <= entry["value"] + ROUNDING * entry["value"].abs()).all())


@torch.no_grad()
def _compute(
    problem: Problem, tolerance: float, or_estimate: bool, x0: Tree | None
) -> dict[str, Tensor]:
    """Return the tensors of a certificate, proven if possible."""
    if problem.sample_shape is None:
        precise = copy.deepcopy(problem).double()
    else:
        precise, _ = in_double(problem, problem.start())
    optimum = _proven_optimum(precise, tolerance)
    if optimum is not None:
        x, lower = optimum
        return {
            "x": x,
            "value": precise.value(x),
            "lower": lower,
            "start_value": precise.value(precise.start(len(x))),
            "proven": torch.tensor(True),
        }
    if not or_estimate:
        raise NotCertifiable(
            f"{type(problem).__name__} cannot be certified: it has neither a saddle-point form "
            "(saddle_point) nor a minimiser of its own (minimiser) nor bounds from gradients "
            "(bound_at), which need a convex f that is strongly convex or has a bounded domain. "
            "Pass estimate=True for the least values found, unproven"
        )
    precise, start = in_double(problem, problem.start() if x0 is None else x0)
    point, value, lower = estimate_optimum(precise, start)
    return {
        "x": cast(Tensor, point),
        "value": value,
        "lower": lower,
        "start_value": precise.value(start),
        "proven": torch.tensor(False),
    }


def _proven_optimum(problem: Problem, tolerance: float) -> Optimum | None:
    """Return minimisers and proven lower bounds by the first way that applies, if there is one."""
    for kind in type(problem).__mro__:
        if kind in _CERTIFIERS:
            return _CERTIFIERS[kind](problem, tolerance)
    optimum = problem.minimiser(tolerance)
    if optimum is not None:
        return optimum
    saddle = problem.saddle_point()
    if saddle is not None:
        optimum = _solve_saddle_point(problem, saddle, tolerance)
        if optimum is not None:
            return optimum
    return _solve_with_gradient_bounds(problem, tolerance)


def _solve_saddle_point(problem: Problem, saddle: SaddlePoint, tolerance: float) -> Optimum | None:
    """Return the best iterate and the best lower bound of a primal-dual method.

    The result is None if the dual points prove no finite bounds.
    """
    method = primal_dual(problem, saddle)
    bound = method.lower_bound(problem, method.init(problem.start(), problem))
    if bound is None or not bool(bound.isfinite().all()):
        return None
    solution = solve(
        problem, method, iterations=ITERATIONS, stop=_small_gap(problem, tolerance), check_every=50
    )
    return cast(Tensor, solution.best_x), cast(Tensor, solution.lower)


def primal_dual(problem: Problem, saddle: SaddlePoint) -> PrimalDual[Any]:
    """Return the primal-dual method for a saddle-point form.

    It is dual FISTA if F is strongly convex, PDHG if F has a proximal operator, and Condat–Vũ if
    not. If the form does not state a ratio of step sizes, short runs with all ``RATIOS`` are
    compared by the largest gap over the problems, or by the largest value if there are no bounds.
    """
    if saddle.F_convexity > 0:
        return DualFISTA()
    kind = PDHG if saddle.proximable else CondatVu
    if saddle.ratio is not None:
        return kind(saddle.ratio)

    def largest_gap(ratio: float) -> float:
        run = solve(
            problem,
            kind(ratio),
            iterations=TRIAL_ITERATIONS,
            check_every=TRIAL_ITERATIONS,
            progress=False,
        )
        if run.lower is None or not bool(run.lower.isfinite().all()):
            return float(run.best_value.max())
        return float((run.best_value - run.lower).max())

    return kind(min(RATIOS, key=largest_gap))


def _solve_with_gradient_bounds(problem: Problem, tolerance: float) -> Optimum | None:
    """Return the best iterate of FISTA or L-BFGS, and the best of the bounds at the iterates.

    L-BFGS is used if there are no constraints. The result is None if the problem has no start or
    proves no finite bounds.
    """
    if problem.sample_shape is None:
        return None
    convexity = problem.strong_convexity() or 0.0
    lower = problem.bound_at(problem.start(), convexity)
    if lower is None or not bool(lower.isfinite().all()):
        return None

    def small_gap(snapshot: Snapshot) -> Tensor:
        nonlocal lower
        lower = torch.fmax(
            cast(Tensor, lower), cast(Tensor, problem.bound_at(snapshot.x, convexity))
        )
        rounding = 64 * torch.finfo(lower.dtype).eps * (1 + snapshot.start_value.abs())
        allowed = torch.maximum(tolerance * (snapshot.start_value - lower), rounding)
        return snapshot.best_value - lower <= allowed

    method: Method[Any] = LBFGS() if isinstance(problem.domain, WholeSpace) else FISTA()
    solution = solve(problem, method, iterations=ITERATIONS, stop=Rule(small_gap), check_every=20)
    return cast(Tensor, solution.best_x), lower


def _small_gap(problem: Problem, tolerance: float) -> Rule:
    """Return the rule best − lower ≤ tolerance · min(f(x₀) − lower, f(x̄)), up to rounding.

    For images x̄ is the constant image with the mean of x₀; other problems have no second term.
    With a large regularisation weight f(x₀) is so large that a gap relative to it alone would mean
    little.
    """
    start = cast(Tensor, problem.start())
    constant_value: Tensor | None = None
    if start.ndim > 2:
        pixels = tuple(range(2, start.ndim))
        constant_value = problem.value(start.mean(pixels, keepdim=True).expand_as(start))

    def small_gap(snapshot: Snapshot) -> Tensor:
        lower = cast(Tensor, snapshot.lower)
        scale = snapshot.start_value - lower
        if constant_value is not None:
            scale = torch.minimum(scale, constant_value)
        rounding = torch.finfo(lower.dtype).eps * (1 + snapshot.start_value.abs())
        return snapshot.best_value - lower <= torch.maximum(tolerance * scale, rounding)

    return Rule(small_gap)
