"""Stop rules, and the snapshots of a run that they are applied to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrordescent.methods.base import Method
from mirrordescent.problems.base import Problem
from mirrordescent.solving.solution import Status
from mirrordescent.trees import Tree, leaves, norm, tree_map

ROUNDING = 4.0
"""Rounding error of a value of f, in units of the machine epsilon times its size."""


class PreviousCheck(NamedTuple):
    """The method's answer and the best lower bound at the check before."""

    x: Tree
    lower: Tensor | None


@dataclass(frozen=True)
class Snapshot:
    """A run at iteration k, as stop rules and callbacks see it.

    ``x`` is the method's answer and ``value`` its objective; ``lower`` is the best proven lower
    bound so far. ``previous`` has the answer and the bound at the check before. Numbers per
    sample are tensors (batch,).
    """

    k: int
    x: Tree
    value: Tensor
    start_value: Tensor
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


def gap(
    tolerance: float, lower: Tensor | float | None = None, *, start_value: Tensor | None = None
) -> Rule:
    """Stop at a relative gap: f(x) − lower + ε ≤ tolerance · (f(x₀) − lower).

    ε is the rounding error of f(x) − lower, a multiple of the machine epsilon times the size of f.
    If the right-hand side is less than 2ε, rounding hides whether it was reached. A sample with
    such a tolerance stops with :attr:`Status.PRECISION` when f(x) − lower ≤ 2ε, or when x and the
    lower bound change by no more than rounding errors between two checks.

    Args:
        tolerance: Share of the gap at the start that may remain.
        lower: Lower bound on the optimal values, such as the value of a reference. By default the
            bound that the method proves (PDHG, DualFISTA, Certified).
        start_value: Value to use as f(x₀). By default the value at the start of the run.
    """
    _require_positive("tolerance", tolerance)

    def measure(snapshot: Snapshot) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the gap, the gap that is allowed, and the rounding error of the former."""
        bound = snapshot.lower
        if lower is not None:
            bound = torch.as_tensor(lower).to(snapshot.value)
        if bound is not None:
            first = snapshot.start_value if start_value is None else start_value
            measured = (
                snapshot.value - bound,
                tolerance * (first - bound),
                rounding_of(snapshot.value, bound),
            )
            snapshot.memo[measure] = measured
            return measured
        # Some methods have no bound before their first step.
        if snapshot.method.certifies and snapshot.k == 0:
            return None
        name = type(snapshot.method).__name__
        raise ValueError(f"gap() needs a lower bound, and {name} gives none: give lower=")

    def test(snapshot: Snapshot) -> Tensor:
        measured = measure(snapshot)
        if measured is None:
            return torch.zeros_like(snapshot.running)
        difference, allowed, rounding = measured
        # Without a finite bound, both sides are infinite.
        return (difference + rounding <= allowed) & difference.isfinite()

    def undecidable(snapshot: Snapshot) -> Tensor:
        measured = snapshot.memo.get(measure)
        if measured is None:
            return torch.zeros_like(snapshot.running)
        difference, allowed, rounding = measured
        too_small = allowed < 2 * rounding
        if not bool(too_small.any()):
            return too_small
        return too_small & ((difference <= 2 * rounding) | _settled(snapshot, rounding))

    return Rule(test, undecidable=undecidable)


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
