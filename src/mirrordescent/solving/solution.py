"""The result of a solve."""

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
    PRECISION = 6
    """Rounding errors of f are larger than the tolerance, so that convergence cannot be decided."""

    INFEASIBLE = 7
    """No point satisfies the constraints; the method has a certificate."""

    UNBOUNDED = 8
    """The objective has no lower bound; the method has a direction along which it falls."""

    @property
    def failed(self) -> bool:
        """Whether the last iterate is unusable."""
        return self in _FAILURES

    @property
    def severity(self) -> int:
        """Rank of a status: converged, precision, running, budget, then the failures."""
        return _SEVERITY.index(self)

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


_FAILURES = (
    Status.DIVERGED,
    Status.NON_FINITE,
    Status.LEFT_DOMAIN,
    Status.INFEASIBLE,
    Status.UNBOUNDED,
)
_SEVERITY = (Status.CONVERGED, Status.PRECISION, Status.RUNNING, Status.BUDGET, *_FAILURES)


@dataclass(frozen=True)
class Trace:
    """Values along a run: iterations (points,), seconds (points,), values (points, batch)."""

    iterations: list[int]
    seconds: list[float]
    values: Tensor

    def at(self, iteration: int) -> Tensor:
        """Return the values recorded at an iteration, (batch,)."""
        if iteration not in self.iterations:
            raise KeyError(
                f"iteration {iteration} was not recorded; recorded are {self.iterations}"
            )
        return self.values[self.iterations.index(iteration)]


@dataclass(frozen=True)
class Solution:
    """The result of a solve, sample by sample.

    Attributes:
        x: Answer of the method when the sample stopped; for a failed sample, the best iterate.
        value: Objective at x.
        best_x: Best iterate over all checks.
        best_value: Objective at best_x.
        statuses: How the solve of every sample ended.
        steps: Number of iterations of every sample.
        seconds: Time spent on iterations.
        trace: Values along the run.
        lower: Lower bound on the optimal value, if the method gives one. It is proven if
            ``conditional_on`` is empty.
        state: State of the method, frozen for samples that stopped early.
        conditional_on: Statements of users' classes that ``lower`` rests on, in words, such as
            "f is convex". They were tested at samples, but not proven.
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
    conditional_on: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no sample failed."""
        return not any(status.failed for status in self.statuses)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in Counter(self.statuses).items())
        return (
            f"Solution: {len(self.statuses)} problems ({counts}), "
            f"{int(self.steps.max())} iterations, {self.seconds:.2f} s, "
            f"mean value {float(self.value.mean()):.6g}"
        )
