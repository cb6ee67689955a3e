"""A method together with the oracle it was learned with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Generator, Tensor

from mirrordescent.methods.base import Method
from mirrordescent.oracles import Around
from mirrordescent.trees import Tree

if TYPE_CHECKING:
    from mirrordescent.mirrors.base import MirrorMap
    from mirrordescent.oracles import Oracle
    from mirrordescent.problems.base import Problem


class Equipped(Method[Any]):
    """A method that brings its own oracle, so that both can be learned, stored and used as one.

    >>> import torch
    >>> from mirrordescent import GD, TVDenoising, solve
    >>> from mirrordescent.oracles import Smoothed
    >>> method = Equipped(GD(0.1), Smoothed(0.2))
    >>> problem = TVDenoising(torch.rand(1, 1, 8, 8))
    >>> bool(solve(problem, method, iterations=50).value < problem.value(problem.start()))
    True
    """

    def __init__(self, method: Method[Any], oracle: Oracle) -> None:
        super().__init__()
        self.method, self.oracle = method, oracle

    @property
    def mirror(self) -> MirrorMap | None:
        """The map of the method, if it has one."""
        return getattr(self.method, "mirror", None)

    def init(self, x0: Tree) -> Any:
        """Start the method."""
        return self.method.init(x0)

    def update(self, state: Any, grad: Tree) -> Any:
        """Update the method."""
        return self.method.update(state, grad)

    def step(self, problem: Problem, state: Any, oracle: Oracle, generator: Generator | None = None) -> Any:
        """Let the method step with its own oracle; another one that is random would be an error."""
        if oracle.stochastic:
            raise TypeError(f"{type(self.method).__name__} is equipped with an oracle: it cannot use another")
        own = oracle.instead(self.oracle) if isinstance(oracle, Around) else self.oracle
        return self.method.step(problem, state, own, generator)

    def answer(self, state: Any) -> Tree:
        """Ask the method."""
        return self.method.answer(state)

    def inside(self, state: Any) -> Tensor | None:
        """Ask the method."""
        return self.method.inside(state)

    def lower_bound(self, problem: Problem, state: Any) -> Tensor | None:
        """Ask the method."""
        return self.method.lower_bound(problem, state)
