"""Which theorem is about a method, and runs whose every step can be held against it."""

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
from mirrordescent.parts import written_together
from mirrordescent.problems import Problem
from mirrordescent.trees import Tree, tree_map


class Seen(NamedTuple):
    """The state before the last step, the gradient that the method was told there, and the true
    one.
    """

    before: Any
    told: Tree
    true: Tree

    @property
    def noise(self) -> Tree:
        """Δ = G − g."""
        return tree_map(torch.sub, self.told, self.true)


class Rows(dict[str, list[Tensor]]):
    """Numbers per sample by name, a row for each look: those of samples that have stopped
    are NaN.
    """

    def append(self, found: Mapping[str, Tensor], running: Tensor) -> None:
        for name, numbers in found.items():
            self.setdefault(name, []).append(torch.where(running, numbers, torch.nan))

    def stacked(self) -> dict[str, Tensor]:
        """Return the series: (rows, batch) each."""
        return {name: torch.stack(rows) for name, rows in self.items()}


class Watched(StatefulWrapper):
    """A method whose states remember the step that led to them, as :class:`Seen`; the iterates are
    the method's own.
    """

    method: GradientMethod[Any]

    def __init__(self, method: GradientMethod[Any]) -> None:
        if not isinstance(method, GradientMethod) or overrides_step(method):
            raise TypeError(
                "Watched needs a GradientMethod that does not override step(); "
                f"got {type(method).__name__}"
            )
        super().__init__(method)

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        inner = self.method.init(x0, problem)
        nothing = tree_map(torch.zeros_like, inner.x)
        return Wrapped(inner, Seen(inner, nothing, nothing))

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        told = self.method.gradient(problem, state.inner, oracle, generator)
        true = (
            told if isinstance(self.resolve_oracle(oracle), Exact) else problem.grad(state.inner.x)
        )
        return Wrapped(self.method.update(state.inner, told), Seen(state.inner, told, true))


def bare(method: Method[Any]) -> Method[Any]:
    """Return the method itself, without wrappers that bring an oracle or watch."""
    while isinstance(method, (Equipped, Watched)):
        method = method.method
    return method


def theorem_of(method: Method[Any]) -> Theorem | None:
    """Return which theorem is about a method: none if it has no map, or if a subclass has changed
    the steps.

    An :class:`~mirrordescent.methods.Equipped` method has the theorem of the method inside. There
    is none about other wrappers, such as averages: what they do to the run is not in the theorems.
    """
    method = bare(method)
    stated = method.mirror is not None and written_together(
        type(method), "theorem", "update", "step"
    )
    return method.theorem if stated else None


def storage_of(method: Method[Any]) -> Storage:
    """Return in which space a method, or the one inside, keeps its mirror iterate; primal if it
    does not say.
    """
    while isinstance(method, Wrapper):
        method = method.method
    return getattr(method, "storage", "primal")
