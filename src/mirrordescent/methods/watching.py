"""An oracle that is listened to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torch import Generator

from mirrordescent.oracles import Around, Oracle
from mirrordescent.trees import Tree, mix

if TYPE_CHECKING:
    from mirrordescent.problems.base import Problem


@dataclass
class Means:
    """Weighted means of gradients and of the points they belong to; what is told next has the given share in them."""

    share: float
    gradient: Tree | None
    point: Tree | None

    def tell(self, x: Tree, gradient: Tree) -> None:
        """Take in one more."""
        self.keep(x, gradient if self.gradient is None else mix(self.share, gradient, self.gradient))

    def keep(self, x: Tree, gradient: Tree) -> None:
        """Take in one more point, with a mean of gradients that was made elsewhere."""
        self.gradient = gradient
        if self.point is not x:  # the mean of a point with itself costs nothing
            self.point = x if self.point is None else mix(self.share, x, self.point)


class Watching(Around):
    """Another oracle, and means of what it says; random gradients are not counted."""

    def __init__(self, oracle: Oracle, means: Means) -> None:
        super().__init__(oracle)
        self.means = means

    def around(self, oracle: Oracle) -> Watching:
        """Listen to another one."""
        return Watching(oracle, self.means)

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        """Ask the other oracle."""
        gradient = cast(Tree, self.oracle(problem, x, k, generator))
        if not self.stochastic:
            self.means.tell(x, gradient)
        return gradient
