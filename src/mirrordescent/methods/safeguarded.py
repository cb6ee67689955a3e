"""A safety net for learned methods: return to the best point and shorten the steps where the value
rises.
"""

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method, Run, StatefulWrapper, Wrapped
from mirrordescent.oracles import Oracle, Scaled
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, batch_size, where


class Guard(NamedTuple):
    """The best point with its value, and the first value; per sample, step factors and how often it
    fell back.
    """

    best: Tree
    best_value: Tensor
    start_value: Tensor
    factor: Tensor
    fallbacks: Tensor


class Safeguarded(StatefulWrapper):
    """Any method, safeguarded: after every few steps, with b the best point so far and f₀ the value
    at the start,

    .. code-block:: none

        f(x) < f(b)                         b ← x
        f(x) > f(b) + slack·(f₀ − f(b))     fall back: start again at b, with steps of half the length
        otherwise                           steps of twice the length, up to the method's own

    sample by sample. Halving ends at steps that are admissible, whatever the smoothness of f. Steps
    are shortened by scaling the gradients that the method is told, so it must be one that moves by
    gradients alone. The answer is b as of the last look: never worse than the start.
    ``state.own.fallbacks`` counts them.

    Args:
        method: the method to safeguard.
        every: steps between looks; each costs one value of f.
        slack: the share of the gain that may be lost before falling back; accelerated methods do
            not fall steadily.

    >>> from mirrordescent import zoo
    >>> method = Safeguarded(zoo.load("photo-inpaint-stencil"))
    """

    def __init__(self, method: Method[Any], every: int = 10, slack: float = 0.01) -> None:
        super().__init__(method)
        if every < 1 or not slack >= 0:
            raise ValueError(
                f"Safeguarded needs every ≥ 1 and slack ≥ 0, got every={every}, slack={slack}"
            )
        method.resolve_oracle(
            Scaled(torch.ones(1))
        )  # or it says now that it cannot shorten its steps that way
        self.every = every
        self.slack = float(slack)

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        if problem is None:
            raise TypeError(
                "Safeguarded looks at values, and has to know the problem from the start: init(x0, problem)"
            )
        value = problem.value(x0)
        fallbacks = torch.zeros(batch_size(x0), dtype=torch.int, device=value.device)
        return Wrapped(
            self.method.init(x0, problem),
            Guard(x0, value, value, torch.ones_like(value), fallbacks),
        )

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        """Let the method step, and look at the result if it is time to."""
        factor = state.own.factor
        asked = Scaled(factor, oracle) if bool((factor < 1).any()) else oracle
        return self._looked(
            problem, Wrapped(self.method.step(problem, state.inner, asked, generator), state.own)
        )

    def kernel(self, problem: Problem, oracle: Oracle) -> Run[Wrapped] | None:
        """Return the method's compiled steps, with looks between them; shortened steps are not
        compiled.
        """
        kernel = self.method.kernel(problem, oracle)
        if kernel is None:
            return None

        def run(state: Wrapped, steps: int) -> Wrapped:
            while steps > 0:
                if bool((state.own.factor < 1).any()):
                    state = self.step(problem, state, oracle)
                    taken = 1
                else:
                    taken = min(steps, self.every - state.k % self.every)
                    state = self._looked(problem, Wrapped(kernel(state.inner, taken), state.own))
                steps -= taken
            return state

        return run

    def answer(self, state: Wrapped) -> Tree:
        return state.own.best

    def _looked(self, problem: Problem, state: Wrapped) -> Wrapped:
        if state.k % self.every:
            return state
        inner, guard = state
        x = self.method.answer(inner)
        value = problem.value(x)
        improved = value < guard.best_value
        best = where(improved, x, guard.best)
        best_value = torch.where(improved, value, guard.best_value)
        rose = ~(
            value <= best_value + self.slack * (guard.start_value - best_value)
        )  # so does what is not a number
        if bool(rose.any()):
            inner = where(rose, self.method.resume(best, problem, state.k), inner)
        factor = torch.where(rose, guard.factor / 2, (2 * guard.factor).clamp(max=1))
        return Wrapped(
            inner, Guard(best, best_value, guard.start_value, factor, guard.fallbacks + rose)
        )
