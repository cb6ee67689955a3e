"""The theorem about a method, and runs whose steps are recorded for a comparison with it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent.methods import (
    Equipped,
    GradientMethod,
    Method,
    StatefulWrapper,
    Wrapped,
    Wrapper,
)
from mirrordescent.methods.base import Storage, Theorem
from mirrordescent.methods.equipped import overrides_step
from mirrordescent.oracles import Exact, Oracle
from mirrordescent.parts import claim_holds
from mirrordescent.problems import Problem
from mirrordescent.trees import Tree, tree_map


class RecordedStep(NamedTuple):
    """The step that led to a state.

    Attributes:
        previous: State before the step.
        gradient: Gradient G that the oracle returned there.
        true_gradient: Gradient g = ∇f at the same point.
    """

    previous: Any
    gradient: Tree
    true_gradient: Tree

    @property
    def noise(self) -> Tree:
        """Δ = G − g."""
        return tree_map(torch.sub, self.gradient, self.true_gradient)


class SeriesBuilder(dict[str, list[Tensor]]):
    """Series of numbers per sample, by name; entries of samples that have stopped are NaN."""

    def append(self, measured: Mapping[str, Tensor], running: Tensor) -> None:
        """Append one row to each of the named series."""
        for name, numbers in measured.items():
            self.setdefault(name, []).append(torch.where(running, numbers, torch.nan))

    def stacked(self) -> dict[str, Tensor]:
        """Return the series as tensors: (rows, batch) each."""
        return {name: torch.stack(rows) for name, rows in self.items()}


class StepRecorder(StatefulWrapper):
    """A method whose states contain the step that led to them; the iterates do not change.

    The own part of the state is a :class:`RecordedStep`.

    Args:
        method: Method with gradients that does not override ``step``.
    """

    method: GradientMethod[Any]

    def __init__(self, method: GradientMethod[Any]) -> None:
        if not isinstance(method, GradientMethod) or overrides_step(method):
            raise TypeError(
                "StepRecorder needs a GradientMethod that does not override step(); "
                f"got {type(method).__name__}"
            )
        super().__init__(method)

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        inner = self.method.init(x0, problem)
        zero = tree_map(torch.zeros_like, inner.x)
        return Wrapped(inner, RecordedStep(inner, zero, zero))

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        gradient = self.method.gradient(problem, state.inner, oracle, generator)
        true_gradient = gradient
        if not isinstance(self.resolve_oracle(oracle), Exact):
            true_gradient = problem.grad(state.inner.x)
        inner = self.method.update(state.inner, gradient)
        return Wrapped(inner, RecordedStep(state.inner, gradient, true_gradient))


def unwrap(method: Method[Any]) -> Method[Any]:
    """Return the method inside wrappers that supply an oracle or record steps."""
    while isinstance(method, (Equipped, StepRecorder)):
        method = method.method
    return method


def theorem_of(method: Method[Any]) -> Theorem | None:
    """Return the theorem that covers a method, or None.

    A method without a mirror map has no theorem, and a subclass that changes the steps does not
    inherit the theorem of its parent. An :class:`~mirrordescent.methods.Equipped` method has the
    theorem of the method inside. Other wrappers, such as averages, have none: the theorems do not
    cover the changes they make to a run.
    """
    method = unwrap(method)
    if method.mirror is None:
        return None
    if not claim_holds(type(method), "theorem", "update", "step"):
        return None
    return method.theorem


def storage_of(method: Method[Any]) -> Storage:
    """Return the space in which a method, or the method inside, keeps its mirror iterate.

    The default is primal.
    """
    while isinstance(method, Wrapper):
        method = method.method
    return getattr(method, "storage", "primal")
