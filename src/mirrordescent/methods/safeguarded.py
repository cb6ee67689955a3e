"""A net under learned methods: return to the best point and shorten the steps where the value rises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method, State
from mirrordescent.oracles import Around
from mirrordescent.trees import Tree, batch_size, leaves, tree_map, where

if TYPE_CHECKING:
    from mirrordescent.mirrors.base import MirrorMap
    from mirrordescent.oracles import Oracle
    from mirrordescent.problems.base import Problem


class SafeguardedState(NamedTuple):
    """The inner state; the best point with its value, and the first value; per sample, step factors and fall-backs."""

    inner: State
    best: Tree
    best_value: Tensor | None
    start_value: Tensor | None
    factor: Tensor
    fallbacks: Tensor

    @property
    def k(self) -> int:
        """Steps taken."""
        return self.inner.k

    @property
    def x(self) -> Tree:
        """The inner method's query point."""
        return self.inner.x


class Safeguarded(Method[SafeguardedState]):
    """Any method, looked after: every so many steps, with b the best point so far and f₀ the value at the start,

    .. code-block:: none

        f(x) < f(b)                      b ← x
        f(x) > f(b) + slack·(f₀ − f(b))     fall back: start again at b, with steps of half the length
        otherwise                        steps of twice the length, up to the method's own

    sample by sample. Halving ends at steps that are admissible, whatever the smoothness of f. Steps are shortened by
    scaling the gradients that the method is told, so it must be one that moves by gradients alone. The answer is b as
    of the last look: never worse than the start. ``state.fallbacks`` counts.

    Args:
        method: to be looked after.
        every: steps between looks; each costs one value of f.
        slack: how much of what was gained may be lost before falling back; accelerated methods do not fall evenly.

    >>> from mirrordescent import zoo
    >>> method = Safeguarded(zoo.load("photo-inpaint-spectral"))
    """

    def __init__(self, method: Method[Any], every: int = 10, slack: float = 0.01) -> None:
        super().__init__()
        if every < 1 or not slack >= 0:
            raise ValueError(f"Safeguarded needs every ≥ 1 and slack ≥ 0, got every={every}, slack={slack}")
        self.method, self.every, self.slack = method, every, float(slack)

    @property
    def mirror(self) -> MirrorMap | None:
        """The map of the method, if it has one."""
        return getattr(self.method, "mirror", None)

    def init(self, x0: Tree) -> SafeguardedState:
        """Start the method, with steps of full length."""
        factor = next(leaves(x0)).new_ones(batch_size(x0))
        return SafeguardedState(self.method.init(x0), x0, None, None, factor, torch.zeros_like(factor, dtype=torch.int))

    def update(self, state: SafeguardedState, grad: Tree) -> SafeguardedState:
        """Refuse: without the problem there are no values to look at."""
        raise TypeError("Safeguarded looks at values: use step, or solve, which give it the problem")

    def step(
        self, problem: Problem, state: SafeguardedState, oracle: Oracle, generator: Generator | None = None
    ) -> SafeguardedState:
        """Let the method step, and look at what came of it if it is time to."""
        if state.best_value is None:
            value = problem.value(state.best)
            state = state._replace(best_value=value, start_value=value)
        asked = _Scaled(oracle, state.factor) if bool((state.factor < 1).any()) else oracle
        inner = self.method.step(problem, state.inner, asked, generator)
        state = state._replace(inner=inner)
        return self._look(problem, state) if inner.k % self.every == 0 else state

    def answer(self, state: SafeguardedState) -> Tree:
        """Return the best point as of the last look."""
        return state.best

    def inside(self, state: SafeguardedState) -> Tensor | None:
        """Ask the method."""
        return self.method.inside(state.inner)

    def lower_bound(self, problem: Problem, state: SafeguardedState) -> Tensor | None:
        """Ask the method: what it proved of the optimal value stays true when it falls back."""
        return self.method.lower_bound(problem, state.inner)

    def _look(self, problem: Problem, state: SafeguardedState) -> SafeguardedState:
        assert state.best_value is not None
        assert state.start_value is not None
        x = self.method.answer(state.inner)
        value = problem.value(x)
        improved = value < state.best_value
        best, best_value = where(improved, x, state.best), torch.where(improved, value, state.best_value)
        rose = ~(value <= best_value + self.slack * (state.start_value - best_value))  # so does what is not a number
        inner = state.inner
        if bool(rose.any()):
            again = cast(Any, self.method.init(best))._replace(k=inner.k)
            inner = _choose(rose, again, inner)
        factor = torch.where(rose, state.factor / 2, (2 * state.factor).clamp(max=1))
        return state._replace(
            inner=inner, best=best, best_value=best_value, factor=factor, fallbacks=state.fallbacks + rose
        )


class _Scaled(Around):
    """An oracle whose answers are multiplied, sample by sample."""

    def __init__(self, oracle: Oracle, factor: Tensor) -> None:
        super().__init__(oracle)
        self.factor = factor

    def around(self, oracle: Oracle) -> _Scaled:
        return _Scaled(oracle, self.factor)

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        gradient = self.oracle(problem, x, k, generator)
        return tree_map(lambda g: self.factor.reshape(-1, *[1] * (g.ndim - 1)) * g, gradient)


def _choose(samples: Tensor, first: Any, second: Any) -> Any:
    """Take whole samples of one state and the rest of another, field by field."""
    if hasattr(second, "_fields"):
        return type(second)(*(_choose(samples, *pair) for pair in zip(first, second, strict=True)))
    if isinstance(second, dict) or (isinstance(second, Tensor) and second.ndim > 0):
        return where(samples, first, second)
    return second
