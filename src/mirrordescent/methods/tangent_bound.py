"""Lower bounds from the gradient at the answer of a method, for strongly convex problems."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method, StatefulWrapper, Wrapped
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, norm


class _Known(NamedTuple):
    """The modulus of strong convexity of a problem and f(x₀), computed once for a run."""

    convexity: float
    start: Tensor | None


class TangentBound(StatefulWrapper):
    """A method with the lower bound f(x) − ‖∇f(x)‖²/(2μ) at its answer x.

    μ is the modulus of strong convexity that the problem states
    (:meth:`~mirrordescent.problems.base.Problem.strong_convexity`). The bound is computed by
    :meth:`~mirrordescent.problems.base.Problem.bound_at` in double precision, with all rounding
    errors subtracted. It costs a value and a gradient in double precision, as much as a few steps.
    So it is computed only after ``first`` steps, and then after every ``every`` steps. If a
    tolerance is given with ``within``, it is computed only when the same formula without double
    precision gives a relative gap of at most this tolerance.

    Args:
        method: Method whose answer is bounded.
        first: Number of steps before the first bound.
        every: Number of steps between two bounds.
        within: Tolerance of the run; None to compute every bound that is due.

    >>> import torch
    >>> import mirrordescent as md
    >>> bowl = md.LogisticRegression(torch.eye(2), torch.ones(2), ridge=0.5)
    >>> method = TangentBound(md.methods.GD(0.5))
    >>> md.solve(bowl, method, iterations=100, stop=md.gap(1e-3)).statuses
    [<Status.CONVERGED: 1>]
    """

    def __init__(
        self, method: Method[Any], first: int = 0, every: int = 1, within: float | None = None
    ) -> None:
        super().__init__(method)
        if first < 0 or every < 1:
            raise ValueError(f"first must be ≥ 0 and every ≥ 1, got {first} and {every}")
        if within is not None and not within > 0:
            raise ValueError(f"within must be positive, got {within}")
        self.first = int(first)
        self.every = int(every)
        self.within = within

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        if problem is None:
            raise TypeError("TangentBound needs the problem from the start: call init(x0, problem)")
        convexity = problem.strong_convexity() or 0.0
        if not problem.convex or convexity <= 0:
            raise TypeError(
                "TangentBound needs a strongly convex problem, but strong_convexity() of "
                f"{type(problem).__name__} gives no positive modulus: add a term such as Anchor, "
                "or use a primal-dual method"
            )
        start = None if self.within is None else problem.value(x0)
        return Wrapped(self.method.init(x0, problem), _Known(convexity, start))

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        inner = self.method.step(problem, state.inner, oracle, generator)
        return Wrapped(inner, state.own)

    def lower_bound(self, problem: Problem, state: Wrapped) -> Tensor | None:
        """Return the bound at the answer; −∞ if it is not due yet."""
        x = self.answer(state)
        due = state.k >= self.first and (state.k - self.first) % self.every == 0
        if due and self._promising(problem, x, state.own):
            return problem.bound_at(x, state.own.convexity)
        assert isinstance(x, Tensor)
        return x.new_full((len(x),), -torch.inf)

    def _promising(self, problem: Problem, x: Tree, known: _Known) -> bool:
        """Return whether a sample is within the tolerance, as far as single precision shows."""
        if self.within is None or known.start is None:
            return True
        gap = norm(problem.grad(x)).square() / (2 * known.convexity)
        decrease = known.start - problem.value(x) + gap
        return bool((gap <= self.within * decrease).any())

    def tight_bound(self, problem: Problem, state: Wrapped) -> Tensor | None:
        return problem.bound_at(self.answer(state), state.own.convexity)
