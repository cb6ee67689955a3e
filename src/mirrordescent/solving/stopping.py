"""Stop rules, and the snapshots of a run that they are applied to."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mirrordescent.methods.base import Method
from mirrordescent.problems.base import Problem
from mirrordescent.solving.solution import Status
from mirrordescent.trees import Tree, norm, tree_map


@dataclass(frozen=True)
class Snapshot:
    """A run at iteration k, as stop rules and callbacks see it.

    ``x`` is the method's answer and ``value`` its objective; ``lower`` is the best proven lower
    bound so far. ``previous_x`` is the answer at the snapshot before. Numbers per sample are
    tensors (batch,).
    """

    k: int
    x: Tree
    value: Tensor
    start_value: Tensor
    best_value: Tensor
    previous_x: Tree | None
    lower: Tensor | None
    seconds: float
    running: Tensor
    problem: Problem
    method: Method[Any]
    state: Any

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
    """

    test: Callable[[Snapshot], Tensor]
    status: Status = Status.CONVERGED

    def __call__(self, snapshot: Snapshot) -> Tensor:
        """Return the samples that should stop, (batch,) bool."""
        return self.test(snapshot)


def relative_gap(value: Tensor, lower: Tensor, start_value: Tensor) -> Tensor:
    """Return (f − lower)/max(f(x₀) − lower, ε), the remaining share of the gap at the start.

    ε is the rounding error of the values, so that the result is finite if f(x₀) is optimal.
    """
    eps = torch.finfo(value.dtype).eps * (1 + start_value.abs())
    return (value - lower) / torch.maximum(start_value - lower, eps)


def gap(
    tolerance: float, lower: Tensor | float | None = None, *, start_value: Tensor | None = None
) -> Rule:
    """Stop at a relative gap: f(x) − lower ≤ tolerance · (f(x₀) − lower).

    Args:
        tolerance: Share of the gap at the start that may remain.
        lower: Lower bound on the optimal values, such as the value of a reference. By default the
            bound that the method proves (PDHG, DualFISTA, Certified).
        start_value: Value to use as f(x₀). By default the value at the start of the run.
    """
    _require_positive("tolerance", tolerance)

    def test(snapshot: Snapshot) -> Tensor:
        bound = snapshot.lower
        if lower is not None:
            bound = torch.as_tensor(lower).to(snapshot.value)
        if bound is not None:
            first = snapshot.start_value if start_value is None else start_value
            return relative_gap(snapshot.value, bound, first) <= tolerance
        # Some methods have no bound before their first step.
        if snapshot.method.certifies and snapshot.k == 0:
            return torch.zeros_like(snapshot.running)
        name = type(snapshot.method).__name__
        raise ValueError(f"gap() needs a lower bound, and {name} gives none: give lower=")

    return Rule(test)


def gradient_norm(tolerance: float) -> Rule:
    """Stop when ‖∇f(x)‖₂ ≤ tolerance, with the exact gradient."""
    _require_positive("tolerance", tolerance)
    return Rule(lambda snapshot: norm(snapshot.grad) <= tolerance)


def relative_change(tolerance: float) -> Rule:
    """Stop when ‖x − x'‖ ≤ tolerance · ‖x‖, where x' is the answer at the check before."""
    _require_positive("tolerance", tolerance)

    def test(snapshot: Snapshot) -> Tensor:
        if snapshot.previous_x is None:
            return torch.zeros_like(snapshot.running)
        change = tree_map(torch.sub, snapshot.x, snapshot.previous_x)
        return norm(change) <= tolerance * norm(snapshot.x)

    return Rule(test)


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
