"""Races of solvers of total variation problems to several levels of the relative gap.

A solver runs twice: once with values computed on the way, to count the iterations to every level,
and then without, for exactly so many iterations, to measure the time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor

from benchmarks.measure import seconds
from mirrordescent.execution import steps_for
from mirrordescent.learn import Draw
from mirrordescent.methods import Method
from mirrordescent.oracles import Default
from mirrordescent.problems import TVInpainting
from mirrordescent.racing import Race, best_setting

LEVELS = (1e-1, 1e-2, 1e-3, 1e-4)
ITERATIONS = 1500
# Rounds of timing are repeated up to so many times, as long as they take less than some seconds.
MORE_ROUNDS = 5
MAX_SECONDS = 10.0

Counts = list[float]  # iterations to every level, infinite if it is not reached
Times = list[list[float]]  # seconds of all runs to every level, empty if it is not reached


class TVRace(Race):
    """A race on total variation problems."""

    @classmethod
    def on(cls, problem: TVInpainting, lower: Tensor, fill: bool) -> TVRace:
        """Return the race on some problems.

        Args:
            problem: The problems.
            lower: Lower bounds on their optimal values.
            fill: Whether holes are filled at the start.
        """
        return cls(Draw(problem, problem.start(fill=fill), lower), LEVELS[-1], ITERATIONS)

    @property
    def problem(self) -> TVInpainting:
        """The problems."""
        return cast(TVInpainting, self.draw.problem)

    @property
    def x0(self) -> Tensor:
        """The starts."""
        return cast(Tensor, self.draw.x0)

    def first_alone(self) -> TVRace:
        """Return the race on the first problem alone."""
        all_ = self.problem
        first = TVInpainting(
            all_.y[:1], all_.mask, all_.weight, all_.scale, isotropic=all_.isotropic
        )
        return TVRace(Draw(first, self.x0[:1], self.lower[:1]), self.accuracy, self.iterations)

    def mean_gap(self, x: Tensor) -> float:
        """Return the mean relative gap of images."""
        return float(self.gaps_at(x).mean())

    def counts(self, solver: Solver, deepest: float = LEVELS[-1]) -> Counts:
        """Return the iterations of a solver to every level.

        Args:
            solver: The solver.
            deepest: The last level of interest.
        """
        curve = self.follow(solver.path(self), deepest, solver.patience).mean()
        counts = []
        for level in LEVELS:
            needed = int(curve.iterations_to(level)) if level >= deepest else -1
            counts.append(math.inf if needed < 0 else needed)
        return counts


class Solver(Protocol):
    """A solver that takes part in a race."""

    @property
    def patience(self) -> float:
        """Seconds that counting its iterations may take."""

    def path(self, race: TVRace) -> Iterator[tuple[int, Tensor]]:
        """Yield increasing numbers of iterations, and the images after them."""

    def run(self, race: TVRace, iterations: int) -> Tensor:
        """Return the images after some iterations."""


@dataclass(frozen=True)
class Steps:
    """A method of the library, with its kernel if it has one.

    Args:
        method: The method.
        iterations: Largest number of iterations.
        patience: Seconds that counting its iterations may take.
    """

    method: Method[Any]
    iterations: int = ITERATIONS
    patience: float = math.inf

    def path(self, race: TVRace) -> Iterator[tuple[int, Tensor]]:
        """Yield the images after each of the first steps, then less and less often."""
        recorded = recorded_iterations(self.iterations)
        return cast(Iterator[tuple[int, Tensor]], race.path(self.method, recorded))

    def run(self, race: TVRace, iterations: int) -> Tensor:
        """Take all steps at once, including the preparation before the first step."""
        return cast(Tensor, self.method.answer(race.take_steps(self.method, iterations)))

    def has_kernel(self, race: TVRace) -> bool:
        """Return whether there is a kernel for the method."""
        try:
            steps_for(self.method, race.problem, Default(), fused=True)
        except ValueError:
            return False
        return True


def recorded_iterations(iterations: int) -> list[int]:
    """Return 1, …, 40, and numbers that grow by 4 % from there on."""
    chosen = list(range(1, min(40, iterations) + 1))
    if iterations > 40:
        count = math.floor(math.log(iterations / 40, 1.04))
        chosen += [round(40 * 1.04**i) for i in range(1, count + 1)]
    return [k for k in chosen if k <= iterations]


@dataclass
class Family:
    """A row of a table: a solver with several settings, of which the best is used for every level.

    The best setting has the fewest iterations on training problems.

    Args:
        name: Name of the solver.
        kind: Kind of solver.
        variants: The solver with all settings.
        equal_cost: Whether iterations of all settings take the same time. If not, the best setting
            has the least time.
        slow: Whether to tune on a single problem.
    """

    name: str
    kind: Literal["learned", "classical", "peer"]
    variants: Sequence[Solver]
    equal_cost: bool = True
    slow: bool = False

    def tuned(self, rehearsal: TVRace) -> list[Solver]:
        """Return the best variant for every level.

        If no variant reaches a level, it is the best one for the level before.
        """
        if len(self.variants) == 1:
            return [self.variants[0]] * len(LEVELS)
        rehearsal = rehearsal.first_alone() if self.slow else rehearsal
        costs = [self._costs(variant, rehearsal) for variant in self.variants]
        chosen = []
        for level in range(len(LEVELS)):
            from_deepest = [cost[level::-1] for cost in costs]
            chosen.append(self.variants[best_setting(range(len(costs)), from_deepest.__getitem__)])
        return chosen

    def _costs(self, variant: Solver, rehearsal: TVRace) -> list[float]:
        counts = rehearsal.counts(variant)
        if self.equal_cost:
            return counts
        costs = []
        for count in counts:
            if math.isfinite(count):
                run = partial(variant.run, rehearsal, int(count))
                costs.append(min(seconds(run), seconds(run)))
            else:
                costs.append(math.inf)
        return costs


@dataclass
class Entrant:
    """A row of a table, ready to be timed.

    Args:
        name: Name of the solver.
        kind: Kind of solver.
        runs: For every level a run that reaches it, or None.
    """

    name: str
    kind: str
    runs: list[Callable[[], object] | None]


def prepare(family: Family, race: TVRace, rehearsal: TVRace) -> Entrant:
    """Choose settings on training problems, and count iterations on the problems of the race."""
    chosen = family.tuned(rehearsal)
    counted: dict[int, Counts] = {}
    runs: list[Callable[[], object] | None] = [None] * len(LEVELS)
    for i in reversed(range(len(LEVELS))):  # counts to the deepest level serve for the others
        variant = chosen[i]
        if id(variant) not in counted:
            counted[id(variant)] = race.counts(variant, LEVELS[i])
        count = counted[id(variant)][i]
        if math.isfinite(count):
            runs[i] = partial(variant.run, race, int(count))
    first = family.variants[0]
    name = family.name
    if isinstance(first, Steps) and not first.has_kernel(race):
        name = f"{name}, without a kernel"
    return Entrant(name, family.kind, runs)


@torch.no_grad()
def time_in_turn(entrants: Iterable[Entrant], repeats: int) -> dict[str, Times]:
    """Time all runs in turn, so that a busy moment affects all of them.

    Args:
        entrants: The rows of the table.
        repeats: Number of rounds. Short rounds are repeated more often.
    """
    entrants = list(entrants)
    began = perf_counter()
    times: dict[str, Times] = {entrant.name: [[] for _ in LEVELS] for entrant in entrants}
    for turn in range(MORE_ROUNDS * repeats):
        if turn >= repeats and perf_counter() - began > MAX_SECONDS:
            break
        for entrant in entrants:
            for measured, run in zip(times[entrant.name], entrant.runs, strict=True):
                if run is not None:
                    measured.append(seconds(run))
    return times


def medians(times: Times) -> list[float]:
    """Return the median time to every level, infinite if it is not reached."""
    return [statistics.median(runs) if runs else math.inf for runs in times]
