"""Run several methods on the same problems, and tune their step sizes on other problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mirrordescent.learn import Draw
from mirrordescent.methods import PDHG, Method
from mirrordescent.oracles import Oracle
from mirrordescent.problems import Problem
from mirrordescent.racing import Race, TunablePrimalDual, TunableSolver
from mirrordescent.report import Curve
from mirrordescent.solving import Snapshot, Solution

TUNED_AT = 100  # the paper's appendix chooses step sizes at this iteration


def grid(lowest: float, highest: float) -> list[float]:
    """Return the numbers {1, 2, 5}·10^k from lowest to highest, both of that form.

    >>> grid(1, 20)
    [1.0, 2.0, 5.0, 10.0, 20.0]
    """
    first = math.floor(math.log10(lowest))
    last = math.ceil(math.log10(highest))
    numbers = [factor * 10.0**k for k in range(first, last + 1) for factor in (1, 2, 5)]
    return [number for number in numbers if lowest * 0.99 <= number <= highest * 1.01]


# The numbers are the ratio of the primal to the dual step size, and the relaxation.
RATIOS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
TUNED_PDHG = TunablePrimalDual("PDHG", PDHG, RATIOS)


@dataclass(frozen=True)
class Contest:
    """A batch of problems with certified lower bounds, a starting point and a budget.

    Args:
        problem: Batch of problems.
        x0: Starting points, one for every problem.
        lower: Certified lower bounds of the minima.
        iterations: Budget of every method.
        recorded: Iterations at which the objective is recorded.
        seed: Seed of the gradients' randomness, the same for all methods.
        width: Mean width of the intervals that are proven to contain the minima. Gaps near it are
            limited by the reference.
    """

    problem: Problem
    x0: Tensor
    lower: Tensor
    iterations: int
    recorded: Sequence[int]
    seed: int = 0
    width: float = 0.0

    def solve(
        self,
        method: Method[Any],
        oracle: Oracle | None = None,
        iterations: int | None = None,
        callbacks: Sequence[Callable[[Snapshot], object]] = (),
    ) -> Solution:
        """Run one method on all problems. Callbacks are called at every iteration."""
        check_every = 1 if callbacks else None
        return self._race.solve(
            method, iterations, oracle=oracle, callbacks=callbacks, check_every=check_every
        )

    @property
    def _race(self) -> Race:
        draw = Draw(self.problem, self.x0, self.lower)
        # Contests record absolute gaps, and have no accuracy to reach.
        return Race(draw, 0.0, self.iterations, recorded=self.recorded, seed=self.seed)

    def run(self, name: str, method: Method[Any], oracle: Oracle | None = None) -> Curve:
        """Run one method, and return the curve of its gaps."""
        return self.curve(name, self.solve(method, oracle))

    def curve(self, name: str, solution: Solution) -> Curve:
        """Return the gaps f(x) − lower bound of a solution.

        From the iteration at which a sample failed, its gap is not a number.
        """
        trace = solution.trace
        failed = torch.tensor([status.failed for status in solution.statuses])
        # In single precision the difference would be mostly rounding.
        gaps = trace.values.double() - self.lower
        after_failure = torch.tensor(trace.iterations).unsqueeze(1) >= solution.steps
        gaps = torch.where(failed & after_failure, torch.nan, gaps)
        return Curve(name, trace.iterations, trace.seconds, gaps)

    def run_tuned(self, tunable: TunableSolver, rehearsal: Contest, at: int = TUNED_AT) -> Curve:
        """Tune a method on the problems of another contest, then run it on these."""
        setting = rehearsal.tune(tunable, min(at, rehearsal.iterations))
        return self.run(tunable.label(setting), tunable.make(setting), tunable.oracle)

    def tune(self, tunable: TunableSolver, at: int = TUNED_AT) -> Any:
        """Return the entry of the grid with the smallest mean gap at an iteration."""

        def mean_gap(setting: Any) -> float:
            solution = self.solve(tunable.make(setting), tunable.oracle, at)
            if not solution.ok:
                return torch.inf
            return float((solution.value - self.lower).mean())

        return tunable.search(mean_gap)


def recorded_iterations(iterations: int) -> list[int]:
    """Return the iterations of a curve: 0 to 20, then 20 a decade, and the round numbers."""
    decades = math.ceil(20 * math.log10(iterations))
    spaced = {round(10 ** (i / 20)) for i in range(decades + 1)}
    round_numbers = {factor * 10**e for e in range(5) for factor in (1, 2, 5)}
    candidates = {*range(21), *spaced, *round_numbers, iterations}
    return sorted(k for k in candidates if k <= iterations)
