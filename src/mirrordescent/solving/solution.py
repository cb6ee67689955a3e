"""What a solve returns."""

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torch import Tensor

from mirrordescent.trees import Tree


class Status(IntEnum):
    """How the solve of one sample ended."""

    RUNNING = 0
    CONVERGED = 1
    BUDGET = 2
    DIVERGED = 3
    NON_FINITE = 4
    LEFT_DOMAIN = 5

    @property
    def failed(self) -> bool:
        """Whether the last iterate is of no use."""
        return self >= Status.DIVERGED

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Trace:
    """Values along a run: iterations (points,), seconds (points,), values (points, batch)."""

    iterations: list[int]
    seconds: list[float]
    values: Tensor

    def at(self, iteration: int) -> Tensor:
        """Return the values recorded at an iteration: (batch,)."""
        try:
            return self.values[self.iterations.index(iteration)]
        except ValueError:
            raise KeyError(
                f"iteration {iteration} was not recorded; recorded are {self.iterations}"
            ) from None


@dataclass(frozen=True)
class Solution:
    """The outcome of a solve, sample by sample.

    ``x`` is the method's answer when the sample stopped; for a failed sample, the best iterate
    seen. ``best_x`` and ``best_value`` are the best over all looks. ``steps`` counts the iterations
    of each sample, ``seconds`` the time spent iterating. ``lower`` is a proven lower bound where
    the method gives one. ``state`` is the method's state, frozen for samples that stopped early.
    """

    x: Tree
    value: Tensor
    best_x: Tree
    best_value: Tensor
    statuses: list[Status]
    steps: Tensor
    seconds: float
    trace: Trace
    lower: Tensor | None
    state: Any

    @property
    def ok(self) -> bool:
        """Whether no sample failed."""
        return not any(status.failed for status in self.statuses)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in Counter(self.statuses).items())
        return (
            f"Solution: {len(self.statuses)} problems ({counts}), {int(self.steps.max())} iterations, "
            f"{self.seconds:.2f} s, mean value {float(self.value.mean()):.6g}"
        )
