"""Dataclasses from tables, such as those of a TOML document, and back."""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from mirrordescent._internal.suggestions import require_known
from mirrordescent.learn.unroll import Differentiation

T = TypeVar("T")
Table = dict[str, Any]

_PLAIN: dict[Any, tuple[Any, str]] = {
    int: (int, "a whole number"),
    float: (int | float, "a finite number"),
    bool: (bool, "true or false"),
    str: (str, "text"),
}

MOVED = {  # entries of version 0.1, and where they are now
    **{
        f"settings.{key}": f"settings.optimiser.{key}"
        for key in ("learning_rate", "decay", "betas", "clip")
    },
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
    hints = get_type_hints(type(base))
    values = {
        key: _value(getattr(base, key), hints[key], value, f"{where}.{key}")
        for key, value in table.items()
    }
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


def _value(current: Any, hint: Any, value: Any, where: str) -> Any:
    if isinstance(current, Differentiation):
        return _differentiation(
            current, {"type": value} if isinstance(value, str) else value, where
        )
    if is_dataclass(current):
        return changed(current, _require_table(value, where), where)
    if isinstance(value, str) and not isinstance(current, str):
        raise ValueError(f"{where} cannot be text, got {value!r}")
    require_fits(value, hint, where)
    return _as_tuple(value)


def require_fits(value: Any, hint: Any, where: str) -> None:
    """Raise unless a value is of the kind that an annotation asks for, as far as it asks for
    something plain.

    >>> require_fits(2.5, int | None, "map.filters")
    Traceback (most recent call last):
    ValueError: map.filters must be a whole number, got 2.5
    """
    wanted = _wanted(value, hint)
    if wanted is not None:
        raise ValueError(f"{where} must be {wanted}, got {value!r}")


def _wanted(value: Any, hint: Any) -> str | None:
    """Say what should be there instead; None if it is as it should be, or if nothing is known."""
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        each = [_wanted(value, option) for option in get_args(hint)]
        return None if None in each else each[0]
    if hint in _PLAIN:
        kind, words = _PLAIN[hint]
        fits = isinstance(value, kind) and (hint is bool or not isinstance(value, bool))
        return None if fits and (not isinstance(value, float) or math.isfinite(value)) else words
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        many = len(inner) == 2 and inner[1] is Ellipsis
        if not isinstance(value, list | tuple) or not (many or len(value) == len(inner)):
            return "a list of numbers" if many else f"a list of {len(inner)}"
        kinds = inner[:1] * len(value) if many else inner
        return next(
            (
                f"a list, each {w}"
                for v, k in zip(value, kinds, strict=True)
                if (w := _wanted(v, k))
            ),
            None,
        )
    if get_origin(hint) is Sequence:
        if not isinstance(value, list | tuple):
            return "a list"
        return next(
            (f"a list, each {w}" for each in value if (w := _wanted(each, get_args(hint)[0]))), None
        )
    return "no more than a number or text" if hint is type(None) and value is not None else None


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


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
