"""Participants of a race and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mirrordescent.methods import Method
from mirrordescent.racing.race import RaceResult
from mirrordescent.racing.timing import Timing


@dataclass
class Contestant:
    """A method with its results.

    Args:
        name: Name of the method.
        method: The method.
        kind: "classical", or the kind of learned method.
        rehearsal: Result on the problems by which methods are chosen.
        unseen: Result on problems by which nothing was chosen.
        bare: Result of a learned method in the rehearsal without its safeguard.
        unseen_bare: Result without the safeguard on the unseen problems.
        timing: Times on the unseen problems, measured in turn with the other contestants.
    """

    name: str
    method: Method[Any]
    kind: str
    rehearsal: RaceResult
    unseen: RaceResult | None = None
    bare: RaceResult | None = None
    unseen_bare: RaceResult | None = None
    timing: Timing | None = None
