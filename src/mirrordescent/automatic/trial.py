"""Does a solver beat the tuned classical ones on a class of problems, where does it stall, and
where does it fail?
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mirrordescent.automatic.classical import entered, typical_step
from mirrordescent.automatic.family_check import check_family
from mirrordescent.automatic.outcome import CLEARLY, Contestant
from mirrordescent.automatic.race import Race, first_below
from mirrordescent.learn.families import Pooled, ProblemFamily, reference_of
from mirrordescent.methods.base import Method
from mirrordescent.report import Curve, Page, Panel, Section, Table

LEVELS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
# a gap that is more than this share of what it was at half the budget does not fall any more
STILL = 0.9


@dataclass(frozen=True)
class Trial:
    """What came out: both contestants with their results on unseen problems, and gaps along runs of
    the whole budget.

    ``gaps`` are (points, problems), at ``iterations``, of the solver and of the best classical one.
    """

    name: str
    accuracy: float
    ours: Contestant
    best: Contestant
    iterations: list[int]
    gaps: tuple[Tensor, Tensor]
    proven: bool
    tolerance: float

    @property
    def words(self) -> str:
        """The answer in plain words."""
        ours = self.ours.unseen
        best = self.best.unseen
        who = self.best.name
        assert ours is not None
        assert best is not None
        note = (
            ""
            if self.proven
            else " Minima are estimates: nothing could be proven for these problems."
        )
        solved = f"{ours.solved} of {ours.count} unseen problems"
        if ours.solved < best.solved or not math.isfinite(ours.seconds):
            return f"It does not pay: {self.name} solves {solved}, and {who} {best.solved}.{note}"
        ratio = best.seconds / ours.seconds
        if ratio < CLEARLY:
            return f"It does not pay: {who} is as fast ({self.name} takes {1 / ratio:.2f} times as long).{note}"
        return (
            f"It pays: {ratio:.1f} times faster than {who}, the best classical solver, tuned, to {self.accuracy:g} on "
            f"{solved}.{note}"
        )

    @property
    def levels(self) -> list[tuple[float, Tensor, Tensor]]:
        """Accuracies that the bounds can tell, and the iterations both needed to them, −1 where it
        never got there.
        """
        told = [level for level in LEVELS if level >= 9 * self.tolerance]
        ours, theirs = (
            [first_below(gaps, self.iterations, level) for level in told] for gaps in self.gaps
        )
        return list(zip(told, ours, theirs, strict=True))

    def stalls(self) -> tuple[Tensor, str]:
        """Tell which runs of the solver stop getting better before the budget ends, and say so."""
        best = self.gaps[0].cummin(0).values
        half = best[next(i for i, k in enumerate(self.iterations) if 2 * k >= self.iterations[-1])]
        end = best[-1]
        stalled = (end > STILL * half) & (end > 9 * self.tolerance)
        if not bool(stalled.any()):
            return stalled, f"It does not stall within {self.iterations[-1]} iterations."
        since = first_below(best[:, stalled], self.iterations, end[stalled] / STILL)
        return stalled, (
            f"It stalls on {int(stalled.sum())} of {len(stalled)} problems: their gaps stay at about "
            f"{float(end[stalled].median()):.1e} from iteration {int(since.median())} on."
        )

    def failures(self) -> list[tuple[int, float, int]]:
        """Return the problems that are not solved: their numbers, the least gaps, and what the
        classical one needs.
        """
        assert self.ours.unseen is not None
        assert self.best.unseen is not None
        failed = (self.ours.unseen.iterations < 0).nonzero().flatten().tolist()
        return [
            (i, float(self.gaps[0][:, i].min()), int(self.best.unseen.iterations[i]))
            for i in failed
        ]

    def failures_in_words(self) -> str:
        """Say on which problems it fails."""
        failed = self.failures()
        if not failed:
            return f"It fails on none of the {self.gaps[0].shape[1]} problems."
        named = ", ".join(f"{i} (gap {gap:.1e})" for i, gap, _ in failed[:8])
        rest = f" and {len(failed) - 8} more" if len(failed) > 8 else ""
        also = sum(needed < 0 for _, _, needed in failed)
        return f"It fails on {len(failed)} problems: {named}{rest}; {self.best.name} fails on {also} of them."

    def table(self) -> Table:
        """Return iterations and times to every accuracy, of both."""
        rows = []
        for level, *taken in self.levels:
            cells = [f"{level:g}"]
            for contestant, needed in zip((self.ours, self.best), taken, strict=True):
                solved = needed[needed >= 0]
                cells.append(f"{len(solved)} of {len(needed)}")
                cells.append(str(int(solved.median())) if len(solved) else "–")
                cells.append(
                    f"{1e3 * self._pace(contestant) * int(solved.max()):.3g}"
                    if len(solved)
                    else "–"
                )
            rows.append(tuple(cells))
        ours = self.name
        theirs = self.best.name
        columns = (
            "accuracy",
            f"{ours}: solved",
            "median iterations",
            "ms",
            f"{theirs}: solved",
            "median iterations",
            "ms",
        )
        return Table(columns, rows)

    def page(self) -> Page:
        """Return all that as a page."""
        said = f"{self.stalls()[1]} {self.failures_in_words()}"
        sections = [
            Section(
                "To which accuracy, and how fast",
                self.table(),
                "Problems are unseen ones, and times those of the whole batch, as long as the last of them needs that "
                "is solved. The classical solver is the fastest of those that fit, with settings tuned on others.",
            ),
            Section(
                "Along the runs",
                Panel(
                    [
                        Curve(
                            who.name,
                            self.iterations,
                            [k * self._pace(who) for k in self.iterations],
                            gaps,
                        )
                        for who, gaps in zip((self.ours, self.best), self.gaps, strict=True)
                    ],
                    "relative gap",
                ),
                said,
            ),
        ]
        return Page(f"Is {self.name} any good?", self.words, sections, {"accuracy": self.accuracy})

    def _pace(self, contestant: Contestant) -> float:
        """Return the seconds of an iteration."""
        found = contestant.unseen
        return (
            0.0
            if found is None or not math.isfinite(found.seconds)
            else found.seconds / max(1, found.most)
        )


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
    """Race a solver against the classical ones that fit, tuned on other problems, on a family's
    held-out problems.

    Args:
        family: the class of problems.
        method: the solver.
        name: what it is called.
        accuracy: the relative gap to reach.
        count: how many problems are solved at once.
        iterations: the budget.
        seed: of the problems that classical solvers are tuned on.
        say: told what happens, in a line each.
    """
    say = say or (lambda _: None)
    tolerance = min(1e-3, accuracy / 100)
    check_family(family.draw(torch.arange(2)))
    say("certifying problems")
    draw = Pooled(family, count, tolerance, seed).draw(torch.arange(count))
    tuning = Race(draw, accuracy, iterations)
    classical = [
        each
        for each in entered(tuning, typical_step(draw), say)
        if math.isfinite(each.rehearsal.seconds)
    ]
    if not classical:
        raise ValueError(
            f"no classical solver reaches {accuracy:g}: ask for a lower accuracy, or look at the problems"
        )
    best = min(classical, key=lambda each: each.rehearsal.seconds)
    unseen = family.validation(count)
    proven = True
    if unseen.lower is None:
        lower, proven = reference_of(unseen, tolerance)
        unseen = replace(unseen, lower=lower)
    race = replace(tuning, draw=unseen)
    ours = Contestant(name, method, "learned", tuning.run(method))
    gaps = []
    for each in (ours, best):
        each.unseen = race.run(each.method)
        found, at = race.curve(each.method, iterations)
        gaps.append(found)
    return Trial(name, accuracy, ours, best, at, (gaps[0], gaps[1]), proven, tolerance)
