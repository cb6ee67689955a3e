"""Running methods against each other on the same problems, and tuning those that have a
step size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mirrordescent.methods import PDHG, Adam, Method, Nesterov
from mirrordescent.methods.baselines import GD
from mirrordescent.oracles import Oracle
from mirrordescent.problems import Problem
from mirrordescent.solving import Snapshot, Solution, solve
from mirrordescent_lab.experiments.result import Curve

TUNED_AT = 100  # the appendix picks step sizes at this iteration


def grid(lowest: float, highest: float) -> list[float]:
    """Return the numbers {1, 2, 5}·10^k from lowest to highest, both of the same form."""
    exponents = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    return [
        m * 10.0**k
        for k in exponents
        for m in (1, 2, 5)
        if lowest * 0.99 <= m * 10.0**k <= highest * 1.01
    ]


@dataclass(frozen=True)
class Tunable:
    """A method up to one number, and the grid that number is chosen from."""

    name: str
    make: Callable[[float], Method[Any]]
    grid: list[float]
    oracle: Oracle | None = None


# The grids of the paper's appendix on baselines, and step ratios for PDHG.
ADAM = Tunable("Adam", Adam, grid(1e-3, 1e-1))
BASELINES = [
    Tunable("GD", GD, grid(2e-4, 1e-1)),
    Tunable("Nesterov", Nesterov, grid(1e-4, 5e-3)),
    ADAM,
]
WIDE_NESTEROV = Tunable(
    "wide Nesterov", Nesterov, grid(1e-4, 1e-1)
)  # its best may lie outside the appendix's grid
CLASSICAL = Tunable("PDHG", PDHG, [0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0])
EARLY_CLASSICAL = Tunable("early PDHG", PDHG, CLASSICAL.grid)  # tuned for the first iterations


@dataclass(frozen=True)
class Contest:
    """Problems with certified lower bounds, a start, and a budget."""

    problem: Problem
    x0: Tensor
    lower: Tensor
    iterations: int
    recorded: Sequence[int]
    seed: int = 0

    def solve(
        self,
        method: Method[Any],
        oracle: Oracle | None = None,
        iterations: int | None = None,
        callbacks: Sequence[Callable[[Snapshot], object]] = (),
    ) -> Solution:
        """Run one method on all problems; callbacks see every iteration."""
        budget = iterations or self.iterations
        return solve(
            self.problem,
            method,
            self.x0,
            iterations=budget,
            oracle=oracle,
            generator=torch.Generator().manual_seed(self.seed),
            trace=[k for k in self.recorded if k <= budget],
            callbacks=callbacks,
            check_every=1 if callbacks else None,
            progress=False,
        )

    def run(self, name: str, method: Method[Any], oracle: Oracle | None = None) -> Curve:
        """Return the curve of one method."""
        return self.curve(name, self.solve(method, oracle))

    def curve(self, name: str, solution: Solution) -> Curve:
        """Take the gaps of the samples that ran; a sample that failed has none from there on."""
        trace = solution.trace
        failed = torch.tensor([status.failed for status in solution.statuses])
        gaps = (
            trace.values.double() - self.lower
        )  # in double precision, or the difference would be rounding
        late = torch.tensor(trace.iterations).unsqueeze(1) >= solution.steps
        return Curve(
            name, trace.iterations, trace.seconds, torch.where(failed & late, torch.nan, gaps)
        )

    def run_tuned(self, tunable: Tunable, rehearsal: Contest, at: int = TUNED_AT) -> Curve:
        """Tune on other problems, then run on these."""
        setting = rehearsal.tune(tunable, min(at, rehearsal.iterations))
        return self.run(f"{tunable.name} ({setting:g})", tunable.make(setting), tunable.oracle)

    def tune(self, tunable: Tunable, at: int = TUNED_AT) -> float:
        """Return the setting with the smallest mean gap at an iteration."""

        def gap(setting: float) -> float:
            solution = self.solve(tunable.make(setting), tunable.oracle, at)
            return float((solution.value - self.lower).mean()) if solution.ok else torch.inf

        return min(tunable.grid, key=gap)


def mean_by(curve: Curve, moment: float) -> float:
    """Return the mean at the last point recorded before a given second."""
    return float(curve.values[sum(second <= moment for second in curve.seconds) - 1].mean())


def recorded_iterations(iterations: int) -> list[int]:
    """Return the iterations of a curve: 0 to 20, then 20 a decade, with the round ones."""
    spaced = {round(10 ** (i / 20)) for i in range(math.ceil(20 * math.log10(iterations)) + 1)}
    round_ones = {m * 10**e for e in range(5) for m in (1, 2, 5)}
    return sorted(k for k in {*range(21), *spaced, *round_ones, iterations} if k <= iterations)
