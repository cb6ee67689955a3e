"""Certified optima: a point, its value and a proven lower bound, for every problem of a batch."""

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from mirrordescent._internal import html
from mirrordescent._internal.cache import remember
from mirrordescent._internal.eager import without_autocast
from mirrordescent.domains import WholeSpace
from mirrordescent.methods.base import Method
from mirrordescent.methods.fista import FISTA
from mirrordescent.methods.lbfgs import LBFGS
from mirrordescent.methods.primal_dual import PDHG, CondatVu, DualFISTA, PrimalDual
from mirrordescent.problems.base import Problem, in_double
from mirrordescent.problems.composite import Composite
from mirrordescent.problems.fingerprint import code_digest, fingerprint
from mirrordescent.problems.linear_models import SVM
from mirrordescent.problems.origin import in_library, user_definition
from mirrordescent.problems.programs import QP
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.problems.sizes import natural_length
from mirrordescent.problems.statements import (
    Way,
    allowed_excess,
    premises,
    require_consistent,
    require_statements,
    sample_points,
)
from mirrordescent.references.estimate import estimate as estimate_optimum, until
from mirrordescent.references.verification import (
    PROOFS,
    Kind,
    Verification,
    Witness,
    recompute,
    verify,
)
from mirrordescent.references.witnesses import witness_of_pair, witness_of_point
from mirrordescent.solving import Rule, Snapshot, relative_gap, rounding_of, solve
from mirrordescent.solving.stopping import INFEASIBILITY
from mirrordescent.trees import Tree, tree_map, where

ITERATIONS = 40_000
"""Largest number of steps of a solver that certifies."""

TRIAL_ITERATIONS = 200
"""Steps of each trial run that chooses the ratio of step sizes."""

BOUND_EVERY = 20
"""Steps of FISTA or L-BFGS after which a bound is computed in any case."""

RATIOS = (0.1, 0.5, 2.0, 10.0, 50.0)
"""Ratios of step sizes that are tried."""

RELAXATION = 1.8
"""Over-relaxation of primal-dual methods, which saves a third of the steps to high accuracy."""

VALUE_NAMES = frozenset(("value", "lower", "start_value"))
"""Names of the numbers in a stored certificate."""

WITNESS = "witness "
"""Beginning of the names of the tensors of a stored witness."""

PROBES = 2
"""Number of points at which f is evaluated before a stored certificate is used."""

WAYS: tuple[Way | None, ...] = (None, "minimiser", "saddle point", "gradients")
"""How bounds are proven, in the order of the numbers in stored certificates.

None is a registered certifier.
"""

KINDS: tuple[Kind, ...] = ("tangent", "dual point")
"""Kinds of witnesses, in the order of the numbers in stored certificates."""

ROUNDING = 1e-9
"""Relative rounding error of a sum of many terms."""

PATIENCE = 500
"""Steps of FISTA or L-BFGS without a smaller gap after which they stop."""

SADDLE_PATIENCE = 5000
"""The same for primal-dual methods, which oscillate."""

P = TypeVar("P", bound=Problem)
Optimum: TypeAlias = tuple[Tensor, Tensor]
"""Minimisers (batch, …) and lower bounds (batch,)."""

_CERTIFIERS: dict[type[Problem], Callable[..., Optimum]] = {}


class _Bound(NamedTuple):
    """Minimisers, lower bounds, how they were proven, and a witness if there is one."""

    x: Tensor
    lower: Tensor
    way: Way | None
    witness: Witness | None


@dataclass(frozen=True, repr=False)
class Certificate:
    """A point x*, its value and a lower bound per problem: lower ≤ min f ≤ value, in float64.

    Attributes:
        x: Best points found.
        value: f(x*).
        lower: Lower bounds on min f.
        start_value: f at the problem's own start, to which relative gaps refer.
        proven: Whether ``lower`` is proven, and every premise of the proof is derived by this
            library.
        conditional_on: Statements of users' classes that the proof rests on, in words, such as
            "f is convex". They were tested at samples. If ``proven`` is False and there are none,
            ``lower`` is an estimate, or a bound that no witness proves; ``proof`` says which.
        proof: Method of proof in words.
        witness: Numbers from which :meth:`verify` recomputes the bound. Every certificate with
            ``proven`` has one.
    """

    x: Tensor
    value: Tensor
    lower: Tensor
    start_value: Tensor
    proven: bool = True
    conditional_on: tuple[str, ...] = ()
    proof: str = ""
    witness: Witness | None = None

    def __repr__(self) -> str:
        rows = dict(self._rows())
        words = ", ".join(f"{name}: {text}" for name, text in rows.items())
        number = len(self.value)
        return f"<Certificate of {number} problem{'s' * (number != 1)}: {words}>"

    def _repr_html_(self) -> str:
        """Return the numbers of the certificate as a table, for notebooks."""
        return html.table([("problems", str(len(self.value))), *self._rows()])

    def _rows(self) -> list[tuple[str, str]]:
        """Return the facts of a summary as pairs of a name and a text."""
        verdict = "proven"
        if self.conditional_on:
            verdict = f"proven if {' and '.join(self.conditional_on)}, as stated"
        elif not self.proven:
            verdict = "estimated"
        return [
            ("largest relative gap", f"{float(self.relative_gap.max()):.2g}"),
            ("mean value", f"{float(self.value.mean()):.6g}"),
            ("bound", verdict),
            ("proof", self.proof),
        ]

    @property
    def estimated(self) -> bool:
        """Whether ``lower`` is an estimate, without any proof."""
        return not self.proven and not self.conditional_on

    def verify(self, problem: Problem) -> Verification:
        """Recompute the lower bound from the witness, and compare it with ``lower``.

        The computation uses the data and the values of the problem. It does not use its methods
        ``grad``, ``bound_at``, ``minimiser`` or ``lower_bound``, or the solver that found the
        witness. It is made in double precision, and rounding is subtracted.

        Args:
            problem: Batch of problems that this certificate is for.

        >>> import torch
        >>> from mirrordescent import TVDenoising
        >>> problem = TVDenoising(torch.rand(1, 1, 8, 8))
        >>> certify(problem, cache=False).verify(problem).confirmed
        True
        """
        return verify(
            self.witness, problem, self.lower, self.start_value, self.x, self.conditional_on
        )

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
    seconds: float = math.inf,
) -> Certificate:
    """Solve a batch of problems in float64 to a certified relative gap.

    These are tried in order:

    1. A function given to :func:`register`.
    2. The problem's own minimiser (:meth:`Problem.minimiser`): the SVM, quadratics, least squares.
    3. The saddle-point form (:meth:`Problem.saddle_point`): total variation, Poisson tomography,
       matrix games. It is solved by dual FISTA if it is strongly convex, else by PDHG.
    4. FISTA or L-BFGS, if the problem can prove bounds from gradients (:meth:`Problem.bound_at`).
       This needs a convex f that is strongly convex or has a bounded domain.

    Statements of users' classes, such as ``convex = True``, are tested at random points before
    they are used. A bound that rests on such statements is not ``proven`` but ``conditional_on``
    them.

    Results are cached on disk under a hash of the problem's data and of the code of users' classes.
    A cached result is used only if f still has the same values at x and at a few other points. If
    the tolerance was not reached, there is a warning, and the certificate has the gap that was
    reached. There is also a warning if x violates constraints that enter f by a penalty.

    Args:
        problem: Batch of problems.
        tolerance: Relative gap to reach.
        cache: Whether to read the result from disk, and to store it there.
        estimate: Whether to return the least values of long runs, marked as not proven, if nothing
            can be proven. By default this is an error.
        x0: Start of these runs; by default the problem's own start.
        seconds: Time limit. A run that reaches it ends at its next check, with the gap that it has
            reached, and is not stored on disk. A method of a class, such as ``minimiser``, is not
            interrupted.

    >>> import torch
    >>> from mirrordescent import TVDenoising
    >>> reference = certify(TVDenoising(torch.rand(1, 1, 8, 8)), cache=False)
    >>> bool(reference.lower <= reference.value), bool(reference.relative_gap <= 1e-6)
    (True, True)
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    deadline = perf_counter() + seconds
    key = None
    if cache and x0 is None:
        purpose = f"certify {tolerance:g}"
        if estimate:
            purpose += ", or estimate"
        key = _key(problem, purpose)
    entry = remember(
        key,
        lambda: _compute(problem, tolerance, estimate, x0, key is not None, deadline),
        lambda stored: _matches(problem, stored) and _still_holds(problem, stored),
        keep=lambda: perf_counter() < deadline,
    )
    certificate = _certificate(problem, entry)

    def error() -> Tensor:
        exact = _in_double(problem)
        return allowed_excess(exact, certificate.x, exact.start(len(certificate.x)))

    require_consistent(
        problem,
        certificate.lower,
        certificate.value,
        certificate.start_value,
        certificate.conditional_on,
        error,
    )
    largest_gap = float(certificate.relative_gap.max())
    if not certificate.estimated and largest_gap > tolerance and perf_counter() < deadline:
        warnings.warn(
            f"certified to a relative gap of {largest_gap:.1e} only, not {tolerance:.1e}",
            stacklevel=2,
        )
    if not certificate.estimated and _is_infeasible(problem, certificate, tolerance):
        warnings.warn(
            f"x violates constraints of {type(problem).__name__}, so that its value is no upper "
            "bound on the optimum over feasible points: there may be no feasible point, or the "
            "penalty is too small",
            stacklevel=2,
        )
    return certificate


@torch.no_grad()
def _is_infeasible(problem: Problem, certificate: Certificate, tolerance: float) -> bool:
    """Tell whether a penalty for violated constraints is larger than the allowed gap.

    The factor is that of :func:`~mirrordescent.solving.gap`.
    """
    penalty = _in_double(problem).infeasibility(certificate.x)
    if penalty is None:
        return False
    gap = (certificate.value - certificate.lower).clamp(min=0)
    allowed = torch.maximum(tolerance * (certificate.start_value - certificate.lower), gap)
    rounding = ROUNDING * (certificate.value.abs() + certificate.lower.abs())
    return bool((penalty > INFEASIBILITY * allowed + rounding).any())


def _key(problem: Problem, purpose: str) -> str | None:
    """Return the key of a certificate in the cache; None if nothing may be cached."""
    certifier = _certifier_of(problem)
    if certifier is not None:
        code = code_digest(certifier)
        if code is None:
            return None
        purpose += f" by {code}"
    return fingerprint(problem, purpose)


def _certificate(problem: Problem, entry: dict[str, Tensor]) -> Certificate:
    """Return the certificate that an entry of the cache describes."""
    device = next(problem.buffers(), torch.empty(0)).device
    tensors: dict[str, Any] = {}
    for name in (*sorted(VALUE_NAMES), "x"):
        tensors[name] = tree_map(lambda leaf: leaf.to(device), entry[name])
    if not bool(entry.get("proven", True)):
        proof = "none: the bound is an estimate"
        if "way" in entry:
            proof = "none that can be checked: the bound cannot be recomputed from a witness"
        return Certificate(**tensors, proven=False, proof=proof)
    way = WAYS[int(entry.get("way", 0))]
    conditions = _conditions(problem, way)
    blocks = {}
    for name, tensor in entry.items():
        if name.startswith(WITNESS):
            blocks[name.removeprefix(WITNESS)] = tensor.to(device)
    witness = None
    proof = _PROOFS_WITHOUT_WITNESS[way]
    if blocks:
        witness = Witness(KINDS[int(entry["kind"])], blocks)
        proof = PROOFS[witness.kind]
    return Certificate(
        **tensors,
        proven=not conditions,
        conditional_on=conditions,
        proof=proof,
        witness=witness,
    )


_PROOFS_WITHOUT_WITNESS: dict[Way | None, str] = {
    None: "the certifier that was registered for this class",
    "minimiser": "the minimiser() of this class, which also returns lower bounds",
    "saddle point": "a dual point of the saddle-point form of this class",
    "gradients": "bound_at() of this class at an iterate",
}


def _conditions(problem: Problem, way: Way | None) -> tuple[str, ...]:
    """Return the statements of users that a bound rests on."""
    certifier = _certifier_of(problem)
    if way is None:
        if certifier is None or in_library(certifier):
            return ()
        return (f"the certifier registered for {type(problem).__name__} returns lower bounds",)
    return premises(problem, way)


def _matches(problem: Problem, entry: dict[str, Tensor]) -> bool:
    """Tell whether a stored entry can be a certificate of a problem.

    All names must be there, all shapes must be those of the problem, and no value may be below its
    lower bound.
    """
    required = VALUE_NAMES | {"x"}
    scalars = {"proven", "way", "kind"}
    names = {name for name in entry if not name.startswith(WITNESS)}
    if not required <= names <= required | scalars | {"probes"}:
        return False
    if len(names) < len(entry) and "kind" not in entry:
        return False
    if any(name in entry and entry[name].ndim for name in scalars):
        return False
    if not _is_index(entry.get("way"), len(WAYS)) or not _is_index(entry.get("kind"), len(KINDS)):
        return False
    x = entry["x"]
    batch = problem.batch or len(x)
    sample_shape = x.shape[1:] if problem.sample_shape is None else problem.sample_shape
    if x.shape != (batch, *sample_shape):
        return False
    if any(entry[name].shape != x.shape[:1] for name in VALUE_NAMES):
        return False
    return bool((entry["lower"] <= entry["value"] + ROUNDING * entry["value"].abs()).all())


def _is_index(stored: Tensor | None, length: int) -> bool:
    """Tell whether a stored number, if there is one, is an index of a table of this length."""
    return stored is None or 0 <= int(stored) < length


@torch.no_grad()
def _still_holds(problem: Problem, entry: dict[str, Tensor]) -> bool:
    """Tell whether f still has its stored values, at x, at the start and at random points."""
    if "probes" not in entry:
        return False
    precise = _in_double(problem)
    values = _probe_values(precise, entry["x"].to(next(precise.buffers(), entry["x"]).device))
    stored = entry["probes"].to(values.device)
    if values.shape != stored.shape:
        return False
    size = stored.abs() + 1e-3 * stored.abs().amax(0)
    return bool(((values - stored).abs() <= ROUNDING * size).all())


def _probe_values(problem: Problem, x: Tensor) -> Tensor:
    """Return the values of f at x, at the start and at some random points, (points, batch)."""
    start = cast(Tensor, problem.start(len(x)))
    length = natural_length(problem, start)
    points = [x, start, *sample_points(problem.domain, start, PROBES, length)]
    return torch.stack([problem.value(point) for point in points])


def _in_double(problem: Problem) -> Problem:
    if problem.sample_shape is None:
        return copy.deepcopy(problem).double()
    return in_double(problem, problem.start())[0]


@without_autocast
@torch.no_grad()
def _compute(
    problem: Problem,
    tolerance: float,
    or_estimate: bool,
    x0: Tree | None,
    stored: bool,
    deadline: float,
) -> dict[str, Tensor]:
    """Return the tensors of a certificate, proven if possible.

    Args:
        problem: Batch of problems.
        tolerance: Relative gap to reach.
        or_estimate: Whether to estimate the minimum if nothing can be proven.
        x0: Start of the estimate.
        stored: Whether the entry is stored, so that values at other points are needed.
        deadline: Time after which solvers stop, as measured by ``perf_counter``.
    """
    precise = _in_double(problem)
    least: Tensor | None = None
    if _has_statements(precise):
        least = require_statements(precise)
    bound = _proven_optimum(precise, tolerance, deadline)
    if bound is not None:
        entry = _entry(precise, bound, least)
        if stored and problem.sample_shape is not None:
            entry["probes"] = _probe_values(precise, bound.x)
        return entry
    if not or_estimate:
        raise NotCertifiable(
            f"{type(problem).__name__} cannot be certified: it has neither a saddle-point form "
            "(saddle_point) nor a minimiser of its own (minimiser) nor bounds from gradients "
            "(bound_at), which need a convex f that is strongly convex or has a bounded domain. "
            "Pass estimate=True for the least values found, unproven"
        )
    precise, start = in_double(problem, problem.start() if x0 is None else x0)
    start = precise.domain.project(start)  # exact in single precision may be outside in double
    point, value, lower = estimate_optimum(precise, start, deadline=deadline)
    entry = {
        "x": cast(Tensor, point),
        "value": value,
        "lower": lower,
        "start_value": precise.value(start),
        "proven": torch.tensor(False),
    }
    if stored and problem.sample_shape is not None:
        entry["probes"] = _probe_values(precise, cast(Tensor, point))
    return entry


def _has_statements(problem: Problem) -> bool:
    """Tell whether a bound on the minimum of a problem may rest on statements of users."""
    if _certifier_of(problem) is not None:
        return False
    return bool(premises(problem) or premises(problem, "minimiser"))


def _entry(problem: Problem, bound: _Bound, least: Tensor | None) -> dict[str, Tensor]:
    """Return the tensors of a proven certificate.

    Args:
        problem: Problem in double precision.
        bound: Minimisers and bounds.
        least: Values of f at other points, if it was evaluated there.
    """
    x = bound.x
    value = problem.value(x)
    start_value = problem.value(problem.start(len(x)))
    conditions = _conditions(problem, bound.way)

    def error() -> Tensor:
        return allowed_excess(problem, x, problem.start(len(x)))

    if least is not None:
        require_consistent(problem, bound.lower, value, least, conditions, error)
    require_consistent(problem, bound.lower, value, start_value, conditions, error)
    entry = {
        "x": x,
        "value": value,
        "lower": bound.lower,
        "start_value": start_value,
        "proven": torch.tensor(True),
        "way": torch.tensor(WAYS.index(bound.way)),
    }
    confirmed = None if bound.witness is None else recompute(bound.witness, problem)
    if confirmed is not None and bool(confirmed.isfinite().all()):
        entry["lower"] = torch.minimum(bound.lower, _with_margin(confirmed, start_value))
    elif not conditions:
        entry["proven"] = torch.tensor(False)
    if bound.witness is not None:
        entry["kind"] = torch.tensor(KINDS.index(bound.witness.kind))
        for name, tensor in bound.witness.tensors.items():
            entry[WITNESS + name] = tensor.contiguous()
    return entry


def _with_margin(bound: Tensor, start_value: Tensor) -> Tensor:
    """Lower a recomputed bound a little, since other machines add numbers in another order."""
    eps = torch.finfo(bound.dtype).eps
    lowered = bound - 16 * eps * bound.abs() - 4 * eps * (start_value - bound).clamp(min=0)
    return torch.where(bound == 0, bound, lowered)  # f ≥ 0 is exact


def _certifier_of(problem: Problem) -> Callable[..., Optimum] | None:
    """Return the function that was registered for the class of a problem, if there is one."""
    for kind in type(problem).__mro__:
        if kind in _CERTIFIERS:
            return _CERTIFIERS[kind]
    return None


def _proven_optimum(problem: Problem, tolerance: float, deadline: float) -> _Bound | None:
    """Return minimisers and proven lower bounds by the first way that applies, if there is one."""
    certifier = _certifier_of(problem)
    if certifier is not None:
        return _Bound(*certifier(problem, tolerance), way=None, witness=None)
    if isinstance(problem, SVM) and user_definition(problem, "minimiser") is None:
        x, lower, alpha = problem.minimiser_and_dual(tolerance)
        return _Bound(x, lower, "minimiser", Witness("dual point", {"alpha": alpha}))
    if isinstance(problem, QP) and user_definition(problem, "minimiser") is None:
        found = problem.minimiser_and_pair(tolerance)
        if found is not None:
            x, lower, point, y = found
            return _Bound(x, lower, "minimiser", Witness("dual point", {"x": point, "y": y}))
    optimum = problem.minimiser(tolerance)
    if optimum is not None:
        x, lower = optimum
        return _Bound(x, lower, "minimiser", Witness("tangent", {"x": x}))
    if isinstance(problem, Composite) and problem.linearised:
        bound = _solve_with_gradient_bounds(problem, tolerance, deadline)
        if bound is not None:
            return bound
    saddle = problem.saddle_point()
    if saddle is not None:
        bound = _solve_saddle_point(problem, saddle, tolerance, deadline)
        if bound is not None:
            return bound
    return _solve_with_gradient_bounds(problem, tolerance, deadline)


def _solve_saddle_point(
    problem: Problem, saddle: SaddlePoint, tolerance: float, deadline: float
) -> _Bound | None:
    """Return the best iterate and the best lower bound of a primal-dual method.

    The result is None if the dual points prove no finite bounds.
    """
    method = primal_dual(problem, saddle, deadline)
    bound = method.lower_bound(problem, method.init(problem.start(), problem))
    if bound is None or not bool(bound.isfinite().all()):
        return None
    best = _BestDualPoint(method)
    solution = solve(
        problem,
        method,
        iterations=ITERATIONS,
        stop=[
            _small_gap(problem, tolerance),
            _stalled(SADDLE_PATIENCE, lambda snapshot: cast(Tensor, snapshot.lower)),
            until(deadline),
        ],
        callbacks=[best],
        check_every=50,
        trace=[0],  # not needed
    )
    return _Bound(
        cast(Tensor, solution.best_x),
        cast(Tensor, solution.lower),
        "saddle point",
        best.witness(problem),
    )


class _BestDualPoint:
    """A callback that keeps the primal and dual point of the best bound of every sample.

    Args:
        method: Primal-dual method.
    """

    def __init__(self, method: PrimalDual[Any]) -> None:
        self.method = method
        self.lower: Tensor | None = None
        self.x: Tree | None = None
        self.u: Tree | None = None

    def __call__(self, snapshot: Snapshot) -> None:
        """Keep the points of the samples whose bound has improved."""
        lower = cast(Tensor, snapshot.lower)
        x = self.method.answer(snapshot.state)
        u = snapshot.state.u
        if self.lower is None or self.u is None or self.x is None:
            self.x = tree_map(torch.clone, x)
            self.u = tree_map(torch.clone, u)
        else:
            better = lower > self.lower
            self.x = where(better, x, self.x)
            self.u = where(better, u, self.u)
        self.lower = lower.clone()

    def witness(self, problem: Problem) -> Witness | None:
        """Return the points as a witness, in the form that is verified."""
        if self.x is None or self.u is None:
            return None
        return witness_of_pair(problem, self.method.saddle(problem), cast(Tensor, self.x), self.u)


def primal_dual(
    problem: Problem, saddle: SaddlePoint, deadline: float = math.inf
) -> PrimalDual[Any]:
    """Return the primal-dual method for a saddle-point form.

    It is dual FISTA if F is strongly convex, PDHG with over-relaxation if F has a proximal
    operator, and Condat–Vũ if not. If the form does not state a ratio of step sizes, short runs
    with all ``RATIOS`` are compared by the largest gap over the problems, or by the largest value
    if there are no bounds. Relaxed steps of Condat–Vũ may be shorter, so both are tried.
    """
    if saddle.F_convexity > 0:
        return DualFISTA()

    def make(setting: tuple[float, float]) -> PDHG:
        ratio, rho = setting
        return PDHG(ratio, rho) if saddle.proximable else CondatVu(ratio, relaxation=rho)

    relaxations = (RELAXATION,) if saddle.proximable else (1.0, RELAXATION)
    if saddle.ratio is not None:
        return make((saddle.ratio, relaxations[0]))
    settings = [(ratio, rho) for ratio in RATIOS for rho in relaxations]

    def largest_gap(setting: tuple[float, float]) -> float:
        run = solve(
            problem,
            make(setting),
            iterations=TRIAL_ITERATIONS,
            check_every=TRIAL_ITERATIONS if deadline == math.inf else 10,
            stop=until(deadline),
            progress=False,
        )
        if run.lower is None or not bool(run.lower.isfinite().all()):
            return float(run.best_value.max())
        return float((run.best_value - run.lower).max())

    return make(min(settings, key=largest_gap))


def _solve_with_gradient_bounds(
    problem: Problem, tolerance: float, deadline: float = math.inf
) -> _Bound | None:
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

    point = problem.start()

    previous: Tensor | None = None

    def small_gap(snapshot: Snapshot) -> Tensor:
        nonlocal lower, point, previous
        best = cast(Tensor, lower)
        value = snapshot.best_value
        decrease = torch.full_like(value, torch.inf) if previous is None else previous - value
        previous = value.clone()
        # A bound costs a few steps. It is not tight yet if f has just fallen by much.
        falling = decrease > 10 * tolerance * (snapshot.start_value - value)
        if snapshot.k % BOUND_EVERY and bool(falling.any()):
            return torch.zeros_like(snapshot.running)
        if snapshot.k:  # the bound of the start is known
            bound = torch.fmax(best, cast(Tensor, problem.bound_at(snapshot.x, convexity)))
            point = where(bound > best, snapshot.x, point)
            best = bound
            lower = bound
        rounding = 16 * rounding_of(snapshot.best_value, best)
        allowed = torch.maximum(tolerance * (snapshot.start_value - best), rounding)
        return snapshot.best_value - best <= allowed

    method: Method[Any] = LBFGS() if isinstance(problem.domain, WholeSpace) else FISTA()
    solution = solve(
        problem,
        method,
        iterations=ITERATIONS,
        stop=[
            Rule(small_gap),
            _stalled(PATIENCE, lambda snapshot: lower),
            until(deadline),
        ],
        check_every=5,
        trace=[0],  # not needed
    )
    witness = witness_of_point(problem, point)
    return _Bound(cast(Tensor, solution.best_x), lower, "gradients", witness)


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
        rounding = rounding_of(snapshot.best_value, lower)
        return snapshot.best_value - lower <= torch.maximum(tolerance * scale, rounding)

    return Rule(small_gap)


def _stalled(patience: int, lower_of: Callable[[Snapshot], Tensor]) -> Rule:
    """Return the rule that the least gap of a sample has not become smaller for some time.

    Bounds are lowered by their rounding errors, so a gap may never reach its tolerance, for example
    if the start is optimal.

    Args:
        patience: Number of steps without a smaller gap.
        lower_of: Function that returns the best lower bound so far, (batch,).
    """
    least: Tensor | None = None
    since: Tensor | None = None

    def stalled(snapshot: Snapshot) -> Tensor:
        nonlocal least, since
        gap = snapshot.best_value - lower_of(snapshot)
        if least is None or since is None:
            least = gap.clone()
            since = torch.full_like(gap, snapshot.k)
        smaller = gap < least
        least = torch.where(smaller, gap, least)
        since = torch.where(smaller, snapshot.k, since)
        return snapshot.k - since >= patience

    return Rule(stalled)
