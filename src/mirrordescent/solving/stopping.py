"""Stop rules, and the snapshots of a run that they are applied to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrordescent.methods.base import Method
from mirrordescent.problems.base import Problem, in_double
from mirrordescent.solving.solution import Status
from mirrordescent.trees import Tree, leaves, norm, tree_map

ROUNDING = 4.0
"""Rounding error of a value of f, in units of the machine epsilon times its size."""


class PreviousCheck(NamedTuple):
    """The method's answer and the best lower bound at the check before."""

    x: Tree
    lower: Tensor | None


@dataclass(frozen=True)
class Evaluation:
    """Values of f at points, with bounds on their rounding errors that are computed on first use.

    Args:
        problem: Batch of problems.
        x: Points.
        value: f(x) as computed, (batch,).
    """

    problem: Problem
    x: Tree
    value: Tensor

    @cached_property
    def error(self) -> Tensor:
        """A bound on the rounding error of ``value``, (batch,)."""
        return self.problem.value_error(self.x, self.value)

    @cached_property
    def in_double(self) -> "Evaluation":
        """The same in double precision, if the problem supports it."""
        if self.value.dtype == torch.float64:
            return self
        problem, x = in_double(self.problem, self.x)
        return Evaluation(problem, x, problem.value(x))


@dataclass(frozen=True)
class Snapshot:
    """A run at iteration k, as stop rules and callbacks see it.

    ``x`` is the method's answer and ``value`` its objective; ``lower`` is the best proven lower
    bound so far. ``start`` has f(x₀), and ``previous`` the answer and the bound at the check
    before. Numbers per sample are tensors (batch,).
    """

    k: int
    x: Tree
    value: Tensor
    start: Evaluation
    best_value: Tensor
    previous: PreviousCheck | None
    lower: Tensor | None
    seconds: float
    running: Tensor
    problem: Problem
    method: Method[Any]
    state: Any
    memo: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Results that the parts of a rule share."""

    @property
    def start_value(self) -> Tensor:
        """f(x₀)."""
        return self.start.value

    @cached_property
    def evaluation(self) -> Evaluation:
        """f(x) with its rounding error."""
        return Evaluation(self.problem, self.x, self.value)

    @property
    def previous_x(self) -> Tree | None:
        """The answer at the check before, or None at the first check."""
        return None if self.previous is None else self.previous.x

    @cached_property
    def grad(self) -> Tree:
        """The exact gradient at x, computed on first use."""
        return self.problem.grad(self.x)


@dataclass(frozen=True)
class Rule:
    """A test of a snapshot.

    Args:
        test: Function from a snapshot to the samples that should stop, (batch,) bool.
        status: Status of these samples.
        undecidable: Function from a snapshot to the samples for which rounding errors hide whether
            the test will ever be passed, (batch,) bool. They stop with
            :attr:`Status.PRECISION`. None means that rounding never matters.
    """

    test: Callable[[Snapshot], Tensor]
    status: Status = Status.CONVERGED
    undecidable: Callable[[Snapshot], Tensor] | None = None
    needs_bound: bool = False
    """Whether the test needs a lower bound. If the method proves none, the problem is asked."""

    def __call__(self, snapshot: Snapshot) -> Tensor:
        """Return the samples that should stop, (batch,) bool."""
        return self.test(snapshot)


def rounding_of(*values: Tensor) -> Tensor:
    """Return the rounding error of differences of values of f: 4 machine epsilons of their size.

    It is proportional to f, so that it does not depend on units. Of values with different types,
    the least precise type counts.

    >>> rounding_of(torch.tensor([0.0, 1.0]), torch.tensor([0.0, -2.0])) / torch.finfo().eps
    tensor([0., 8.])
    """
    size = values[0].abs()
    for value in values[1:]:
        size = torch.maximum(size, value.abs())
    return ROUNDING * max(torch.finfo(value.dtype).eps for value in values) * size


def relative_gap(value: Tensor, lower: Tensor, start_value: Tensor) -> Tensor:
    """Return (f − lower)/max(f(x₀) − lower, ε), the remaining share of the gap at the start.

    ε is the rounding error of f(x₀) − lower. It prevents a division by 0 if f(x₀) is optimal. If
    all values are 0, so is the result. The result does not depend on the units of f.
    """
    scale = torch.maximum(start_value - lower, rounding_of(start_value, lower.to(value)))
    return (value - lower) / scale.clamp(min=torch.finfo(scale.dtype).tiny)


INFEASIBILITY = 2.0
"""Largest penalty for violated constraints, relative to the allowed gap."""


class _Measured(NamedTuple):
    """The gap of every sample, the gap that is allowed, and the rounding error of both.

    ``penalty`` is the penalty for violated constraints, if f has one.
    """

    difference: Tensor
    allowed: Tensor
    rounding: Tensor
    penalty: Tensor | None = None


def gap(
    tolerance: float, lower: Tensor | float | None = None, *, start_value: Tensor | None = None
) -> Rule:
    """Stop at a relative gap: f(x) − lower + ε ≤ tolerance · (f(x₀) − lower).

    ε bounds the rounding errors of both sides (:meth:`Problem.value_error`), so the true values of
    f satisfy the inequality. If ε leaves it open in single precision, f is evaluated in double
    precision. If the right-hand side is less than 2ε, rounding hides whether it was reached. A
    sample with such a tolerance stops with :attr:`Status.PRECISION` when f(x) − lower ≤ 2ε, or when
    x and the lower bound change by no more than rounding errors between two checks.

    If constraints enter f by a penalty (:meth:`Problem.infeasibility`), the penalty at x must also
    be at most twice the right-hand side.

    Args:
        tolerance: Share of the gap at the start that may remain.
        lower: Lower bound on the optimal values, such as the value of a reference. By default the
            bound that the method proves (PDHG, DualFISTA, Certified), or that the problem proves
            at the answer (:meth:`Problem.bound_at`).
        start_value: Value to use as f(x₀). By default the value at the start of the run.
    """
    _require_positive("tolerance", tolerance)

    def bound_of(snapshot: Snapshot) -> Tensor | None:
        if lower is not None:
            return torch.as_tensor(lower).to(snapshot.value.device)
        if snapshot.lower is not None:
            return snapshot.lower
        # Some methods have no bound before their first step.
        if snapshot.method.certifies and snapshot.k == 0:
            return None
        name = type(snapshot.method).__name__
        problem = type(snapshot.problem).__name__
        raise ValueError(
            f"gap() needs a lower bound, and neither {name} nor {problem} gives one: give lower=, "
            "or use a primal-dual method"
        )

    def measure(snapshot: Snapshot, bound: Tensor) -> _Measured:
        """Compare the values as computed; ε is a few units in the last place of f."""
        first = snapshot.start_value if start_value is None else start_value
        bound = bound.to(snapshot.value)
        return _Measured(
            snapshot.value - bound,
            tolerance * (first - bound),
            rounding_of(snapshot.value, bound),
        )

    def measure_with_error(here: Evaluation, start: Evaluation, bound: Tensor) -> _Measured:
        """Compare values with bounds on their errors."""
        bound = bound.to(here.value)
        first = start.value
        first_error = start.error
        if start_value is not None:
            first = start_value.to(here.value)
            first_error = rounding_of(start_value).to(here.value)
        rounding = here.error + tolerance * first_error + rounding_of(here.value, bound)
        penalty = here.problem.infeasibility(here.x)
        return _Measured(here.value - bound, tolerance * (first - bound), rounding, penalty)

    def test(snapshot: Snapshot) -> Tensor:
        bound = bound_of(snapshot)
        if bound is None:
            return torch.zeros_like(snapshot.running)
        measured = measure(snapshot, bound)
        reached = _reached(measured)
        here = snapshot.evaluation
        start = snapshot.start
        if bool((reached & snapshot.running).any()):
            measured = measure_with_error(here, start, bound)
            confirmed = _confirmed(measured)
            if bool((reached & ~confirmed & snapshot.running).any()):
                # The error of f(x₀) counts little, and seldom needs double precision.
                measured = measure_with_error(here.in_double, start, bound)
                confirmed = _confirmed(measured)
            if bool((reached & ~confirmed & snapshot.running).any()):
                measured = measure_with_error(here.in_double, start.in_double, bound)
                confirmed = _confirmed(measured)
            reached &= confirmed
        snapshot.memo[test] = measured
        return reached

    def undecidable(snapshot: Snapshot) -> Tensor:
        measured = snapshot.memo.get(test)
        if measured is None:
            return torch.zeros_like(snapshot.running)
        too_small = measured.allowed < 2 * measured.rounding
        if not bool(too_small.any()):
            return too_small
        indistinguishable = measured.difference <= 2 * measured.rounding
        return too_small & (indistinguishable | _settled(snapshot, measured.rounding))

    return Rule(test, undecidable=undecidable, needs_bound=lower is None)


def _reached(measured: _Measured) -> Tensor:
    """Return the samples whose gap is allowed, whatever the rounding errors."""
    within = measured.difference + measured.rounding <= measured.allowed
    # Without a finite bound, both sides are infinite.
    return within & measured.difference.isfinite()


def _confirmed(measured: _Measured) -> Tensor:
    """Return the samples whose gap and whose violation of constraints are allowed."""
    reached = _reached(measured)
    if measured.penalty is None:
        return reached
    return reached & (measured.penalty <= INFEASIBILITY * measured.allowed)


def _settled(snapshot: Snapshot, rounding: Tensor) -> Tensor:
    """Return the samples whose x and lower bound changed by no more than rounding errors."""
    if snapshot.previous is None:
        return torch.zeros_like(snapshot.running)
    eps = torch.finfo(next(leaves(snapshot.x)).dtype).eps
    settled = _change(snapshot.x, snapshot.previous.x) <= ROUNDING * eps * norm(snapshot.x)
    if snapshot.lower is None:
        return settled
    if snapshot.previous.lower is None:
        return torch.zeros_like(snapshot.running)
    return settled & (snapshot.lower - snapshot.previous.lower <= rounding)


def _change(x: Tree, previous: Tree) -> Tensor:
    """Return ‖x − x'‖, where x' is the answer at the check before."""
    return norm(tree_map(torch.sub, x, previous))


def gradient_norm(tolerance: float, *, relative: bool = False) -> Rule:
    """Stop when ‖∇f(x)‖₂ ≤ tolerance, with the exact gradient.

    Args:
        tolerance: Largest norm.
        relative: Whether the tolerance is a share of the norm at the start of the run. Then it does
            not depend on the units of f and x.
    """
    _require_positive("tolerance", tolerance)
    first: Tensor | None = None

    def test(snapshot: Snapshot) -> Tensor:
        nonlocal first
        size = norm(snapshot.grad)
        if not relative:
            return size <= tolerance
        if snapshot.k == 0 or first is None:
            first = size
        return size <= tolerance * first

    return Rule(test)


def relative_change(tolerance: float) -> Rule:
    """Stop when ‖x − x'‖ ≤ tolerance · ‖x‖, where x' is the answer at the check before.

    A tolerance below the machine epsilon cannot be told from no change at all. Samples that reach
    it stop with :attr:`Status.PRECISION`.
    """
    _require_positive("tolerance", tolerance)

    def settled(snapshot: Snapshot) -> Tensor:
        if snapshot.previous_x is None:
            return torch.zeros_like(snapshot.running)
        return _change(snapshot.x, snapshot.previous_x) <= tolerance * norm(snapshot.x)

    def too_small(snapshot: Snapshot) -> bool:
        return tolerance < torch.finfo(next(leaves(snapshot.x)).dtype).eps

    def test(snapshot: Snapshot) -> Tensor:
        return settled(snapshot) & (not too_small(snapshot))

    def undecidable(snapshot: Snapshot) -> Tensor:
        return settled(snapshot) & too_small(snapshot)

    return Rule(test, undecidable=undecidable)


def wall_clock(seconds: float) -> Rule:
    """Stop all samples at the first check after this many seconds of iterations.

    Their status is :attr:`Status.BUDGET`.
    """
    _require_positive("seconds", seconds)

    def test(snapshot: Snapshot) -> Tensor:
        return torch.full_like(snapshot.running, snapshot.seconds >= seconds)

    return Rule(test, Status.BUDGET)


def _require_positive(name: str, number: float) -> None:
    if not number > 0:
        raise ValueError(f"{name} must be > 0, got {number}")
