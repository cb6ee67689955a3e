"""The page about a search."""

from __future__ import annotations

import math

from mirrordescent.automatic.outcome import AutoResult, attribution
from mirrordescent.methods import Safeguarded
from mirrordescent.racing import Contestant
from mirrordescent.report import Curve, Page, Panel, Section, Table

COLUMNS = ("method", "solved", "iterations of the last", "ms", "unseen: solved", "unseen: ms")


def page(found: AutoResult) -> Page:
    """Return the page: the recommendation, all methods, the parts of the gain, and curves."""
    sections = [
        Section(
            "Who took part",
            Table(COLUMNS, [_row(each) for each in found.contestants]),
            f"Time for the whole batch to a relative gap of {found.accuracy:g}: the least of "
            "several runs in the first column, and the median of runs in turn for unseen problems. "
            f"{_load(found)}Methods are chosen by the first columns. Unseen problems are used only "
            "once, to compare the best classical with the best learned method.",
        )
    ]
    shares = attribution(found.contestants, found.classical, found.learned)
    if shares:
        rows = [(part, _factor(factor)) for part, factor in shares.items()]
        table = Table(("part", "times faster"), rows)
        words = _gain_in_words(found.learned)
        if found.evidence.worst_case is not None:
            words += f" {found.evidence.worst_case}"
        sections.append(Section("Where the gain comes from", table, words))
    if found.outside is not None:
        columns = ("solver", "accuracy", "solved", "ms for the batch", "ms for one")
        table = Table(columns, found.outside.rows())
        sections.append(Section("Solvers of other packages", table, found.outside.words))
    checked = found.evidence.suitability
    if checked is not None:
        table = Table(("aspect", "holds", "found"), checked.rows())
        sections.append(Section("Was learning likely to pay?", table, str(checked)))
    sections.append(Section("Unseen problems", Panel(_curves(found), "relative gap")))
    return Page(f"A solver for {found.name}", found.words, sections, {"accuracy": found.accuracy})


def _row(contestant: Contestant) -> tuple[str, ...]:
    rehearsal = contestant.rehearsal
    unseen = contestant.unseen
    return (
        contestant.name,
        f"{rehearsal.solved} of {rehearsal.count}",
        str(rehearsal.most),
        f"{1e3 * rehearsal.seconds:.3g}" if math.isfinite(rehearsal.seconds) else "–",
        "–" if unseen is None else f"{unseen.solved} of {unseen.count}",
        "–" if unseen is None else f"{1e3 * unseen.seconds:.3g}",
    )


def _load(found: AutoResult) -> str:
    """Warn if other processes disturbed the measurement."""
    if not found.busy:
        return ""
    return "Other processes were running, and times of unseen problems are CPU times. "


def _factor(factor: float) -> str:
    return f"{factor:.2f}" if math.isfinite(factor) else "needed"


def _curves(found: AutoResult) -> list[Curve]:
    """Return gaps over iterations and over time, with times from runs without recording."""
    curves = []
    for contestant in found.contestants:
        curve = found.curves.get(contestant.name)
        if curve is not None and contestant.unseen is not None:
            seconds = [k * contestant.unseen.pace for k in curve.iterations]
            curves.append(Curve(contestant.name, curve.iterations, seconds, curve.gaps))
    return curves


def _gain_in_words(ours: Contestant | None) -> str:
    """Explain the parts of a gain."""
    words = (
        "The schedules are learned with the Euclidean geometry and compared with the best "
        "classical solver. The map is compared with the schedules alone. The safeguard returns to "
        "the best point and shortens the steps when f rises."
    )
    if ours is None or ours.bare is None:
        return words
    if not isinstance(ours.method, Safeguarded):
        return f"{words} This method has no safeguard, because it would cost too much time."
    return (
        f"{words} {ours.bare.solved} problems are solved without it, "
        f"{ours.rehearsal.solved} with it."
    )
