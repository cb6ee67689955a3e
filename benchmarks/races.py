"""Races to a relative gap: what takes part, how settings are chosen, and how the clock is kept.

A solver is run twice: once to see after how many iterations it is below every level of the gap,
with values computed on the way, and then against the clock, for exactly that many iterations at one
go.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from benchmarks.measure import seconds
from mirrordescent.execution import Run, steps_for
from mirrordescent.methods import Method
from mirrordescent.oracles import Default
from mirrordescent.problems import TVInpainting

LEVELS = (1e-1, 1e-2, 1e-3, 1e-4)
ITERATIONS = 1500
# times as many rounds, if they take less than so many seconds in all
MORE = 5
AT_MOST = 10.0

Counts = list[float]  # iterations to every level, infinite if it was not reached
Times = list[list[float]]  # seconds of every run to every level; none if it was not reached


@dataclass
class Race:
    """Problems, lower bounds on their optimal values, and whether holes are filled at the start."""

    problem: TVInpainting
    lower: Tensor
    fill: bool

    def __post_init__(self) -> None:
        """Start."""
        self.x0 = self.problem.start(fill=self.fill)
        self.first = self.problem.value(self.x0).double() - self.lower

    def first_alone(self) -> Race:
        """Return the race on the first problem alone."""
        one = self.problem
        alone = TVInpainting(one.y[:1], one.mask, one.weight, one.scale, isotropic=one.isotropic)
        return Race(alone, self.lower[:1], self.fill)

    def gap(self, x: Tensor) -> float:
        """Return the mean relative gap of some images."""
        return float(((self.problem.value(x).double() - self.lower) / self.first).mean())

    def counts(self, solver: Solver, deepest: float = LEVELS[-1]) -> Counts:
        """Return how many iterations a solver takes to every level, up to the deepest that is
        wanted.
        """
        found: Counts = []
        wanted = [level for level in LEVELS if level >= deepest]
        spent = 0.0
        path = solver.path(self)
        while len(found) < len(wanted) and spent < solver.patience:
            began = perf_counter()
            point = next(path, None)
            spent += perf_counter() - began
            if point is None:
                break
            gap = self.gap(point[1])
            found += [point[0] for level in wanted[len(found) :] if gap <= level]
        return found + [math.inf] * (len(LEVELS) - len(found))


class Solver(Protocol):
    """What takes part in a race, and how many seconds it may take to see how many iterations it
    needs.
    """

    @property
    def patience(self) -> float: ...

    def path(self, race: Race) -> Iterator[tuple[int, Tensor]]:
        """Yield numbers of iterations, growing, and the images after them."""

    def run(self, race: Race, iterations: int) -> Tensor:
        """Return the images after so many iterations."""


@dataclass(frozen=True)
class Steps:
    """A method of the library, with its kernel where it has one."""

    method: Method[Any]
    iterations: int = ITERATIONS
    patience: float = math.inf

    def path(self, race: Race) -> Iterator[tuple[int, Tensor]]:
        """Look after each of the first steps, then less and less often."""
        steps = self._steps(race)
        state = self.method.init(race.x0, race.problem)
        for k in looks(self.iterations):
            state = steps(state, k - state.k)
            yield k, self.method.answer(state)

    def run(self, race: Race, iterations: int) -> Tensor:
        """Take all steps at once; what a method does before its first step is on the clock too."""
        return self.method.answer(
            self._steps(race)(self.method.init(race.x0, race.problem), iterations)
        )

    def compiled(self, race: Race) -> bool:
        """Tell whether there is a kernel for the method."""
        try:
            steps_for(self.method, race.problem, Default(), fused=True)
        except ValueError:
            return False
        return True

    def _steps(self, race: Race) -> Run[Any]:
        return steps_for(
            self.method, race.problem, Default(), fused=None
        )  # kernels are compiled by now


def looks(iterations: int) -> list[int]:
    """Return 1, …, 40, and numbers that grow by 4 % from there on."""
    spaced = (
        round(40 * 1.04**i)
        for i in range(1, 1 + max(0, math.floor(math.log(iterations / 40, 1.04))))
    )
    return [k for k in (*range(1, 41), *spaced) if k <= iterations]


@dataclass
class Family:
    """A row of a table: one solver with the settings that it may have, of which the best is taken
    for every level.

    The best is that with the fewest iterations on training problems, or with the least time, if
    they do not cost alike. Slow ones are tried on a single problem.
    """

    name: str
    kind: Literal["learned", "classical", "peer"]
    variants: Sequence[Solver]
    alike: bool = True
    slow: bool = False

    def tuned(self, rehearsal: Race) -> list[Solver]:
        """Return the best variant for every level; if none reaches it, the best one at the level
        before.
        """
        if len(self.variants) == 1:
            return [self.variants[0]] * len(LEVELS)
        rehearsal = rehearsal.first_alone() if self.slow else rehearsal
        costs = {i: self._costs(variant, rehearsal) for i, variant in enumerate(self.variants)}
        return [
            self.variants[min(costs, key=lambda i: costs[i][level::-1])]
            for level in range(len(LEVELS))
        ]

    def _costs(self, variant: Solver, rehearsal: Race) -> list[float]:
        counts = rehearsal.counts(variant)
        if self.alike:
            return counts
        runs = [
            partial(variant.run, rehearsal, int(k)) if math.isfinite(k) else None for k in counts
        ]
        return [math.inf if run is None else min(seconds(run), seconds(run)) for run in runs]


@dataclass
class Entrant:
    """A row of a table, ready to be timed: for every level a run that reaches it, or None."""

    name: str
    kind: str
    runs: list[Callable[[], object] | None]


def entered(family: Family, race: Race, rehearsal: Race) -> Entrant:
    """Choose settings on training problems, and count iterations on those of the race."""
    chosen = family.tuned(rehearsal)
    runs: list[Callable[[], object] | None] = []
    counted: dict[int, Counts] = {}
    for i, variant in reversed(
        list(enumerate(chosen))
    ):  # the deepest level first, whose counts serve for the others
        if id(variant) not in counted:
            counted[id(variant)] = race.counts(variant, LEVELS[i])
        count = counted[id(variant)][i]
        runs.insert(0, partial(variant.run, race, int(count)) if math.isfinite(count) else None)
    first = family.variants[0]
    plain = isinstance(first, Steps) and not first.compiled(race)
    return Entrant(f"{family.name}, without a kernel" if plain else family.name, family.kind, runs)


@torch.no_grad()
def clocked(entrants: Iterable[Entrant], repeats: int) -> dict[str, Times]:
    """Time all runs in turn, so that a busy moment hits all; short ones more often than
    ``repeats``.
    """
    entrants = list(entrants)
    began = perf_counter()
    found: dict[str, Times] = {entrant.name: [[] for _ in LEVELS] for entrant in entrants}
    for turn in range(MORE * repeats):
        if turn >= repeats and perf_counter() - began > AT_MOST:
            break
        for entrant in entrants:
            for times, run in zip(found[entrant.name], entrant.runs, strict=True):
                if run is not None:
                    times.append(seconds(run))
    return found


def medians(times: Times) -> list[float]:
    """Return the median time to every level, infinite if it was not reached."""
    return [statistics.median(runs) if runs else math.inf for runs in times]
