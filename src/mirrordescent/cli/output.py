"""What commands print: lines for people, JSON for machines; and the options that many of
them have.
"""

import io
import json
import math
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from tyro.conf import arg

_UNSEEN = (
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
)  # controls, directions of writing, halves of characters, breaks

AsJSON: TypeAlias = Annotated[bool, arg(help="print the report as JSON.")]
Switch: TypeAlias = Literal[
    "auto", "yes", "no"
]  # an option that is decided by itself, or on, or off
DataDirectory: TypeAlias = Annotated[
    Path | None, arg(help="the data directory; MIRRORDESCENT_DATA by default.")
]


def show(report: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print a report as JSON or as lines."""
    if as_json:
        print(visible(json.dumps(plain(report), indent=2, ensure_ascii=False)))
    else:
        print(*map(visible, lines), sep="\n")


def say(line: str) -> None:
    """Tell how things stand, on standard error: standard output is for the report."""
    print(visible(line), file=sys.stderr, flush=True)


def visible(text: str) -> str:
    r"""Return text that does nothing to a terminal but show: what came from a file may hold
    sequences that do more.

    >>> print(visible("two\nlines, \x1b[2J, 5 °C"))
    two
    lines, \u001b[2J, 5 °C
    """
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _UNSEEN else f"\\u{ord(c):04x}"
        for c in text
    )


class EscapedStderr(io.TextIOBase):
    """Standard error for arguments that would do something to a terminal when they are repeated:
    plain text only.
    """

    def __init__(self) -> None:
        self._there = sys.stderr

    def write(self, text: str) -> int:
        return self._there.write(visible(text))

    def flush(self) -> None:
        self._there.flush()


def progress() -> bool | None:
    """A bar on a terminal if it takes a while, else lines of text."""
    return None if sys.stderr.isatty() else True


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with the columns below each other.

    >>> aligned([("a", "b"), ("long", "c")])
    ['a     b', 'long  c']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def outline(value: Any, indent: str = "") -> list[str]:
    r"""Return nested data as indented lines, records in a list by their numbers.

    >>> outline({"text": "two\nlines", "steps": [0.1, 2], "stages": [{"seed": 0}], "requires": []})
    ['text:', '  two', '  lines', 'steps: 0.1, 2', 'stages:', '  1:', '    seed: 0', 'requires: none']
    """
    if isinstance(value, str):
        return [indent + line for line in value.splitlines()]
    lines = []
    for key, item in value.items():
        records = isinstance(item, list) and any(isinstance(each, dict) for each in item)
        content = dict(enumerate(item, 1)) if records else item
        nested = content and (isinstance(content, dict) or "\n" in str(content))
        below = outline(content, indent + "  ") if nested else []
        lines += [f"{indent}{key}:" if nested else f"{indent}{key}: {_words(content)}", *below]
    return lines


def _words(value: Any) -> str:
    if isinstance(value, list) and value:
        return ", ".join(
            f"({_words(each)})" if isinstance(each, list) else _words(each) for each in value
        )
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if value or value == 0 else "none"


def plain(value: Any) -> Any:
    """Return data as JSON knows them: records as tables, paths as text, and null for numbers that
    are not finite.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (bool, int, str, type(None))) else str(value)
