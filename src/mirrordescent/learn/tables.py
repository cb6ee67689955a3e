"""Dataclasses from tables, such as those of a TOML document, and back."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from mirrordescent.learn.unroll import Differentiation
from mirrordescent.names import require_known

T = TypeVar("T")
Table = dict[str, Any]

MOVED = {  # entries of version 0.1, and where they are now
    **{f"settings.{key}": f"settings.optimiser.{key}" for key in ("learning_rate", "decay", "betas", "clip")},
    **{f"settings.validation_{key}": f"settings.validation.{key}" for key in ("batch", "horizons")},
    "settings.validate_every": "settings.validation.every",
    "settings.patience": "settings.validation.patience",
    "settings.objective.segment": 'settings.objective.differentiation = {type = "truncated", segment = …}',
    "settings.objective.pairs": 'settings.objective.differentiation = {type = "evolution", pairs = …}',
    "settings.objective.spread": 'settings.objective.differentiation = {type = "evolution", spread = …}',
}


def changed(base: T, table: Mapping[str, Any], where: str) -> T:
    """Return a dataclass with some fields changed; nested tables change nested dataclasses.

    >>> from mirrordescent.learn import Settings
    >>> changed(Settings(), {"horizon": 5, "optimiser": {"clip": 2.0}}, "settings").optimiser.clip
    2.0
    """
    known = [field.name for field in fields(base)]  # type: ignore[arg-type]
    for key in table:
        if moved := MOVED.get(f"{where}.{key}"):
            raise ValueError(f"{key} is no longer an entry of [{where}]: it is {moved} now")
        require_known(key, known, f"entry of [{where}]")
    values = {key: _value(getattr(base, key), value, f"{where}.{key}") for key, value in table.items()}
    return replace(base, **values)  # type: ignore[type-var]


def plain(value: Any) -> Any:
    """Return settings as JSON would give them back, and as ``changed`` takes them.

    >>> from mirrordescent.learn import Truncated
    >>> plain(Truncated(30))
    {'type': 'truncated', 'segment': 30}
    """
    if is_dataclass(value):
        kind = {"type": _name(type(value))} if isinstance(value, Differentiation) else {}
        return kind | {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def apply(changes: Iterable[str], document: Table) -> Table:
    """Set every ``table.key=value`` in a document, and return it.

    >>> apply(["settings.meta_steps=200", "family.type=denoising"], {})
    {'settings': {'meta_steps': 200}, 'family': {'type': 'denoising'}}
    """
    for change in changes:
        name, equals, text = change.partition("=")
        if not (name.strip() and equals):
            raise ValueError(f"a change has the form key=value, got {change!r}")
        *tables, key = name.strip().split(".")
        inner = document
        for table in tables:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{name.strip()} cannot be set: {table} is not a table")
        inner[key] = _parsed(text)
    return document


def _parsed(text: str) -> Any:
    """Read a value as TOML, or else as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _value(current: Any, value: Any, where: str) -> Any:
    if isinstance(current, Differentiation):
        return _differentiation(current, {"type": value} if isinstance(value, str) else value, where)
    if is_dataclass(current):
        return changed(current, _require_table(value, where), where)
    if isinstance(value, str) and not isinstance(current, str):
        raise ValueError(f"{where} cannot be text, got {value!r}")
    return tuple(value) if isinstance(value, list) else value


def _differentiation(current: Differentiation, table: Any, where: str) -> Differentiation:
    entries = dict(_require_table(table, where))
    known = {_name(cls): cls for cls in Differentiation.__subclasses__()}
    kind = entries.pop("type", _name(type(current)))
    require_known(kind, known, f"type of {where}")
    return changed(current if known[kind] is type(current) else known[kind](), entries, where)


def _require_table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a table, got {value!r}")
    return value


def _name(kind: type[Differentiation]) -> str:
    return kind.__name__.casefold()
