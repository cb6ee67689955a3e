"""The result of a search, and its recommendation in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from mirrordescent._internal import html
from mirrordescent.automatic.candidates import PLAIN
from mirrordescent.automatic.guarantees import in_words as share_in_words, tail_of
from mirrordescent.automatic.outside import OutsideResult
from mirrordescent.automatic.suitability import Suitability
from mirrordescent.methods import Method
from mirrordescent.problems.statements import in_words
from mirrordescent.racing import Contestant, GapCurve, RaceResult, Speedup
from mirrordescent.theory.performance import WorstCase

CLEARLY = 1.1  # a learned method is recommended if it is faster by this factor
ESTIMATED = " Minima are estimates: nothing could be proven for these problems."


@dataclass(frozen=True)
class Evidence:
    """What was measured on unseen problems.

    Args:
        speedup: Factor by which the learned method is faster than the best classical solver, with
            its interval, measured in turn.
        outside: Comparison with solvers of other packages.
        curves: Relative gaps of the best methods.
        suitability: The check before learning.
        worst_case: Worst-case rate of the learned method without its safeguard, or the reason why
            there is none; None if nothing was learned.
    """

    speedup: Speedup | None = None
    outside: OutsideResult | None = None
    curves: dict[str, GapCurve] = field(default_factory=dict)
    suitability: Suitability | None = None
    worst_case: WorstCase | None = None


@dataclass(repr=False)
class AutoResult:
    """The solver to use for a class of problems.

    Args:
        name: Name of the class of problems.
        method: The solver to use. If learning is ``recommended``, it is the learned method, which
            switches to the classical one if it has not finished in time; otherwise it is the best
            classical one.
        recommended: Whether to use the learned method.
        words: The recommendation in words.
        accuracy: Relative gap to reach.
        classical: The best classical solver.
        learned: The best learned method, or None if none solves enough problems.
        contestants: All methods that took part, the fastest first.
        conditional_on: Statements of users' classes that the proofs of the minima rest on; None if
            minima are estimates.
        file: File of the solver, for ``zoo.load``.
        seconds: Duration of the search.
        evidence: Measurements on unseen problems.
    """

    name: str
    method: Method[Any]
    recommended: bool
    words: str
    accuracy: float
    classical: Contestant
    learned: Contestant | None
    contestants: list[Contestant]
    conditional_on: list[str] | None
    file: Path
    seconds: float
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def speedup(self) -> Speedup | None:
        """The factor by which the learned method is faster, with its interval."""
        return self.evidence.speedup

    @property
    def outside(self) -> OutsideResult | None:
        """The comparison with solvers of other packages."""
        return self.evidence.outside

    @property
    def curves(self) -> dict[str, GapCurve]:
        """Relative gaps of the best methods on unseen problems."""
        return self.evidence.curves

    @property
    def proven(self) -> bool:
        """Whether all minima are proven without conditions."""
        return self.conditional_on == []

    @property
    def busy(self) -> bool:
        """Whether other processes disturbed the final measurement."""
        return any(each.timing is not None and each.timing.busy for each in self.contestants)

    def __str__(self) -> str:
        return self.words

    def __repr__(self) -> str:
        return f"<AutoResult for {self.name}: {self.words}>"

    def _repr_html_(self) -> str:
        """Return the recommendation, and the times on unseen problems, for notebooks."""
        rows = [
            (each.name, str(each.unseen)) for each in self.contestants if each.unseen is not None
        ]
        return f"<div><p>{escape(self.words)}</p>{html.table(rows)}</div>"


def proof_note(conditions: Sequence[str] | None) -> str:
    """Return a sentence on what the minima rest on; empty if they are proven.

    Args:
        conditions: Statements that the proofs rest on; None if the minima are estimates.

    >>> proof_note(["f is convex"])
    ' Minima are proven if f is convex, as stated.'
    """
    if conditions is None:
        return ESTIMATED
    return f" Minima are proven {in_words(conditions)}." if conditions else ""


def verdict(
    accuracy: float,
    best: Contestant,
    ours: Contestant | None,
    chosen: bool,
    conditions: Sequence[str] | None = (),
    measured: Speedup | None = None,
) -> str:
    """Return the recommendation in words.

    Args:
        accuracy: Relative gap to reach.
        best: The best classical solver.
        ours: The best learned method.
        chosen: Whether the learned method is recommended.
        conditions: Statements that the proofs of the minima rest on; None for estimates.
        measured: Ratio of the times on unseen problems, measured in turn. By default the ratio of
            the times of both races, without an interval.
    """
    assert best.unseen is not None
    note = proof_note(conditions)
    if ours is None or ours.unseen is None:
        return (
            f"Do not learn: nothing learned solves as many problems as {best.name}. "
            f"Use {best.name}. {_guarantee(best.unseen)}{note}"
        )
    solved = f"{ours.unseen.solved} of {ours.unseen.count} unseen problems"
    if ours.unseen.solved < best.unseen.solved or not math.isfinite(ours.unseen.seconds):
        rival = f"{best.name} {best.unseen.solved}"
        return f"Do not learn: {ours.name} solves {solved}, and {rival}.{note}"
    ratio = best.unseen.seconds / ours.unseen.seconds
    interval = ""
    if measured is not None:
        ratio = measured.median
        interval = f" ({measured.low:.2g} to {measured.high:.2g})"
    if chosen:
        failed = ours.unseen.count - ours.unseen.solved
        rest = f", and fails on {failed}, which fall back to {best.name}" if failed else ""
        return (
            f"Use this: {ratio:.1f} times faster{interval} than {best.name}, the best classical "
            f"solver, to {accuracy:g} on {solved}{rest}. "
            f"{_guarantee(ours.unseen)}{note}"
        )
    if ratio >= CLEARLY:
        return (
            f"Do not learn: {ours.name} was {ratio:.1f} times faster than {best.name} on unseen "
            "problems, but not clearly faster on the problems by which methods are chosen. "
            f"A longer search may decide.{note}"
        )
    speed = "faster" if ratio <= 1 / CLEARLY else "as fast"
    return (
        f"Do not learn: {best.name} is {speed} (the best learned method takes {1 / ratio:.2f} "
        f"times as long). {_guarantee(best.unseen)}{note}"
    )


def _guarantee(result: RaceResult) -> str:
    """Return the share of solved problems with its confidence, and the tail of the times."""
    words = share_in_words(result.solved, result.count)
    tail = tail_of(result.iterations, result.pace)
    return words if tail is None else f"{words} Problems of a batch are solved after {tail}."


def with_rivals(words: str, outside: OutsideResult, accuracy: float) -> str:
    """Return the recommendation with the fastest of all solvers.

    If a solver of another package is clearly the fastest for the batch, it is the recommendation.

    Args:
        words: Recommendation among the solvers of the search.
        outside: Comparison with solvers of other packages.
        accuracy: Relative gap to reach.
    """
    entries = outside.batch.get(accuracy, [])
    own = [each for each in entries if not each.outside]
    if entries and entries[0].outside and own:
        ratio = own[0].seconds / entries[0].seconds
        if ratio >= CLEARLY:
            words = (
                f"Use {entries[0].name}: {ratio:.1f} times faster than {own[0].name}, the best "
                f"solver of this search, for {outside.count} problems to {accuracy:g}. "
                f"Among the solvers of this search: {words}"
            )
    return f"{words} {outside.words}".strip()


def attribution(
    contestants: Sequence[Contestant], best: Contestant, ours: Contestant | None
) -> dict[str, float]:
    """Return the factor by which each part makes the learned method faster.

    The parts are the schedules alone, the map and the safeguard. The product of the factors is the
    speed-up over the best classical solver. All factors come from the runs of the verdict on unseen
    problems if they were measured there, otherwise from the rehearsal. A safeguard costs some time,
    so its factor is usually below 1; it is infinite if the method fails without it.

    Args:
        contestants: All methods that took part.
        best: The best classical solver.
        ours: The best learned method.
    """
    plain = [each for each in contestants if each.kind.startswith(PLAIN)]
    if ours is None or not plain:
        return {}
    raced = [each for each in plain if each.unseen is not None]
    on_unseen = best.unseen is not None and ours.unseen is not None and bool(raced)
    first = _seconds(best, on_unseen)
    schedules = min(_seconds_without_safeguard(each, on_unseen) for each in raced or plain)
    bare = _seconds_without_safeguard(ours, on_unseen)
    if not math.isfinite(schedules):  # schedules alone were not timed
        return {}
    if not math.isfinite(bare):
        return {"schedules": first / schedules, "safeguard": math.inf}
    return {
        "schedules": first / schedules,
        "map": schedules / bare,
        "safeguard": bare / _seconds(ours, on_unseen),
    }


def _seconds(contestant: Contestant, on_unseen: bool) -> float:
    result = contestant.unseen if on_unseen else contestant.rehearsal
    assert result is not None
    return result.seconds


def _seconds_without_safeguard(contestant: Contestant, on_unseen: bool) -> float:
    bare = contestant.unseen_bare if on_unseen else contestant.bare
    return _seconds(contestant, on_unseen) if bare is None else bare.seconds
