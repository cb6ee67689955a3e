"""Comparison of a solver with tuned classical solvers on a class of problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mirrordescent.automatic.classical import race_classical_solvers, typical_step
from mirrordescent.automatic.family_check import check_family
from mirrordescent.automatic.outcome import CLEARLY, proof_note
from mirrordescent.learn.families import Pooled, ProblemFamily, lower_bounds
from mirrordescent.methods.base import Method
from mirrordescent.racing import Contestant, Race, RaceResult, first_below
from mirrordescent.report import Curve, Page, Panel, Section, Table

LEVELS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
STALLED = 0.9  # a run stalls if its gap is more than this share of the gap at half the budget
NAMED_FAILURES = 8


@dataclass(frozen=True)
class Trial:
    """Results of a solver and of the best classical one on unseen problems.

    Args:
        name: Name of the solver.
        accuracy: Relative gap to reach.
        ours: The solver with its results.
        best: The best classical solver with its results.
        iterations: Iterations at which gaps were recorded.
        gaps: Relative gaps of the solver and of the classical one, each (points, problems).
        conditional_on: Statements that the proofs of the minima rest on; None for estimates.
        tolerance: Relative gap of the lower bounds.
    """

    name: str
    accuracy: float
    ours: Contestant
    best: Contestant
    iterations: list[int]
    gaps: tuple[Tensor, Tensor]
    conditional_on: list[str] | None
    tolerance: float

    @property
    def words(self) -> str:
        """The answer in words."""
        ours = _unseen(self.ours)
        best = _unseen(self.best)
        rival = self.best.name
        note = proof_note(self.conditional_on)
        solved = f"{ours.solved} of {ours.count} unseen problems"
        if ours.solved < best.solved or not math.isfinite(ours.seconds):
            return f"It does not pay: {self.name} solves {solved}, and {rival} {best.solved}.{note}"
        ratio = best.seconds / ours.seconds
        if ratio < CLEARLY:
            speed = "faster" if ratio <= 1 / CLEARLY else "as fast"
            return (
                f"It does not pay: {rival} is {speed} ({self.name} takes {1 / ratio:.2f} times as "
                f"long).{note}"
            )
        return (
            f"It pays: {ratio:.1f} times faster than {rival}, the best tuned classical solver, "
            f"to {self.accuracy:g} on {solved}.{note}"
        )

    @property
    def levels(self) -> list[tuple[float, Tensor, Tensor]]:
        """Gaps that the lower bounds can resolve, with the iterations of both solvers.

        Iterations are −1 for problems that do not reach the gap.
        """
        rows = []
        for level in LEVELS:
            if level >= 9 * self.tolerance:
                ours, theirs = (first_below(gaps, self.iterations, level) for gaps in self.gaps)
                rows.append((level, ours, theirs))
        return rows

    def stalls(self) -> tuple[Tensor, str]:
        """Return which runs of the solver stop improving before the budget ends, and a sentence."""
        best = self.gaps[0].cummin(0).values
        last = self.iterations[-1]
        middle = next(i for i, k in enumerate(self.iterations) if 2 * k >= last)
        end = best[-1]
        stalled = (end > STALLED * best[middle]) & (end > 9 * self.tolerance)
        if not bool(stalled.any()):
            return stalled, f"It does not stall within {last} iterations."
        since = first_below(best[:, stalled], self.iterations, end[stalled] / STALLED)
        return stalled, (
            f"It stalls on {int(stalled.sum())} of {len(stalled)} problems: their gaps stay at "
            f"about {float(end[stalled].median()):.1e} from iteration {int(since.median())} on."
        )

    def failures(self) -> list[tuple[int, float, int]]:
        """Return (index, smallest gap, iterations of the classical solver) of unsolved problems."""
        unsolved = (_unseen(self.ours).iterations < 0).nonzero().flatten().tolist()
        classical = _unseen(self.best).iterations
        return [(i, float(self.gaps[0][:, i].min()), int(classical[i])) for i in unsolved]

    def failures_in_words(self) -> str:
        """Return a sentence about the unsolved problems."""
        failed = self.failures()
        if not failed:
            return f"It fails on none of the {self.gaps[0].shape[1]} problems."
        listed = ", ".join(f"{i} (gap {gap:.1e})" for i, gap, _ in failed[:NAMED_FAILURES])
        if len(failed) > NAMED_FAILURES:
            listed += f" and {len(failed) - NAMED_FAILURES} more"
        both = sum(needed < 0 for _, _, needed in failed)
        return (
            f"It fails on {len(failed)} problems: {listed}; "
            f"{self.best.name} fails on {both} of them."
        )

    def table(self) -> Table:
        """Return iterations and times of both solvers to every gap."""
        rows = []
        for level, ours, theirs in self.levels:
            cells = _cells(self.ours, ours) + _cells(self.best, theirs)
            rows.append((f"{level:g}", *cells))
        columns = (
            "accuracy",
            f"{self.name}: solved",
            "median iterations",
            "ms",
            f"{self.best.name}: solved",
            "median iterations",
            "ms",
        )
        return Table(columns, rows)

    def page(self) -> Page:
        """Return the page with the answer, the table and the curves."""
        curves = []
        for contestant, gaps in zip((self.ours, self.best), self.gaps, strict=True):
            pace = _unseen(contestant).pace
            seconds = [k * pace for k in self.iterations]
            curves.append(Curve(contestant.name, self.iterations, seconds, gaps))
        sections = [
            Section(
                "To which accuracy, and how fast",
                self.table(),
                "All problems are unseen. Times are for the whole batch, until the last solved "
                "problem is solved. The classical solver is the fastest one that fits the "
                "problems, tuned on other problems.",
            ),
            Section(
                "Along the runs",
                Panel(curves, "relative gap"),
                f"{self.stalls()[1]} {self.failures_in_words()}",
            ),
        ]
        return Page(f"Is {self.name} any good?", self.words, sections, {"accuracy": self.accuracy})


def _unseen(contestant: Contestant) -> RaceResult:
    assert contestant.unseen is not None
    return contestant.unseen


def _cells(contestant: Contestant, needed: Tensor) -> tuple[str, str, str]:
    """Return the number of solved problems, median iterations and milliseconds as text."""
    solved = needed[needed >= 0]
    count = f"{len(solved)} of {len(needed)}"
    if not len(solved):
        return count, "–", "–"
    milliseconds = 1e3 * _unseen(contestant).pace * int(solved.max())
    return count, str(int(solved.median())), f"{milliseconds:.3g}"


@torch.no_grad()
def trial(
    family: ProblemFamily,
    method: Method[Any],
    *,
    name: str = "this solver",
    accuracy: float = 1e-2,
    count: int = 32,
    iterations: int = 2000,
    seed: int = 0,
    say: Callable[[str], object] | None = None,
) -> Trial:
    """Race a solver against tuned classical solvers on the held-out problems of a class.

    Args:
        family: The class of problems.
        method: The solver.
        name: Name of the solver.
        accuracy: Relative gap to reach.
        count: Number of problems that are solved at once.
        iterations: Largest number of iterations.
        seed: Seed of the problems on which classical solvers are tuned.
        say: Function that is called with messages.
    """
    say = say or (lambda _: None)
    tolerance = min(1e-3, accuracy / 100)
    check_family(family.draw(torch.arange(2)))
    say("certifying problems")
    draw = Pooled(family, count, tolerance, seed).draw(torch.arange(count))
    tuning = Race(draw, accuracy, iterations)
    classical = race_classical_solvers(tuning, typical_step(draw), say)
    best = min(classical, key=lambda each: each.rehearsal.seconds, default=None)
    if best is None or not math.isfinite(best.rehearsal.seconds):
        raise ValueError(
            f"no classical solver reaches a gap of {accuracy:g} in {iterations} iterations: "
            "choose a larger accuracy, or check the problems"
        )
    unseen = family.validation(count)
    conditions: list[str] | None = []
    if unseen.lower is None:
        lower, conditions = lower_bounds(unseen, tolerance)
        unseen = replace(unseen, lower=lower)
    race = replace(tuning, draw=unseen)
    ours = Contestant(name, method, "learned", tuning.run(method))
    gaps = []
    for each in (ours, best):
        each.unseen = race.run(each.method)
        curve = race.curve(each.method)
        gaps.append(curve.gaps)
    return Trial(
        name, accuracy, ours, best, curve.iterations, (gaps[0], gaps[1]), conditions, tolerance
    )
