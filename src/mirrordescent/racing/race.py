"""A race to a relative gap: iterations are counted first, then the same run is timed.

Values are needed to count iterations, but they would distort the time. So a method runs twice: once
with values recorded on the way, and then without recording, for as many iterations as it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mirrordescent.execution import steps_for
from mirrordescent.learn.families import Draw
from mirrordescent.methods import Method
from mirrordescent.oracles import Default, Oracle
from mirrordescent.problems import Problem
from mirrordescent.racing.curve import GapCurve
from mirrordescent.solving import Rule, Snapshot, Solution, solve
from mirrordescent.trees import Tree, batch_size

REPEATS = 7
FIRST_BUDGETS = (60, 400)  # iterations that are tried before the whole budget


@dataclass(frozen=True)
class RaceResult:
    """Iterations and time that a method needs to reach the accuracy of a race.

    Args:
        iterations: Iterations per problem, −1 for problems that were not solved.
        seconds: Time for the whole batch until the last solved problem is solved; infinite if too
            few problems were solved.
    """

    iterations: Tensor
    seconds: float

    @property
    def solved(self) -> int:
        """Number of solved problems."""
        return int((self.iterations >= 0).sum())

    @property
    def count(self) -> int:
        """Number of problems."""
        return len(self.iterations)

    @property
    def most(self) -> int:
        """Iterations until the last solved problem is solved."""
        return int(self.iterations.max())

    @property
    def pace(self) -> float:
        """Seconds per iteration; 0 if the time is not known."""
        if self.seconds == torch.inf:
            return 0.0
        return self.seconds / max(1, self.most)

    @property
    def time(self) -> str:
        """The time as text."""
        return "too slow" if self.seconds == torch.inf else f"{1e3 * self.seconds:.3g} ms"

    def __str__(self) -> str:
        return f"{self.solved} of {self.count} solved, {self.most} iterations, {self.time}"

    def as_numbers(self) -> tuple[list[int], float]:
        """Return iterations and seconds as plain numbers."""
        return self.iterations.tolist(), self.seconds

    def beats(self, other: RaceResult, factor: float = 1.0) -> bool:
        """Return whether the method is faster by a factor and solves at least as many problems."""
        return self.solved >= other.solved and factor * self.seconds < other.seconds


@dataclass(frozen=True)
class Race:
    """Problems with lower bounds, and a relative gap (f − lower)/(f(x₀) − lower) to reach.

    Args:
        draw: Problems with their starts and lower bounds.
        accuracy: Relative gap at which a problem counts as solved.
        iterations: Largest number of iterations.
        share: Share of the problems that must be solved; below it a method counts as too slow.
        recorded: Iterations at which values are recorded; by default all up to 100, then 30 per
            decade.
        seed: Seed for stochastic oracles.
        patience: Seconds of a run. A method that has not solved all problems in few iterations is
            not given more if they would take longer than this. Runs are not timed again after this
            time.

    >>> import mirrordescent as md
    >>> problem = md.Quadratic(torch.ones(1), torch.zeros(2, 1))
    >>> draw = Draw(problem, torch.tensor([[1.0], [3.0]]), torch.zeros(2))
    >>> Race(draw, accuracy=1e-2, iterations=100).run(md.GD(0.5)).iterations
    tensor([4, 4])
    """

    draw: Draw
    accuracy: float
    iterations: int
    share: float = 0.9
    recorded: Sequence[int] | None = None
    seed: int = 0
    patience: float = math.inf

    @property
    def problem(self) -> Problem:
        """The problems."""
        return self.draw.problem

    @property
    def x0(self) -> Tree:
        """The starts."""
        return self.draw.x0

    @property
    def lower(self) -> Tensor:
        """The lower bounds, in double precision."""
        assert self.draw.lower is not None, "a race needs lower bounds"
        return torch.as_tensor(self.draw.lower).double()

    @property
    def count(self) -> int:
        """Number of problems."""
        return batch_size(self.draw.x0)

    @torch.no_grad()
    def run(self, method: Method[Any], clock: bool = True) -> RaceResult:
        """Count the iterations that a method needs, then time them.

        Args:
            method: The method.
            clock: Whether to time the run; if not, ``seconds`` is infinite.
        """
        budgets = [budget for budget in FIRST_BUDGETS if budget < self.iterations]
        pace = 0.0
        for budget in (*budgets, self.iterations):
            if budget * pace > self.patience:
                break
            began = perf_counter()
            needed = self.curve(method, budget).iterations_to(self.accuracy)
            pace = (perf_counter() - began) / budget
            if bool((needed >= 0).all()):
                break
        enough = float((needed >= 0).double().mean()) >= self.share
        if not clock or not enough:
            return RaceResult(needed, torch.inf)
        return RaceResult(needed, min(self.times(method, max(1, int(needed.max())))))

    def curve(self, method: Method[Any], iterations: int | None = None) -> GapCurve:
        """Run a method and return its relative gaps along the run.

        Args:
            method: The method.
            iterations: Number of iterations, by default all of the race.
        """
        budget = iterations or self.iterations
        trace = self.solve(method, budget, check_every=budget).trace
        return GapCurve(trace.iterations, trace.seconds, self.relative_gaps(trace.values))

    def solve(
        self,
        method: Method[Any],
        iterations: int | None = None,
        *,
        oracle: Oracle | None = None,
        callbacks: Sequence[Callable[[Snapshot], object]] = (),
        check_every: int | None = None,
        stop: Rule | None = None,
    ) -> Solution:
        """Run a method on all problems; see :func:`~mirrordescent.solve`."""
        budget = iterations or self.iterations
        recorded = spaced_iterations(budget) if self.recorded is None else self.recorded
        return solve(
            self.problem,
            method,
            self.x0,
            iterations=budget,
            oracle=oracle,
            generator=torch.Generator().manual_seed(self.seed),
            trace=[k for k in recorded if k <= budget],
            callbacks=callbacks,
            check_every=check_every,
            stop=stop,
            progress=False,
        )

    @torch.no_grad()
    def follow(
        self, path: Iterable[tuple[int, Tree]], until: float = 0.0, patience: float = torch.inf
    ) -> GapCurve:
        """Return the gaps along a path of any solver, such as one of another package.

        Args:
            path: Pairs of an iteration and the points after it, in increasing order.
            until: Mean gap at which to stop.
            patience: Seconds of computation after which to stop.
        """
        iterations: list[int] = []
        seconds: list[float] = []
        gaps: list[Tensor] = []
        elapsed = 0.0
        points = iter(path)
        while elapsed < patience:
            began = perf_counter()
            point = next(points, None)
            elapsed += perf_counter() - began
            if point is None:
                break
            iterations.append(point[0])
            seconds.append(elapsed)
            gaps.append(self.gaps_at(point[1]))
            if float(gaps[-1].mean()) <= until:
                break
        stacked = torch.stack(gaps) if gaps else torch.empty(0, self.count, dtype=torch.float64)
        return GapCurve(iterations, seconds, stacked)

    def gaps_at(self, x: Tree) -> Tensor:
        """Return the relative gaps of points, (problems,)."""
        return self.relative_gaps(self.problem.value(x))

    def relative_gaps(self, values: Tensor) -> Tensor:
        """Return the relative gaps of values (…, problems), infinite for NaN."""
        lower = self.lower
        first = self.problem.value(self.x0).double() - lower
        gaps = (values.double() - lower) / first.clamp(min=torch.finfo(torch.float32).tiny)
        return gaps.nan_to_num(nan=torch.inf, posinf=torch.inf).cpu()

    @torch.no_grad()
    def path(self, method: Method[Any], iterations: Iterable[int]) -> Iterator[tuple[int, Tree]]:
        """Yield increasing iterations and the answers of a method after them, for :meth:`follow`.

        Args:
            method: The method.
            iterations: Iterations in increasing order.
        """
        run = steps_for(method, self.problem, Default())
        state = method.init(self.x0, self.problem)
        for k in iterations:
            state = run(state, k - state.k)
            yield k, method.answer(state)

    def take_steps(self, method: Method[Any], iterations: int) -> Any:
        """Run a method without recording and return its last state: the run to be timed.

        The preparations of a method before its first step are included.
        """
        run = steps_for(method, self.problem, Default())
        return run(method.init(self.x0, self.problem), iterations)

    @torch.no_grad()
    def times(self, method: Method[Any], iterations: int, repeats: int = REPEATS) -> list[float]:
        """Return the times of some runs with a given number of iterations, in seconds.

        Other processes can only make a run longer, so the least time is the best estimate.
        """
        times = []
        for _ in range(repeats):
            began = perf_counter()
            self.take_steps(method, iterations)
            times.append(perf_counter() - began)
            if sum(times) > self.patience:
                break
        return times


def spaced_iterations(iterations: int) -> list[int]:
    """Return all iterations up to 100, then 30 per decade, and the last one."""
    chosen = set(range(min(iterations, 100) + 1))
    chosen.add(iterations)
    k = 100.0
    while k < iterations:
        chosen.add(int(k))
        k *= 10 ** (1 / 30)
    return sorted(chosen)
