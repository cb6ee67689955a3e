"""The card of a zoo entry: its purpose, its training, and its measured results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from mirrordescent._internal import html
from mirrordescent._internal.suggestions import require_known

DEEPEST = 20
"""Largest depth of nested tables and lists."""
_TYPES: dict[str, Any] = {
    "stages": list | tuple,
    "parameters": int | None,
    "held_out": dict,
    "use": dict,
    "requires": list | tuple,
    "version": int,
}
"""Types of the fields that are not text."""


@dataclass(frozen=True, repr=False)
class Card:
    """The description of a zoo entry.

    Args:
        name: Name of the entry.
        description: Purpose of the entry, in one sentence.
        kind: Kind of the module: a map, method, oracle, schedule, problem or initialisation. Set
            when the entry is saved.
        family: Description of the problems that it was learned on.
        data: Description of the data and their licence.
        stages: Records of the stages of learning, with settings and outcome.
        parameters: Number of learned parameters.
        held_out: Results on held-out problems. The entry ``control`` has the results of the same
            method with the identity instead of its mirror map.
        use: Numbers that are necessary to use the entry, such as the size of a minibatch.
        requires: Modules of the user that must be imported before the entry is loaded. Set when
            the entry is saved.
        version: Version of the entry, from 1. An entry that is learned anew gets the next one.
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
    version: int = 1

    def __post_init__(self) -> None:
        if self.version < 1:
            raise ValueError(f"version of a card must be at least 1, got {self.version}")

    @property
    def gain(self) -> str:
        """The source of the gain, by comparison with the control in ``held_out``.

        "geometry" if the mirror map contributes significantly against the strongest method without
        a map; "mixed" if it does so after some numbers of steps and harms after others; "no learned
        control" if no control was learned with the same budget; "schedules" if it contributes
        nothing; a reason why it is not known; or "" if it was not measured.
        """
        control = self.held_out.get("control")
        if not isinstance(control, dict):
            return ""
        return str(control.get("gain", "unknown"))

    def __repr__(self) -> str:
        return f"<Card of {self.name}, version {self.version}: {self.description}>"

    def _repr_html_(self) -> str:
        """Return the facts of the entry as a table, for notebooks."""
        rows = [
            ("entry", f"{self.name}, version {self.version}"),
            ("kind", self.kind),
            ("use", self.description),
            ("learned on", self.family),
            ("source of the gain", self.gain),
            ("learned numbers", "" if self.parameters is None else str(self.parameters)),
        ]
        return html.table([(name, text) for name, text in rows if text])

    def completed(self, kind: str, requires: Sequence[str]) -> Card:
        """Return the card with the fields that are set when an entry is saved."""
        return replace(self, kind=kind, requires=list(requires))

    def to_data(self) -> dict[str, Any]:
        """Return the card as plain data."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Any) -> Card:
        """Return the card with these fields, or raise if the data are not a card."""
        if not isinstance(data, dict):
            raise ValueError(f"a card must be a table, got a {type(data).__name__}")
        known = [each.name for each in fields(cls)]
        for key, value in data.items():
            require_known(key, known, "entry of a card")
            if not isinstance(value, _TYPES.get(key, str)) or isinstance(value, bool):
                raise ValueError(f"{key} of a card cannot be a {type(value).__name__}")
            if _depth(value) > DEEPEST:
                raise ValueError(f"{key} of a card is nested too deeply")
        if "name" not in data:
            raise ValueError("a card must have a name")
        return cls(**data)


def _depth(value: Any) -> int:
    """Return the depth of nested tables and lists, at most ``DEEPEST + 1``."""
    level = [value]
    depth = 0
    while level and depth <= DEEPEST:
        next_level: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                next_level += item.values()
            elif isinstance(item, list):
                next_level += item
        level = next_level
        depth += 1
    return depth
