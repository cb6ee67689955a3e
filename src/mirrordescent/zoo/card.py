"""The card of an entry: what it is for, how it was learned, what it achieves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from mirrordescent._internal.suggestions import require_known

DEEPEST = 20  # levels of tables in tables
_KINDS: dict[str, Any] = {
    "stages": list | tuple,
    "parameters": int | None,
    "held_out": dict,
    "use": dict,
    "requires": list | tuple,
}


@dataclass(frozen=True)
class Card:
    """What is known about an entry.

    Args:
        name: its name.
        description: what it is for, in a sentence.
        kind: what it is: a map, method, oracle, schedule, problem or initialisation. Filled in when
            it is saved.
        family: what it was learned on, in words.
        data: the collection that the family is made from, with its terms, in words.
        stages: how it was learned, a record for each stage: its settings and its outcome.
        parameters: how many numbers were learned.
        held_out: what it achieves on problems that it was not learned on; under ``control``, what
            the same method does with the identity for its map.
        use: numbers that belong to it, such as the minibatch size it is meant for.
        requires: the user's modules that have to be imported before it is loaded. Filled in when it
            is saved.
    """

    name: str
    description: str = ""
    kind: str = ""
    family: str = ""
    data: str = ""
    stages: Sequence[dict[str, Any]] = ()
    parameters: int | None = None
    held_out: dict[str, Any] = field(default_factory=dict)
    use: dict[str, Any] = field(default_factory=dict)
    requires: Sequence[str] = ()

    @property
    def gain(self) -> str:
        """What its gain is owed to, by comparison with the identity for its map
        (``held_out.control``).

        "geometry", "schedules", where the map's share is not significantly above zero, or
        "unknown"; "" without a map.
        """
        control = self.held_out.get("control")
        return str(control.get("gain", "unknown")) if isinstance(control, dict) else ""

    def completed(self, kind: str, requires: Sequence[str]) -> Card:
        """Return the card with what saving fills in."""
        return replace(self, kind=kind, requires=list(requires))

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Any) -> Card:
        """Read it from plain data, or say what is wrong with the data."""
        if not isinstance(data, dict):
            raise ValueError(f"a card is a table, not a {type(data).__name__}")
        for key, value in data.items():
            require_known(key, [each.name for each in fields(cls)], "entry of a card")
            wanted = _KINDS.get(key, str)
            if not isinstance(value, wanted) or isinstance(value, bool) or _depth(value) > DEEPEST:
                raise ValueError(
                    f"{key} of a card cannot be a {type(value).__name__}, or is nested too deeply"
                )
        if "name" not in data:
            raise ValueError("a card has a name")
        return cls(**data)


def _depth(value: Any) -> int:
    """Return how deeply tables and lists are nested, without going deeper than need be."""
    level = [value]
    depth = 0
    while level and depth <= DEEPEST:
        nested = [each for each in level if isinstance(each, dict | list)]
        level = [
            inner
            for each in nested
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        depth += 1
    return depth
