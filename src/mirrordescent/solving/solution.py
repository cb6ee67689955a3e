"""The result of a solve."""

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torch import Tensor

from mirrordescent._internal import html
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


@dataclass(frozen=True, repr=False)
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

    def to_pandas(self) -> Any:
        """Return the trace as a pandas.DataFrame: one row a point, one column a sample."""
        import pandas

        frame = pandas.DataFrame(self.values.detach().cpu().numpy())
        frame.columns = [f"value {sample}" for sample in range(frame.shape[1])]
        frame.insert(0, "seconds", self.seconds)
        frame.insert(0, "iteration", self.iterations)
        return frame

    def plot(self, axes: Any = None) -> Any:
        """Draw the values of all samples against iterations with matplotlib.

        Args:
            axes: Axes of matplotlib to draw on; new ones by default.

        Returns:
            The axes.
        """
        if axes is None:
            from matplotlib import pyplot

            _, axes = pyplot.subplots()
        values = self.values.detach().cpu()
        axes.plot(self.iterations, values.numpy())
        if bool((values > 0).all()):
            axes.set_yscale("log")
        axes.set_xlabel("iteration")
        axes.set_ylabel("f(x)")
        return axes

    def __repr__(self) -> str:
        points, batch = self.values.shape
        last = self.iterations[-1] if self.iterations else 0
        return f"Trace({points} points of {batch} samples, iterations 0 to {last})"

    def _repr_html_(self) -> str:
        return html.curve(self.iterations, self.values.double().mean(1).tolist(), "mean f(x)")


@dataclass(frozen=True, repr=False)
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
        number = len(self.statuses)
        return (
            f"Solution: {number} problem{'s' * (number != 1)} ({counts}), "
            f"{int(self.steps.max())} iterations, {self.seconds:.2f} s, "
            f"mean value {float(self.value.mean()):.6g}"
        )

    def __repr__(self) -> str:
        return f"<{self}>"

    def plot(self, axes: Any = None) -> Any:
        """Draw the values along the run; see :meth:`Trace.plot`."""
        return self.trace.plot(axes)

    def _repr_html_(self) -> str:
        """Return the statuses, the curve of values and the first pictures, for notebooks."""
        total = len(self.statuses)
        counts = Counter(self.statuses)
        rows = [(str(status), f"{count} of {total}") for status, count in counts.items()]
        rows.append(("iterations", str(int(self.steps.max()))))
        rows.append(("seconds", f"{self.seconds:.3g}"))
        rows.append(("mean value", f"{float(self.value.mean()):.6g}"))
        if self.lower is not None:
            proof = "conditional" if self.conditional_on else "proven"
            rows.append((f"mean lower bound, {proof}", f"{float(self.lower.mean()):.6g}"))
        rows += [("if", statement) for statement in self.conditional_on]
        parts = [html.table(rows), self.trace._repr_html_()]
        parts += html.pictures(self.best_x)
        return f"<div>{''.join(parts)}</div>"
