"""Weighted averages of iterates."""

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method, StatefulWrapper, Wrapped
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import ScheduleLike, as_schedule
from mirrordescent.trees import Tree, batch_size, leaves, per_sample, tree_map


class Average(NamedTuple):
    """The average so far, and the sum of its weights, (batch,)."""

    mean: Tree
    weight: Tensor


class Averaged(StatefulWrapper):
    """The weighted mean of a method's iterates, Σ tᵢ x^(i) / Σ tᵢ for i = 0 … k, as in Theorem 2.

    The inner method runs unchanged; only the answer differs.

    Args:
        method: Inner method.
        weights: Weights t. By default the method's step sizes.
    """

    def __init__(self, method: Method[Any], weights: ScheduleLike | None = None) -> None:
        super().__init__(method)
        if weights is None:
            weights = getattr(method, "t", None)
        if weights is None:
            raise ValueError(
                f"{type(method).__name__} has no step sizes t to use as weights: give weights="
            )
        self.weights = as_schedule(weights, "weights")

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        """Initialise the inner method; the average begins as its first answer."""
        inner = self.method.init(x0, problem)
        # One weight for each sample, since samples may restart.
        ones = next(leaves(x0)).new_ones(batch_size(x0))
        weight = ones * self.weights(1)
        return Wrapped(inner, Average(self.method.answer(inner), weight))

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        inner = self.method.step(problem, state.inner, oracle, generator)
        average = state.own
        t = self.weights(inner.k + 1)
        total = average.weight + t
        answer = self.method.answer(inner)
        share = t / total
        mean = tree_map(lambda a, b: torch.lerp(b, a, per_sample(share, a)), answer, average.mean)
        return Wrapped(inner, Average(mean, total))

    def answer(self, state: Wrapped) -> Tree:
        return state.own.mean
