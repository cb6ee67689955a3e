"""Certified optima: a point, its value, and a proven lower bound, for every problem of a batch."""

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
from mirrordescent.references.estimate import estimate as estimated
from mirrordescent.solving import Rule, Snapshot, relative_gap, solve
from mirrordescent.trees import Tree, tree_map

ITERATIONS = 40_000
TRIAL = 200
RATIOS = (0.1, 0.5, 2.0, 10.0, 50.0)
# of a sum of many terms, relative to it
NUMBERS = frozenset(("value", "lower", "start_value"))
ROUNDING = 1e-9
P = TypeVar("P", bound=Problem)
Found: TypeAlias = tuple[Tensor, Tensor]
_REGISTERED: dict[type[Problem], Callable[..., Found]] = {}


@dataclass(frozen=True)
class Certificate:
    """x*, f(x*) and a lower bound on min f per problem, in float64: lower ≤ min f ≤ value.

    ``start_value`` is f at the problem's own start, to which relative gaps refer. If it is not
    ``proven``, ``lower`` is an estimate: a little below the least value that was found.
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


def register(kind: type[P], certifier: Callable[[P, float], Found]) -> None:
    """Let a function certify problems of a class, and of its subclasses, that cannot do so by
    themselves.

    Args:
        kind: the class.
        certifier: returns minimisers and lower bounds, (batch, …) and (batch,), of a problem in
            float64, given the relative gap that is wanted.

    >>> from mirrordescent import Quadratic
    >>> register(Quadratic, lambda problem, tolerance: problem.minimiser(tolerance))
    """
    _REGISTERED[kind] = certifier


def certify(
    problem: Problem,
    tolerance: float = 1e-6,
    *,
    cache: bool = True,
    estimate: bool = False,
    x0: Tree | None = None,
) -> Certificate:
    """Solve a batch of problems in float64 to a certified relative gap.

    The first of these that there is: a function :func:`register` was told of; what the problem
    finds by itself (:meth:`Problem.minimiser`: the SVM, quadratics, least squares); its
    saddle-point form (:meth:`Problem.saddle_point`: total variation, Poisson tomography, matrix
    games), solved by dual FISTA if it is strongly convex and by PDHG if not; FISTA or L-BFGS, if
    the problem can prove bounds from gradients (:meth:`Problem.bound_at`: convex, and strongly so
    or on a bounded set). The result is kept on disk under a hash of the problem's content. There is
    a warning if the tolerance was not reached; the certificate then tells the gap.

    Args:
        problem: the problems.
        tolerance: the relative gap.
        cache: keep the result on disk, and look for it there.
        estimate: where nothing can be proven, return the least values that long runs find, marked
            as not proven, instead of an error.
        x0: where these runs start; the problem's own start by default.

    >>> import torch
    >>> from mirrordescent import TVDenoising
    >>> reference = certify(TVDenoising(torch.rand(1, 1, 8, 8)), cache=False)
    >>> bool(reference.lower <= reference.value), bool(reference.relative_gap <= 1e-6)
    (True, True)
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    what = f"certify {tolerance:g}" + (", or estimate" if estimate else "")
    kept = cache and x0 is None
    key = fingerprint(problem, what) if kept else None
    entry = remember(
        key, lambda: _compute(problem, tolerance, estimate, x0), partial(_suits, problem)
    )
    device = next(problem.buffers(), torch.empty(0)).device
    proven = bool(entry.pop("proven", True))  # those of earlier versions were all proven
    there = {name: tree_map(lambda leaf: leaf.to(device), found) for name, found in entry.items()}
    certificate = Certificate(**cast(dict[str, Tensor], there), proven=proven)
    worst = float(certificate.relative_gap.max())
    if worst > tolerance and proven:
        warnings.warn(
            f"certified to a relative gap of {worst:.1e} only, not {tolerance:.1e}", stacklevel=2
        )
    return certificate


def _suits(problem: Problem, entry: dict[str, Tensor]) -> bool:
    """Tell whether what was kept can be of a problem: all of it is there, and no value is below its
    bound.
    """
    if not NUMBERS | {"x"} <= entry.keys() <= NUMBERS | {"x", "proven"}:
        return False
    x = entry["x"]
    numbers = [entry[name] for name in NUMBERS]
    shapes = (
        problem.batch or len(x),
        *(x.shape[1:] if problem.sample_shape is None else problem.sample_shape),
    )
    odd = "proven" in entry and entry["proven"].ndim
    if odd or x.shape != shapes or any(each.shape != x.shape[:1] for each in numbers):
        return False
    return bool((entry["lower"] <= entry["value"] + ROUNDING * entry["value"].abs()).all())


@torch.no_grad()
def _compute(
    problem: Problem, tolerance: float, or_estimate: bool, x0: Tree | None
) -> dict[str, Tensor]:
    known = problem.sample_shape is not None
    precise = in_double(problem, problem.start())[0] if known else copy.deepcopy(problem).double()
    found = _proven(precise, tolerance)
    if found is None and not or_estimate:
        raise NotCertifiable(
            f"{type(problem).__name__} cannot be certified: it has neither a saddle-point form (saddle_point) "
            f"nor a way to find its minimiser by itself (minimiser), nor bounds from gradients (bound_at), which "
            f"need a convex f, strongly so or on a bounded set. estimate=True returns the least values that are "
            f"found, unproven"
        )
    if found is not None:
        x, lower = found
        return {
            "x": x,
            "value": precise.value(x),
            "lower": lower,
            "start_value": precise.value(precise.start(len(x))),
            "proven": torch.tensor(True),
        }
    precise, start = in_double(problem, problem.start() if x0 is None else x0)
    point, value, lower = estimated(precise, start)
    return {
        "x": cast(Tensor, point),
        "value": value,
        "lower": lower,
        "start_value": precise.value(start),
        "proven": torch.tensor(False),
    }


def _proven(problem: Problem, tolerance: float) -> Found | None:
    for kind in type(problem).__mro__:
        if kind in _REGISTERED:
            return _REGISTERED[kind](problem, tolerance)
    found = problem.minimiser(tolerance)
    if found is not None:
        return found
    saddle = problem.saddle_point()
    found = None if saddle is None else _by_saddle_point(problem, saddle, tolerance)
    return _by_gradients(problem, tolerance) if found is None else found


def _by_saddle_point(problem: Problem, saddle: SaddlePoint, tolerance: float) -> Found | None:
    """Return the best iterate and the best lower bound of a primal-dual method, if its dual points
    prove any.
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
    """Return the method that suits a saddle-point form: dual FISTA, PDHG, or Condat and Vũ's where
    F has no prox.

    Where the form does not know the ratio of steps, it is the one of some with which the gap is
    least after a short run (or the value, where there are no bounds), for the problem that has the
    greatest.
    """
    if saddle.F_convexity > 0:
        return DualFISTA()
    kind = PDHG if saddle.proximable else CondatVu
    if saddle.ratio is not None:
        return kind(saddle.ratio)

    def left(ratio: float) -> float:
        run = solve(problem, kind(ratio), iterations=TRIAL, check_every=TRIAL, progress=False)
        lower = 0.0 if run.lower is None or not bool(run.lower.isfinite().all()) else run.lower
        return float((run.best_value - lower).max())

    return kind(min(RATIOS, key=left))


def _by_gradients(problem: Problem, tolerance: float) -> Found | None:
    """Return the best iterate of FISTA, or of L-BFGS without constraints, and the best of the
    bounds at iterates.
    """
    if problem.sample_shape is None:
        return None  # it does not even know where to start
    convexity = problem.strong_convexity() or 0.0
    best = problem.bound_at(problem.start(), convexity)
    if best is None or not bool(best.isfinite().all()):
        return None

    def test(look: Snapshot) -> Tensor:
        nonlocal best
        best = torch.fmax(cast(Tensor, best), cast(Tensor, problem.bound_at(look.x, convexity)))
        rounding = 64 * torch.finfo(best.dtype).eps * (1 + look.start_value.abs())
        return look.best_value - best <= torch.maximum(
            tolerance * (look.start_value - best), rounding
        )

    method: Method[Any] = LBFGS() if isinstance(problem.domain, WholeSpace) else FISTA()
    solution = solve(problem, method, iterations=ITERATIONS, stop=Rule(test), check_every=20)
    return cast(Tensor, solution.best_x), best


def _small_gap(problem: Problem, tolerance: float) -> Rule:
    """Stop at best − lower ≤ tolerance · min(f(x₀) − lower, f(x₀ made constant)), or at rounding
    errors.

    With a large weight, f(x₀) is so large that a gap relative to it alone would mean little.
    """
    start = cast(Tensor, problem.start())
    images = start.ndim > 2
    flat = (
        problem.value(start.mean(tuple(range(2, start.ndim)), keepdim=True).expand_as(start))
        if images
        else None
    )

    def test(look: Snapshot) -> Tensor:
        lower = cast(Tensor, look.lower)
        rounding = torch.finfo(lower.dtype).eps * (1 + look.start_value.abs())
        first = look.start_value - lower
        allowed = tolerance * (first if flat is None else torch.minimum(first, flat))
        return look.best_value - lower <= torch.maximum(allowed, rounding)

    return Rule(test)
