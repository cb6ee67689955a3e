"""How long learned and classical methods take to come close to the optimum of total-variation
problems.

The pictures are of test collections on which nothing was learned or tuned: 20 % of the pixels are
missing at random, the noise is 0.05, and λ = 0.15, unless a row says otherwise. *Filled* starts at
y with its holes filled from their neighbours, *from y* at y with black holes; all solvers start at
the same point, other packages' at their own.

A level of the relative gap (f − f*)/(f(x₀) − f*) is reached when the mean over the batch is below
it, where f* is a lower bound that is proven to 1e-5. For every level a solver is run for as many
iterations as it needs there, all at one go; the clock includes what it does before its first step.
Runs are taken in turn, at least five, and their median counts; the least and the greatest are in
brackets. *Never* says that a level is not reached in 1500 iterations, or in a few seconds by
solvers without a kernel.

Whatever a solver leaves open is chosen on training images for every level by itself: the step ratio
of PDHG and of Condat and Vũ's method (0.05 … 3); when and how PDHG is restarted, at fixed times or
by the duality gap, which also balances its steps anew; the penalty of ADMM; when PDHG takes over
from a learned method; and the method of a package that has several. Whatever has a kernel in C uses
it. ADMM minimises the total variations of all rows and of all columns exactly, by proxTV's taut
string.

Packages are asked for the same function, plane by plane if that is all they do, and rerun for
growing numbers of iterations. scikit-image's split Bregman method keeps the pixels at the border as
they are, so it is also run with a margin of mirrored pixels, and the faster run counts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from benchmarks import contestants, peers
from benchmarks.contest_cases import CASES, LARGE, Case, prepared
from benchmarks.measure import about, quick, table, threads, verdict
from benchmarks.races import LEVELS, Race, Times, clocked, entered, medians
from mirrordescent import kernels

REPEATS = 5
TARGETS = (0.5, 0.5, 0.5, 0.8)  # at the levels, of the time of the best classical solver
LARGE_TARGETS = (0.5, 0.3, 0.3, 0.8)  # for batches of large images
TUNED = ("PDHG", "Condat–Vũ")
# how many times faster than other packages, and at which level
PEERS_AT = LEVELS.index(1e-3)
FASTER = 10
NEVER = "never"
QUICK_CASES = (Case(1, 96), Case(1, 96, missing=0), Case(1, 96, missing=0, isotropic=True))
HEADER = tuple(f"{level:g}" for level in LEVELS)


@dataclass
class Result:
    """The times of all solvers in a case, with some threads."""

    case: Case
    threads: int
    kinds: dict[str, str]
    times: dict[str, Times]

    @property
    def title(self) -> str:
        """The case, and the threads if there are several."""
        return (
            self.case.title if self.threads == 1 else f"{self.case.title}, {self.threads} threads"
        )

    @property
    def medians(self) -> dict[str, list[float]]:
        """Median seconds of every solver to every level."""
        return {name: medians(times) for name, times in self.times.items()}

    @property
    def learned(self) -> str:
        """The name of the method that is judged: the first."""
        return next(iter(self.times))

    @property
    def targets(self) -> tuple[float, ...]:
        """What is wanted of its ratios."""
        return LARGE_TARGETS if self.case.count > 1 and self.case.side >= LARGE else TARGETS

    def over(self, names: Iterable[str]) -> list[float]:
        """Return the time of the method that is judged, over the least of others: infinite if it
        never gets there.
        """
        ours = self.medians[self.learned]
        others = [self.medians[name] for name in names]
        best = [min(column) for column in zip(*others, strict=True)]
        return [
            mine / least if math.isfinite(mine) else math.inf
            for mine, least in zip(ours, best, strict=True)
        ]

    def names(self, *kinds: str) -> list[str]:
        """Return the solvers of some kinds."""
        return [name for name, kind in self.kinds.items() if kind in kinds]


def summary(results: Iterable[Result]) -> str:
    """Return a table of the ratios to classical solvers, with verdicts."""
    return table(("problems", *HEADER, "targets", ""), map(_judged, results))


def _judged(result: Result) -> tuple[str, ...]:
    """Compare with PDHG and its relative, and in brackets with the best of all, by which targets
    are judged.
    """
    tuned = result.over(name for name in result.names("classical") if name in TUNED)
    best = result.over(result.names("classical", "peer"))
    cells = (
        _ratio(a) if b == a else f"{_ratio(a)} ({_ratio(b)})"
        for a, b in zip(tuned, best, strict=True)
    )
    goals = result.targets
    met = all(ratio <= goal for ratio, goal in zip(best, goals, strict=True))
    return result.title, *cells, "≤ " + ", ".join(f"{goal:g}" for goal in goals), verdict(met)


def against_peers(results: Iterable[Result]) -> str:
    """Return a table of how many times slower other packages are, with verdicts."""

    def rows() -> Iterator[tuple[str, ...]]:
        for result in results:
            for name in result.names("peer"):
                factor = 1 / max(result.over([name])[PEERS_AT], 1e-9)
                said = NEVER if math.isinf(result.medians[name][PEERS_AT]) else f"{factor:.1f}"
                yield result.title, name, said, f"≥ {FASTER}", verdict(factor >= FASTER)

    return table(
        ("problems", "package", f"times slower at {LEVELS[PEERS_AT]:g}", "target", ""), rows()
    )


def beside(results: Iterable[Result]) -> str:
    """Return a table of the ratios to other methods with a map."""

    def rows() -> Iterator[tuple[str, ...]]:
        for result in results:
            for name in result.names("learned")[1:]:
                yield result.title, name, *map(_ratio, result.over([name]))

    return table(("problems", "method", *HEADER), rows())


def details(result: Result) -> str:
    """Return a table of milliseconds, least and greatest in brackets, and of the ratios to all
    solvers.
    """
    rows = (
        (name, *map(_milliseconds, times), " ".join(map(_ratio, result.over([name]))))
        for name, times in result.times.items()
    )
    return table(("method", *HEADER, f"{result.learned} over it"), rows)


def _milliseconds(runs: list[float]) -> str:
    if not runs:
        return NEVER
    middle, least, most = (f"{1000 * t:.3g}" for t in (medians([runs])[0], min(runs), max(runs)))
    return f"{middle} ({least}–{most})"


def _ratio(ratio: float) -> str:
    """Say so if only one of both gets there."""
    return NEVER if math.isinf(ratio) else "only one" if ratio == 0 else f"{ratio:.2f}"


@torch.no_grad()
def contest(case: Case, repeats: int) -> Iterator[Result]:
    """Let all solvers race, with one thread and more."""
    test, training = prepared(case)
    race = Race(*test, case.fill)
    rehearsal = Race(*training, case.fill)
    entrants = [entered(family, race, rehearsal) for family in contestants.families(race)]
    kinds = {entrant.name: entrant.kind for entrant in entrants}
    for number in case.threads:
        with threads(number):
            yield Result(case, number, kinds, clocked(entrants, repeats))


def main(cases: Iterable[Case] = CASES, repeats: int = REPEATS) -> str:
    """Measure everything; in a hurry, one image of every kind, once."""
    kernels.library()
    if quick():
        cases = QUICK_CASES
        repeats = 1
    results = []
    parts = []
    with threads(1):
        for case in cases:
            for result in contest(case, repeats):
                results.append(result)
                parts.append(f"### {result.title}\n\n{details(result)}")
                print(parts[-1], flush=True)
    absent = peers.missing()
    return "\n".join(
        [
            about(__doc__),
            *([f"Not installed, and left out: {', '.join(absent)}.\n"] if absent else []),
            f"The time of {results[0].learned} over that of the better one of PDHG and Condat–Vũ, each tuned; in"
            f" brackets over the fastest of all classical solvers, packages included, if that is another one. The"
            f" latter is judged:\n",
            summary(results),
            f"How much slower other packages are than {results[0].learned}:\n",
            against_peers(results),
            f"The time of {results[0].learned} over that of other methods with a map, learned or, with Condat–Vũ,"
            f" set by hand:\n",
            beside(results),
            "Milliseconds:\n",
            *parts,
        ]
    )


if __name__ == "__main__":  # python -m benchmarks.time_to_gap [PART OF A TITLE [REPEATS]]
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    print(
        main([case for case in CASES if wanted in case.title], int((sys.argv[2:] or [REPEATS])[0]))
    )
