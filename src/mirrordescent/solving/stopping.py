"""What is known at a look, and the rules that stop a sample on it."""

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
class Look:
    """A run at iteration k, as stop rules and callbacks see it. Per-sample numbers are (batch,)."""

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
        """The exact gradient at x, computed when first asked for."""
        return self.problem.grad(self.x)


@dataclass(frozen=True)
class Rule:
    """A test of a look, (batch,) bool, and the status it gives to samples that pass."""

    test: Callable[[Look], Tensor]
    status: Status = Status.CONVERGED

    def __call__(self, look: Look) -> Tensor:
        """Tell which samples should stop."""
        return self.test(look)


def relative_gap(value: Tensor, lower: Tensor, start_value: Tensor) -> Tensor:
    """(f − lower) / max(f(x₀) − lower, ε): the share of the first gap that is left, finite where f*
    = 0.

    ε is the rounding error of the values themselves.
    """
    eps = torch.finfo(value.dtype).eps * (1 + start_value.abs())
    return (value - lower) / torch.maximum(start_value - lower, eps)


def gap(
    tolerance: float, lower: Tensor | float | None = None, *, start_value: Tensor | None = None
) -> Rule:
    """Stop at a relative gap: f(x) − lower ≤ tolerance · (f(x₀) − lower).

    Args:
        tolerance: the share of the first gap that may be left.
        lower: a lower bound on the optimal values, such as a reference's; without it, the method's
            own, if it has one (PDHG, DualFISTA, Certified).
        start_value: what to take for f(x₀), if not the value at the start of the run.
    """
    _require_positive(tolerance, "tolerance")

    def test(look: Look) -> Tensor:
        bound = look.lower if lower is None else torch.as_tensor(lower).to(look.value)
        if bound is not None:
            first = look.start_value if start_value is None else start_value
            return relative_gap(look.value, bound, first) <= tolerance
        if look.method.certifies and look.k == 0:  # some have no bound before their first step
            return torch.zeros_like(look.running)
        raise ValueError(
            f"gap() needs a lower bound, and {type(look.method).__name__} gives none: give lower="
        )

    return Rule(test)


def gradient_norm(tolerance: float) -> Rule:
    """Stop when ‖∇f(x)‖₂ ≤ tolerance, with the exact gradient."""
    _require_positive(tolerance, "tolerance")
    return Rule(lambda look: norm(look.grad) <= tolerance)


def relative_change(tolerance: float) -> Rule:
    """Stop when ‖x − x'‖ ≤ tolerance · ‖x‖ for the iterate x' of the look before."""
    _require_positive(tolerance, "tolerance")

    def test(look: Look) -> Tensor:
        if look.previous_x is None:
            return torch.zeros_like(look.running)
        return norm(tree_map(torch.sub, look.x, look.previous_x)) <= tolerance * norm(look.x)

    return Rule(test)


def wall_clock(seconds: float) -> Rule:
    """Stop every sample, as out of budget, at the first look after this much time spent
    iterating.
    """
    _require_positive(seconds, "seconds")
    return Rule(lambda look: torch.full_like(look.running, look.seconds >= seconds), Status.BUDGET)


def _require_positive(number: float, name: str) -> None:
    if not number > 0:
        raise ValueError(f"{name} must be > 0, got {number}")
