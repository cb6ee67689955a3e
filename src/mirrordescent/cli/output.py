"""What commands print: lines for people, JSON for machines."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def show(data: dict[str, Any], lines: Iterable[str], as_json: bool) -> None:
    """Print a report as JSON or as lines."""
    if as_json:
        print(json.dumps(plain(data), indent=2, ensure_ascii=False))
    else:
        print(*lines, sep="\n")


def say(line: str) -> None:
    """Tell how things stand, on standard error: standard output is for the report."""
    print(line, file=sys.stderr, flush=True)


def progress() -> bool | None:
    """A bar on a terminal where it takes longer, else lines of text."""
    return None if sys.stderr.isatty() else True


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with the columns below each other.

    >>> aligned([("a", "b"), ("long", "c")])
    ['a     b', 'long  c']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def plain(value: Any) -> Any:
    """Return data as JSON knows them: paths as text, and null for numbers that are none or infinite."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (bool, int, str, type(None))) else str(value)
