"""The ergodic average of any method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Generator, Tensor

from mirrordescent.methods.base import Method, State
from mirrordescent.schedules import Number, ScheduleLike, as_schedule
from mirrordescent.trees import Tree, mix

if TYPE_CHECKING:
    from mirrordescent.oracles import Oracle
    from mirrordescent.problems.base import Problem


class AveragedState(NamedTuple):
    """The inner method's state, the average so far, and the sum of its weights."""

    inner: State
    mean: Tree
    weight: Number

    @property
    def k(self) -> int:
        """Steps taken."""
        return self.inner.k

    @property
    def x(self) -> Tree:
        """The inner method's query point."""
        return self.inner.x


class Averaged(Method[AveragedState]):
    """The weighted mean of a method's iterates, Σ tᵢ x^(i) / Σ tᵢ for i = 0 … k, as in Theorem 2.

    The inner method runs unchanged; only the answer differs. Weights are the method's step sizes
    unless given.
    """

    def __init__(self, method: Method[Any], weights: ScheduleLike | None = None) -> None:
        super().__init__()
        self.method = method
        if weights is None:
            weights = getattr(method, "t", None)
        if weights is None:
            raise ValueError(f"{type(method).__name__} has no step sizes t to weigh iterates by: give weights=")
        self.weights = as_schedule(weights, "weights")

    def init(self, x0: Tree) -> AveragedState:
        """Start the inner method; the average is its first answer."""
        inner = self.method.init(x0)
        return AveragedState(inner, self.method.answer(inner), self.weights(1))

    def update(self, state: AveragedState, grad: Tree) -> AveragedState:
        """Update the inner method and take its new answer into the average."""
        return self._absorb(state, self.method.update(state.inner, grad))

    def step(
        self, problem: Problem, state: AveragedState, oracle: Oracle, generator: Generator | None = None
    ) -> AveragedState:
        """Step the inner method in its own way and take its new answer into the average."""
        return self._absorb(state, self.method.step(problem, state.inner, oracle, generator))

    def answer(self, state: AveragedState) -> Tree:
        """Return the average."""
        return state.mean

    def inside(self, state: AveragedState) -> Tensor | None:
        """Ask the inner method."""
        return self.method.inside(state.inner)

    def lower_bound(self, problem: Problem, state: AveragedState) -> Tensor | None:
        """Ask the inner method."""
        return self.method.lower_bound(problem, state.inner)

    def _absorb(self, state: AveragedState, inner: State) -> AveragedState:
        t = self.weights(inner.k + 1)
        total = state.weight + t
        return AveragedState(inner, mix(t / total, self.method.answer(inner), state.mean), total)
