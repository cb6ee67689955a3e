"""A method whose answer is never worse than its start, for methods that may diverge."""

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method, StatefulWrapper, Wrapped
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, is_finite, where


class BestPoint(NamedTuple):
    """The best point of all checks, and its value (batch,)."""

    x: Tree
    value: Tensor


class NeverWorse(StatefulWrapper):
    """A method whose answer is the best point of its checks, which is never worse than the start.

    The value of f is computed every few steps. A method that diverges for some samples therefore
    leaves a usable answer for them, from which another method can go on
    (:class:`~mirrordescent.methods.Switch`). :class:`Safeguarded` is the alternative for methods
    that use only gradients, whose steps it can shorten.

    Args:
        method: Method of any kind, such as a learned primal-dual method.
        every: Number of steps between checks; each check costs one value of f.

    >>> from mirrordescent import GD, Quadratic, solve
    >>> steep = Quadratic(torch.tensor([1.0, 100.0]), centre=torch.ones(1, 2))
    >>> solution = solve(steep, NeverWorse(GD(1.0)), iterations=100)  # GD(1.0) diverges
    >>> bool(solution.value <= steep.value(steep.start()))
    True
    """

    def __init__(self, method: Method[Any], every: int = 5) -> None:
        super().__init__(method)
        if every < 1:
            raise ValueError(f"NeverWorse needs every ≥ 1, got every={every}")
        self.every = every

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        if problem is None:
            raise TypeError(
                "NeverWorse compares values of f, and needs the problem from the start: "
                "call init(x0, problem)"
            )
        return Wrapped(self.method.init(x0, problem), BestPoint(x0, problem.value(x0)))

    def warm_start(self, state: Wrapped, problem: Problem) -> Wrapped:
        """Return a first state with the inner method's own warm start."""
        begun = self.init(self.answer(state), problem)
        return begun._replace(inner=self.method.warm_start(state.inner, problem))

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        inner = self.method.step(problem, state.inner, oracle, generator)
        return self.check(problem, Wrapped(inner, state.own))

    def check(self, problem: Problem, state: Wrapped) -> Wrapped:
        """Compare values if a check is due at this count."""
        if state.k % self.every:
            return state
        inner, best = state
        x = self.method.answer(inner)
        value = problem.value(x)
        improved = (value < best.value) & is_finite(x) & problem.domain.contains(x, closed=True)
        point = where(improved, x, best.x)
        return Wrapped(inner, BestPoint(point, torch.where(improved, value, best.value)))

    def answer(self, state: Wrapped) -> Tree:
        return state.own.x

    def inside(self, state: Wrapped) -> Tensor | None:
        """All samples: the answer lies inside, wherever the method is."""
        return None
