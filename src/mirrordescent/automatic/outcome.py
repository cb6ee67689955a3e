"""Who took part in a search, what was found, and how that is said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from mirrordescent.automatic.candidates import PLAIN
from mirrordescent.automatic.race import Result
from mirrordescent.methods import Method

CLEARLY = 1.1  # times faster a learned method has to be, or it is not worth the trouble


@dataclass
class Contestant:
    """A method, with what it needed in the rehearsal, and in words what is special about it.

    ``bare`` is what a learned one needed there without its safeguard.
    """

    name: str
    method: Method[Any]
    kind: str
    rehearsal: Result
    unseen: Result | None = None
    bare: Result | None = None


@dataclass
class Auto:
    """What was found.

    ``method`` is the one to use: the learned one, which hands over to the classical one where it
    has not finished in time, if it is ``recommended``, and otherwise the best classical one.
    ``file`` has it, for ``zoo.load``.
    """

    name: str
    method: Method[Any]
    recommended: bool
    words: str
    accuracy: float
    classical: Contestant
    learned: Contestant | None
    contestants: list[Contestant]
    proven: bool
    file: Path
    seconds: float
    curves: dict[str, tuple[Tensor, list[int]]] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.words


def verdict(
    accuracy: float, best: Contestant, ours: Contestant | None, chosen: bool, proven: bool
) -> str:
    """Say in plain words what to use, and why."""
    assert best.unseen is not None
    note = "" if proven else " Minima are estimates: nothing could be proven for these problems."
    if ours is None or ours.unseen is None:
        return (
            f"Do not learn: nothing learned solves as many problems as {best.name}. Use that.{note}"
        )
    solved = f"{ours.unseen.solved} of {ours.unseen.count} unseen problems"
    if ours.unseen.solved < best.unseen.solved or not math.isfinite(ours.unseen.seconds):
        return f"Do not learn: {ours.name} solves {solved}, and {best.name} {best.unseen.solved}.{note}"
    ratio = best.unseen.seconds / ours.unseen.seconds
    if chosen:
        failed = ours.unseen.count - ours.unseen.solved
        rest = f", and fails on {failed}, which fall back to {best.name}" if failed else ""
        return (
            f"Use this: {ratio:.1f} times faster than {best.name}, the best classical solver, to {accuracy:g} on "
            f"{solved}{rest}.{note}"
        )
    if ratio >= CLEARLY:
        return (
            f"Do not learn: {ours.name} was not clearly faster than {best.name} where it was chosen, though it was on "
            f"unseen problems, {ratio:.1f} times. More minutes may settle it.{note}"
        )
    return f"Do not learn: {best.name} is as fast (the best learned method takes {1 / ratio:.2f} times as long).{note}"


def attribution(
    contestants: Sequence[Contestant], best: Contestant, ours: Contestant | None
) -> dict[str, float]:
    """Return how many times faster each part makes it, in the rehearsal: schedules alone, the map,
    and the safeguard.

    Their product is how many times faster it is than the best classical solver. The safeguard costs
    some time, so that its share is usually below 1; where nothing works without it, it is infinite.
    """
    plain = [each for each in contestants if each.kind.startswith(PLAIN)]
    if ours is None or not plain:
        return {}
    schedules = min(map(_unguarded, plain))
    bare = _unguarded(ours)
    if not math.isfinite(schedules):  # schedules alone are too slow to say by how much
        return {}
    if not math.isfinite(bare):
        return {"schedules": best.rehearsal.seconds / schedules, "safeguard": math.inf}
    return {
        "schedules": best.rehearsal.seconds / schedules,
        "map": schedules / bare,
        "safeguard": bare / ours.rehearsal.seconds,
    }


def _unguarded(contestant: Contestant) -> float:
    """Return the seconds it takes without a safeguard."""
    return (contestant.bare or contestant.rehearsal).seconds
