"""Conversion of dataclasses to and from tables, such as those of a TOML document."""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from mirrordescent._internal.suggestions import require_known
from mirrordescent.learn.unrolling import Differentiation

T = TypeVar("T")
Table = dict[str, Any]

_PLAIN_TYPES: dict[Any, tuple[Any, str]] = {
    int: (int, "a whole number"),
    float: (int | float, "a finite number"),
    bool: (bool, "true or false"),
    str: (str, "text"),
}
"""Accepted types and descriptions by annotation."""

_DIFFERENTIATION = "settings.objective.differentiation"
MOVED_SETTINGS = {
    "settings.learning_rate": "settings.optimiser.learning_rate",
    "settings.decay": "settings.optimiser.decay",
    "settings.betas": "settings.optimiser.betas",
    "settings.clip": "settings.optimiser.clip",
    "settings.validation_batch": "settings.validation.batch",
    "settings.validation_horizons": "settings.validation.horizons",
    "settings.validate_every": "settings.validation.every",
    "settings.patience": "settings.validation.patience",
    "settings.objective.segment": f'{_DIFFERENTIATION} = {{type = "truncated", segment = …}}',
    "settings.objective.pairs": f'{_DIFFERENTIATION} = {{type = "evolution", pairs = …}}',
    "settings.objective.spread": f'{_DIFFERENTIATION} = {{type = "evolution", spread = …}}',
}
"""Settings of version 0.1 and their new places."""


def changed(base: T, table: Mapping[str, Any], where: str) -> T:
    """Return a dataclass with some fields replaced. Nested tables change nested dataclasses.

    Args:
        base: Dataclass to change.
        table: New values by field.
        where: Name of the table, for error messages.

    >>> from mirrordescent.learn import Settings
    >>> changed(Settings(), {"horizon": 5, "optimiser": {"clip": 2.0}}, "settings").optimiser.clip
    2.0
    """
    known = [field.name for field in fields(base)]  # type: ignore[arg-type]
    for key in table:
        new_place = MOVED_SETTINGS.get(f"{where}.{key}")
        if new_place is not None:
            raise ValueError(f"{key} is no longer an entry of [{where}]: it is {new_place} now")
        require_known(key, known, f"entry of [{where}]")
    hints = get_type_hints(type(base))
    values = {}
    for key, value in table.items():
        values[key] = _convert(getattr(base, key), hints[key], value, f"{where}.{key}")
    return replace(base, **values)  # type: ignore[type-var]


def plain(value: Any) -> Any:
    """Return settings in the types of JSON, as :func:`changed` accepts them.

    >>> from mirrordescent.learn import Truncated
    >>> plain(Truncated(30))
    {'type': 'truncated', 'segment': 30}
    """
    if is_dataclass(value):
        table: Table = {}
        if isinstance(value, Differentiation):
            table["type"] = _name(type(value))
        for field in fields(value):
            table[field.name] = plain(getattr(value, field.name))
        return table
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def apply(changes: Iterable[str], document: Table) -> Table:
    """Set every ``table.key=value`` in a document and return the document.

    >>> apply(["settings.meta_steps=200", "family.type=denoising"], {})
    {'settings': {'meta_steps': 200}, 'family': {'type': 'denoising'}}
    """
    for change in changes:
        name, equals, text = change.partition("=")
        name = name.strip()
        if not (name and equals):
            raise ValueError(f"a change must have the form key=value, got {change!r}")
        *tables, key = name.split(".")
        inner = document
        for table in tables:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{name} cannot be set, because {table} is not a table")
        inner[key] = _parse(text)
    return document


def _parse(text: str) -> Any:
    """Read a value as TOML, or as text if it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _convert(current: Any, hint: Any, value: Any, where: str) -> Any:
    """Return a new value of a field, converted to its type.

    Args:
        current: Present value of the field.
        hint: Annotation of the field.
        value: New value from a table.
        where: Name of the field, for error messages.
    """
    if isinstance(current, Differentiation):
        table = {"type": value} if isinstance(value, str) else value
        return _differentiation(current, table, where)
    if is_dataclass(current):
        return changed(current, _require_table(value, where), where)
    if isinstance(value, str) and not isinstance(current, str):
        raise ValueError(f"{where} cannot be text, got {value!r}")
    require_type(value, hint, where)
    return _as_tuple(value)


def require_type(value: Any, hint: Any, where: str) -> None:
    """Raise unless a value has the type of an annotation.

    Only plain types, tuples and sequences are checked.

    >>> require_type(2.5, int | None, "map.filters")
    Traceback (most recent call last):
    ValueError: map.filters must be a whole number, got 2.5
    """
    expected = _mismatch(value, hint)
    if expected is not None:
        raise ValueError(f"{where} must be {expected}, got {value!r}")


def _mismatch(value: Any, hint: Any) -> str | None:
    """Return a description of the expected type if the value has another type, otherwise None."""
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        mismatches = [_mismatch(value, option) for option in get_args(hint)]
        return None if None in mismatches else mismatches[0]
    if hint in _PLAIN_TYPES:
        return _plain_mismatch(value, hint)
    if get_origin(hint) is tuple:
        return _tuple_mismatch(value, get_args(hint))
    if get_origin(hint) is Sequence:
        if not isinstance(value, list | tuple):
            return "a list"
        return _item_mismatch(value, [get_args(hint)[0]] * len(value))
    if hint is type(None) and value is not None:
        return "no more than a number or text"
    return None


def _plain_mismatch(value: Any, hint: Any) -> str | None:
    accepted, description = _PLAIN_TYPES[hint]
    if not isinstance(value, accepted):
        return description
    if isinstance(value, bool) and hint is not bool:
        return description
    if isinstance(value, float) and not math.isfinite(value):
        return description
    return None


def _tuple_mismatch(value: Any, hints: tuple[Any, ...]) -> str | None:
    any_length = len(hints) == 2 and hints[1] is Ellipsis
    expected = "a list of numbers" if any_length else f"a list of {len(hints)}"
    if not isinstance(value, list | tuple):
        return expected
    if any_length:
        return _item_mismatch(value, hints[:1] * len(value))
    if len(value) != len(hints):
        return expected
    return _item_mismatch(value, hints)


def _item_mismatch(items: Sequence[Any], hints: Sequence[Any]) -> str | None:
    for item, hint in zip(items, hints, strict=True):
        mismatch = _mismatch(item, hint)
        if mismatch is not None:
            return f"a list, each {mismatch}"
    return None


def _as_tuple(value: Any) -> Any:
    """Return nested lists as tuples."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _differentiation(current: Differentiation, table: Any, where: str) -> Differentiation:
    """Return the kind of differentiation that a table describes."""
    entries = dict(_require_table(table, where))
    classes = {_name(cls): cls for cls in Differentiation.__subclasses__()}
    kind = entries.pop("type", _name(type(current)))
    require_known(kind, classes, f"type of {where}")
    base = current if classes[kind] is type(current) else classes[kind]()
    return changed(base, entries, where)


def _require_table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a table, got {value!r}")
    return value


def _name(kind: type[Differentiation]) -> str:
    return kind.__name__.casefold()
