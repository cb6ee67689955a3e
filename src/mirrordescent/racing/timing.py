"""Comparisons of times that other processes on the machine disturb as little as possible.

Runs are timed in turn, so that a busy moment slows all of them down, and every time is measured by
the wall clock and in CPU time of this process.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import comb
from time import perf_counter, process_time
from typing import Literal, TypeAlias

ROUNDS = 15
FEWEST_ROUNDS = 5
BUSY = 1.2  # wall time per CPU time above which the machine counts as busy
CONFIDENCE = 0.95

Clock: TypeAlias = Literal["wall", "cpu"]


@dataclass(frozen=True)
class Timing:
    """Times of repeated runs, in seconds.

    Args:
        wall: Times by the wall clock, one per round.
        cpu: CPU times of this process in the same rounds.
    """

    wall: list[float]
    cpu: list[float]

    def times(self, clock: Clock) -> list[float]:
        """Return the times by a clock."""
        return self.wall if clock == "wall" else self.cpu

    def median(self, clock: Clock = "wall") -> float:
        """Return the median time by a clock."""
        return statistics.median(self.times(clock))

    @property
    def busy(self) -> bool:
        """Whether the process had to wait for the processor in half of the rounds."""
        return self.median("wall") > BUSY * self.median("cpu")


@dataclass(frozen=True)
class Speedup:
    """A ratio of times with its interval of confidence.

    Args:
        median: Median of the ratios of all rounds.
        low: Lower end of the interval of 95 % for the median.
        high: Upper end.
        clock: Clock by which times were measured.
    """

    median: float
    low: float
    high: float
    clock: Clock

    def __str__(self) -> str:
        return f"{self.median:.2g} ({self.low:.2g} to {self.high:.2g})"


def time_in_turn(
    runs: Mapping[str, Callable[[], object]],
    rounds: int = ROUNDS,
    seconds: float = float("inf"),
    fewest: int = FEWEST_ROUNDS,
) -> dict[str, Timing]:
    """Time some runs in turn, round by round, after one round that is not counted.

    The order rotates from round to round.

    Args:
        runs: Functions to time, by name.
        rounds: Number of rounds.
        seconds: Time after which no further round is begun.
        fewest: Number of rounds that are made however long they take.
    """
    began = perf_counter()
    names = list(runs)
    for run in runs.values():
        run()
    wall: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    for count in range(rounds):
        if count >= fewest and perf_counter() - began > seconds:
            break
        for index in range(len(names)):
            name = names[(index + count) % len(names)]
            wall_start = perf_counter()
            cpu_start = process_time()
            runs[name]()
            cpu[name].append(process_time() - cpu_start)
            wall[name].append(perf_counter() - wall_start)
    return {name: Timing(wall[name], cpu[name]) for name in names}


def clock_for(timings: Mapping[str, Timing], cuda: bool = False) -> Clock:
    """Return the clock to compare by: CPU time if the machine is busy, else the wall clock.

    Args:
        timings: Times of the runs to compare.
        cuda: Whether a GPU computes, whose time the processor does not count.
    """
    busy = any(each.busy for each in timings.values())
    return "cpu" if busy and not cuda else "wall"


def speedup(slow: Timing, fast: Timing, clock: Clock = "wall") -> Speedup:
    """Return how many times faster one run is than another, in the same rounds.

    The interval has the ranks of the sorted ratios between which the median lies with a
    probability of at least 95 %, whatever the distribution of times.

    >>> speedup(Timing([2.0] * 9, [2.0] * 9), Timing([1.0] * 9, [1.0] * 9)).median
    2.0
    """
    pairs = zip(slow.times(clock), fast.times(clock), strict=True)
    ratios = sorted(a / max(b, 1e-9) for a, b in pairs)
    rank = _rank_of_interval(len(ratios))
    return Speedup(statistics.median(ratios), ratios[rank], ratios[-1 - rank], clock)


def _rank_of_interval(count: int) -> int:
    """Return the largest rank r such that the median lies between ranks r and n − 1 − r.

    The probability that it does not is 2 P(B ≤ r) for a binomial B with n tosses of a fair coin.

    >>> _rank_of_interval(15)
    3
    """
    outside = 0.0
    rank = 0
    for r in range(count // 2):
        outside += 2 * comb(count, r) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        rank = r
    return rank
