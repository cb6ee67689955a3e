"""Time of learned and classical methods to come close to the optimum of total variation problems.

The pictures come from test collections on which nothing was learned or tuned. Unless a row says
otherwise, 20 % of the pixels are missing at random, the noise is 0.05 and λ = 0.15. *Filled* starts
at y with its holes filled from their neighbours, *from y* at y with black holes. All solvers start
at the same point, except those of other packages.

A level of the relative gap (f − f*)/(f(x₀) − f*) is reached when the mean over the batch is below
it, where f* is a lower bound proven to 1e-5. For every level, a solver runs for as many iterations
as it needs, without a break; the time includes the preparation before the first step. Runs are
taken in turn, at least five times. The tables show the median, and the least and the greatest time
in brackets. *Never* means that a level is not reached in 1500 iterations, or in a few seconds by
solvers without a kernel.

All settings are chosen on training images, for every level by itself: the ratio of the step sizes
of PDHG and of Condat and Vũ's method (0.05 … 3) and their over-relaxation (1 … 1.9); the same for
PDHG that restarts by the duality gap, which also balances its step sizes; the penalty of ADMM; when
a learned method switches to PDHG; and the method of a package that has several. Methods that have a
kernel in C use it. ADMM minimises the total variations of all rows and of all columns exactly, by
the taut string of proxTV.

Packages minimise the same function, plane by plane if they cannot do otherwise, and are run again
for growing numbers of iterations. The split Bregman method of scikit-image keeps the pixels at the
border, so it also runs with a margin of mirrored pixels, and the faster run counts.
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
from benchmarks.races import LEVELS, Times, TVRace, medians, prepare, time_in_turn
from mirrordescent import kernels

REPEATS = 5
# Largest time at every level, relative to the best classical solver.
TARGETS = (0.5, 0.5, 0.5, 0.8)
LARGE_TARGETS = (0.5, 0.3, 0.3, 0.8)  # for batches of large images
TUNED = ("PDHG", "Condat–Vũ")
# Factor by which other packages should be slower, and the level at which they are compared.
FASTER = 10
PEER_LEVEL = LEVELS.index(1e-3)
NEVER = "never"
QUICK_CASES = (Case(1, 96), Case(1, 96, missing=0), Case(1, 96, missing=0, isotropic=True))
HEADER = tuple(f"{level:g}" for level in LEVELS)


@dataclass
class CaseResult:
    """The times of all solvers in a case.

    Args:
        case: The case.
        threads: Number of threads.
        kinds: Kinds of the solvers by name.
        times: Times of the solvers by name.
    """

    case: Case
    threads: int
    kinds: dict[str, str]
    times: dict[str, Times]

    @property
    def title(self) -> str:
        """Title of the case, with the number of threads if there are several."""
        if self.threads == 1:
            return self.case.title
        return f"{self.case.title}, {self.threads} threads"

    @property
    def medians(self) -> dict[str, list[float]]:
        """Median seconds of every solver to every level."""
        return {name: medians(times) for name, times in self.times.items()}

    @property
    def learned(self) -> str:
        """Name of the learned method, which is the first."""
        return next(iter(self.times))

    @property
    def targets(self) -> tuple[float, ...]:
        """Targets of its ratios."""
        return LARGE_TARGETS if self.case.count > 1 and self.case.side >= LARGE else TARGETS

    def over(self, names: Iterable[str]) -> list[float]:
        """Return the time of the learned method over the least time of others, for every level.

        It is infinite if the learned method does not reach the level.
        """
        others = [self.medians[name] for name in names]
        ratios = []
        for level, ours in enumerate(self.medians[self.learned]):
            best = min(times[level] for times in others)
            ratios.append(ours / best if math.isfinite(ours) else math.inf)
        return ratios

    def names(self, *kinds: str) -> list[str]:
        """Return the names of the solvers of some kinds."""
        return [name for name, kind in self.kinds.items() if kind in kinds]


def summary(results: Iterable[CaseResult]) -> str:
    """Return a table of the ratios to classical solvers, with verdicts."""
    return table(("problems", *HEADER, "targets", ""), map(_summary_row, results))


def _summary_row(result: CaseResult) -> tuple[str, ...]:
    """Return the ratios to PDHG and Condat–Vũ, and in brackets to the best of all solvers.

    Targets are judged by the latter.
    """
    tuned = result.over(name for name in result.names("classical") if name in TUNED)
    best = result.over(result.names("classical", "peer"))
    cells = []
    for to_tuned, to_best in zip(tuned, best, strict=True):
        cell = _ratio(to_tuned)
        cells.append(cell if to_best == to_tuned else f"{cell} ({_ratio(to_best)})")
    targets = result.targets
    met = all(ratio <= target for ratio, target in zip(best, targets, strict=True))
    listed = ", ".join(f"{target:g}" for target in targets)
    return result.title, *cells, f"≤ {listed}", verdict(met)


def against_peers(results: Iterable[CaseResult]) -> str:
    """Return a table of the factors by which other packages are slower, with verdicts."""

    def rows() -> Iterator[tuple[str, ...]]:
        for result in results:
            for name in result.names("peer"):
                factor = 1 / max(result.over([name])[PEER_LEVEL], 1e-9)
                cell = NEVER if math.isinf(result.medians[name][PEER_LEVEL]) else f"{factor:.1f}"
                yield result.title, name, cell, f"≥ {FASTER}", verdict(factor >= FASTER)

    return table(
        ("problems", "package", f"times slower at {LEVELS[PEER_LEVEL]:g}", "target", ""), rows()
    )


def against_learned(results: Iterable[CaseResult]) -> str:
    """Return a table of the ratios to other methods with a map."""

    def rows() -> Iterator[tuple[str, ...]]:
        for result in results:
            for name in result.names("learned")[1:]:
                yield result.title, name, *map(_ratio, result.over([name]))

    return table(("problems", "method", *HEADER), rows())


def details(result: CaseResult) -> str:
    """Return a table of milliseconds, least and greatest in brackets, and ratios to all solvers."""
    rows = (
        (name, *map(_milliseconds, times), " ".join(map(_ratio, result.over([name]))))
        for name, times in result.times.items()
    )
    return table(("method", *HEADER, f"{result.learned} over it"), rows)


def _milliseconds(runs: list[float]) -> str:
    if not runs:
        return NEVER
    middle = 1000 * medians([runs])[0]
    return f"{middle:.3g} ({1000 * min(runs):.3g}–{1000 * max(runs):.3g})"


def _ratio(ratio: float) -> str:
    """Return a ratio as text; it is 0 if only the learned method reaches the level."""
    if math.isinf(ratio):
        return NEVER
    return "only one" if ratio == 0 else f"{ratio:.2f}"


@torch.no_grad()
def contest(case: Case, repeats: int) -> Iterator[CaseResult]:
    """Race all solvers, with one thread and more."""
    test, training = prepared(case)
    race = TVRace.on(*test, case.fill)
    rehearsal = TVRace.on(*training, case.fill)
    entrants = [prepare(family, race, rehearsal) for family in contestants.families(race)]
    kinds = {entrant.name: entrant.kind for entrant in entrants}
    for number in case.threads:
        with threads(number):
            yield CaseResult(case, number, kinds, time_in_turn(entrants, repeats))


def main(cases: Iterable[Case] = CASES, repeats: int = REPEATS) -> str:
    """Measure everything, or one image of every kind if the benchmarks are to be quick."""
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
    learned = results[0].learned
    texts = [about(__doc__)]
    absent = peers.missing()
    if absent:
        texts.append(f"Not installed, and left out: {', '.join(absent)}.\n")
    texts += [
        f"The time of {learned} over that of the better one of PDHG and Condat–Vũ, each tuned. If "
        "another classical solver or package is the fastest, the ratio to it is in brackets:\n",
        summary(results),
        f"The factor by which other packages are slower than {learned}:\n",
        against_peers(results),
        f"The time of {learned} over that of other methods with a map. The maps are learned or, "
        "for Condat–Vũ, set by hand:\n",
        against_learned(results),
        "Milliseconds:\n",
        *parts,
    ]
    return "\n".join(texts)


if __name__ == "__main__":  # python -m benchmarks.time_to_gap [PART OF A TITLE [REPEATS]]
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else REPEATS
    print(main([case for case in CASES if part in case.title], repeats))
