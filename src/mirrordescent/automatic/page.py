"""What was found, as a page: in plain words first, then who took part, where the gain comes from,
and curves.
"""

from __future__ import annotations

import math

from mirrordescent.automatic.outcome import Auto, Contestant, attribution
from mirrordescent.methods import Safeguarded
from mirrordescent.report import Curve, Page, Panel, Section, Table


def page(found: Auto) -> Page:
    """Return the page of a search."""
    rows = [
        (
            each.name,
            f"{each.rehearsal.solved} of {each.rehearsal.count}",
            str(each.rehearsal.most),
            "–"
            if each.rehearsal.seconds == float("inf")
            else f"{1e3 * each.rehearsal.seconds:.3g}",
            "–" if each.unseen is None else f"{each.unseen.solved} of {each.unseen.count}",
            "–" if each.unseen is None else f"{1e3 * each.unseen.seconds:.3g}",
        )
        for each in found.contestants
    ]
    columns = ("method", "solved", "iterations of the last", "ms", "unseen: solved", "unseen: ms")
    shares = attribution(found.contestants, found.classical, found.learned)
    sections = [
        Section(
            "Who took part",
            Table(columns, rows),
            f"Time for the whole batch to a relative gap of {found.accuracy:g}, the least of several runs. A method is "
            "chosen by the first columns; unseen problems are looked at once, for the two that are left.",
        )
    ]
    if shares:
        parts = [
            (what, f"{factor:.2f}" if math.isfinite(factor) else "needed")
            for what, factor in shares.items()
        ]
        sections.append(
            Section(
                "Where the gain comes from",
                Table(("part", "times faster"), parts),
                _parts_in_words(found.learned),
            )
        )
    paces = {
        each.name: each.unseen.seconds / max(1, each.unseen.most)
        if math.isfinite(each.unseen.seconds)
        else 0.0
        for each in found.contestants
        if each.unseen is not None
    }
    curves = [
        Curve(name, at, [k * paces[name] for k in at], gaps)
        for name, (gaps, at) in found.curves.items()
    ]
    sections.append(Section("Unseen problems", Panel(curves, "relative gap")))
    return Page(f"A solver for {found.name}", found.words, sections, {"accuracy": found.accuracy})


def _parts_in_words(ours: Contestant | None) -> str:
    """Say what the parts of a gain are, and what a safeguard is for."""
    words = (
        "Schedules are learned with the plain geometry, against the best classical solver; the map comes on top, and "
        "then the safeguard, which returns to the best point and shortens steps where f rises."
    )
    if ours is None or ours.bare is None:
        return words
    if not isinstance(ours.method, Safeguarded):
        return f"{words} Here there is none: it would have cost more time than it is worth."
    return f"{words} {ours.bare.solved} problems are solved without it, {ours.rehearsal.solved} with it."
