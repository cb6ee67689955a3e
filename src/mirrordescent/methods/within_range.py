"""A learned method for the problems that it was learned on, and a fallback for others."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method, StatefulWrapper, Wrapped
from mirrordescent.oracles import Default, Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, batch_size, dot, norm, per_sample, tree_map, where

SHORT = 1e-3
"""Length of the step along which curvature is measured, relative to the size of x."""


class OutOfRange(UserWarning):
    """A problem differs from those that a method was learned on."""


class Fallback(NamedTuple):
    """The samples that use the fallback, (batch,) bool, and its state; None if there are none."""

    outside: Tensor
    state: Any


class WithinRange(StatefulWrapper):
    """A learned method that is used only for problems like those it was learned on.

    Every problem is described by the features of its class and by two numbers that all problems
    have: log ‖∇f(x₀)‖, and the logarithm of the curvature of f along this gradient. Step sizes
    that were learned for one curvature are wrong for another. Samples with a feature outside of its
    range are solved by the fallback from the start, with a warning.

    Args:
        method: Learned method.
        fallback: Method for other problems, such as a classical one.
        ranges: Smallest and largest value of every feature.
    """

    def __init__(
        self,
        method: Method[Any],
        fallback: Method[Any],
        ranges: Mapping[str, Sequence[float]],
    ) -> None:
        super().__init__(method)
        self.fallback = fallback
        self.ranges = {name: [float(low), float(high)] for name, (low, high) in ranges.items()}

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        if problem is None:
            raise TypeError(
                "WithinRange compares features, and needs the problem from the start: "
                "call init(x0, problem)"
            )
        outside = self.outside(problem, x0)
        state = None
        if bool(outside.any()):
            warnings.warn(
                f"{int(outside.sum())} of {len(outside)} problems differ from those that the "
                f"method was learned on ({self._reason(problem, x0)}): they are solved by "
                f"{type(self.fallback).__name__}",
                OutOfRange,
                stacklevel=2,
            )
            state = self.fallback.init(x0, problem)
        return Wrapped(self.method.init(x0, problem), Fallback(outside, state))

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        inner = self.method.step(problem, state.inner, oracle, generator)
        other = state.own.state
        if other is not None:
            other = self.fallback.step(problem, other, Default(), generator)
        return Wrapped(inner, state.own._replace(state=other))

    def answer(self, state: Wrapped) -> Tree:
        x = self.method.answer(state.inner)
        if state.own.state is None:
            return x
        return where(state.own.outside, self.fallback.answer(state.own.state), x)

    def inside(self, state: Wrapped) -> Tensor | None:
        """The learned method may leave its domain for samples that use the fallback."""
        inside = self.method.inside(state.inner)
        return None if inside is None else inside | state.own.outside

    @property
    def certifies(self) -> bool:
        """Whether the learned method proves bounds; the fallback runs for some samples only."""
        return self.method.certifies

    def lower_bound(self, problem: Problem, state: Wrapped) -> Tensor | None:
        bounds = [self.method.lower_bound(problem, state.inner)]
        if state.own.state is not None:
            bounds.append(self.fallback.lower_bound(problem, state.own.state))
        known = [bound for bound in bounds if bound is not None]
        return torch.stack(known).amax(0) if known else None

    def outside(self, problem: Problem, x0: Tree) -> Tensor:
        """Return the samples with a feature outside of its range, (batch,) bool."""
        found = problem_features(problem, x0)
        outside = torch.zeros(batch_size(x0), dtype=torch.bool)
        for name, (low, high) in self.ranges.items():
            if name in found:
                values = found[name].double().cpu()
                outside = outside | ~((values >= low) & (values <= high))
        return outside.to(next(iter(found.values())).device)

    def _reason(self, problem: Problem, x0: Tree) -> str:
        """Return the feature that is farthest from its range, in words."""
        worst = ("", 0.0, 0.0, 0.0)
        for name, values in problem_features(problem, x0).items():
            if name not in self.ranges:
                continue
            low, high = self.ranges[name]
            for value in (float(values.double().min()), float(values.double().max())):
                distance = max(low - value, value - high, 0.0) / max(high - low, 1e-12)
                if distance >= worst[1]:
                    worst = (name, distance, value, high if value > high else low)
        return f"{worst[0]} is {worst[2]:.3g}, beyond {worst[3]:.3g}"


@torch.no_grad()
def problem_features(problem: Problem, x0: Tree) -> dict[str, Tensor]:
    """Return the features of a class, and the steepness and curvature at the start, (batch,) each.

    Args:
        problem: Batch of problems.
        x0: Starts.
    """
    features = dict(problem.features(x0))
    gradient = problem.grad(x0)
    size = norm(gradient).double()
    tiny = 1e-300
    features["steepness"] = size.clamp(min=tiny).log()
    length = SHORT * norm(x0).clamp(min=1.0) / norm(gradient).clamp(min=1e-30)
    moved = tree_map(lambda x, g: x - per_sample(length, g) * g, x0, gradient)
    moved = problem.domain.project(moved)
    way = tree_map(torch.sub, x0, moved)
    change = tree_map(torch.sub, gradient, problem.grad(moved))
    curvature = dot(way, change).double() / dot(way, way).double().clamp(min=tiny)
    features["curvature"] = curvature.clamp(min=1e-12).log()
    return features


def feature_ranges(problem: Problem, x0: Tree, margin: float = 0.5) -> dict[str, list[float]]:
    """Return the ranges of the features of some problems, widened by a share of their width.

    The width counts as at least log 4, so that problems of one scale are not all alike.

    Args:
        problem: Problems that represent a class.
        x0: Starts.
        margin: Share of the width by which each side is widened.
    """
    ranges = {}
    for name, values in problem_features(problem, x0).items():
        low = float(values.double().min())
        high = float(values.double().max())
        wider = margin * max(high - low, 1.4)
        ranges[name] = [low - wider, high + wider]
    return ranges
