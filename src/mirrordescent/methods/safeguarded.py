"""A safeguard for learned methods: return to the best point with shorter steps if f rises."""

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method, StatefulWrapper, Wrapped
from mirrordescent.oracles import Oracle, Scaled
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, batch_size, where


class Guard(NamedTuple):
    """The best point, its value, and the value at the start; numbers are (batch,).

    ``factor`` multiplies the step sizes. ``fallbacks`` counts the returns to the best point.
    """

    best: Tree
    best_value: Tensor
    start_value: Tensor
    factor: Tensor
    fallbacks: Tensor


class Safeguarded(StatefulWrapper):
    """A method whose progress is checked. After every few steps, with the best point b so far:

    .. code-block:: none

        f(x) < f(b)                          b ← x
        f(x) > f(b) + slack·(f(x₀) − f(b))   fall back: start again at b, with half the step size
        otherwise                            twice the step size, up to the method's own

    sample by sample. The halving ends at admissible steps, whatever the smoothness of f. Steps are
    shortened by scaling the gradients that the method receives, so it must be one that uses only
    gradients. The answer is b as of the last check, which is never worse than the start.
    ``state.own.fallbacks`` counts the returns to b.

    Args:
        method: Method to safeguard.
        every: Number of steps between checks; each check costs one value of f.
        slack: Share of the gain that may be lost before falling back. Accelerated methods do not
            decrease f in every step.

    >>> from mirrordescent import zoo
    >>> method = Safeguarded(zoo.load("photo-inpaint-stencil"))
    """

    def __init__(self, method: Method[Any], every: int = 10, slack: float = 0.01) -> None:
        super().__init__(method)
        if every < 1 or not slack >= 0:
            raise ValueError(
                f"Safeguarded needs every ≥ 1 and slack ≥ 0, got every={every}, slack={slack}"
            )
        # Raise an error now if the steps of the method cannot be shortened by scaling gradients.
        method.resolve_oracle(Scaled(torch.ones(1)))
        self.every = every
        self.slack = float(slack)

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        if problem is None:
            raise TypeError(
                "Safeguarded compares values of f, and needs the problem from the start: "
                "call init(x0, problem)"
            )
        value = problem.value(x0)
        fallbacks = torch.zeros(batch_size(x0), dtype=torch.int, device=value.device)
        guard = Guard(x0, value, value, torch.ones_like(value), fallbacks)
        return Wrapped(self.method.init(x0, problem), guard)

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        factor = state.own.factor
        if bool((factor < 1).any()):
            oracle = Scaled(factor, oracle)
        inner = self.method.step(problem, state.inner, oracle, generator)
        return self.check(problem, Wrapped(inner, state.own))

    def check(self, problem: Problem, state: Wrapped) -> Wrapped:
        """Compare values if a check is due at this count, and fall back where f has risen."""
        if state.k % self.every:
            return state
        inner, guard = state
        x = self.method.answer(inner)
        value = problem.value(x)
        improved = value < guard.best_value
        best = where(improved, x, guard.best)
        best_value = torch.where(improved, value, guard.best_value)
        allowed = best_value + self.slack * (guard.start_value - best_value)
        rose = ~(value <= allowed)  # also true for NaN
        if bool(rose.any()):
            inner = where(rose, self.method.resume(best, problem, state.k), inner)
        factor = torch.where(rose, guard.factor / 2, (2 * guard.factor).clamp(max=1))
        fallbacks = guard.fallbacks + rose
        return Wrapped(inner, Guard(best, best_value, guard.start_value, factor, fallbacks))

    def answer(self, state: Wrapped) -> Tree:
        return state.own.best
