"""Printed reports, as text or as JSON, and options that several commands share."""

import inspect
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from tyro.conf import arg

from mirrordescent._internal.escaping import visible as visible

F = TypeVar("F", bound=Callable[..., Any])

AsJSON: TypeAlias = Annotated[bool, arg(help="Print the report as JSON.")]
Switch: TypeAlias = Literal["auto", "yes", "no"]
"""The values of an option that is on, off, or chosen automatically."""
OptionalPath: TypeAlias = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]
OptionalText: TypeAlias = Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")]
OptionalNumber: TypeAlias = Annotated[float | None, arg(metavar="NUMBER", help_behavior_hint="")]
OptionalCount: TypeAlias = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
NumberOrAuto: TypeAlias = Annotated[float | Literal["auto"], arg(metavar="NUMBER|auto")]
Folder: TypeAlias = Annotated[Path, arg(aliases=["-o"], metavar="FOLDER")]
"""The folder of the results, ``--out`` or ``-o``."""
Entry: TypeAlias = Annotated[str, arg(metavar="NAME|FILE")]
"""The name of an entry of the zoo, or its file."""
Quiet: TypeAlias = Annotated[
    bool, arg(aliases=["-q"], help="Print no progress, only results, warnings and errors.")
]
DataDirectory: TypeAlias = Annotated[
    Path | None,
    arg(
        metavar="FOLDER",
        help_behavior_hint="",
        help="Folder with the data sets. The default is the environment variable "
        "MIRRORDESCENT_DATA, or else a cache folder.",
    ),
]


def join_argument_lines(command: F) -> F:
    """Join the lines of every argument description in a docstring.

    The parser of the command line joins the lines of other paragraphs, but not these.

    >>> def greet(name):
    ...     '''Greet.
    ...
    ...     Args:
    ...         name: Name of
    ...             the person.
    ...     '''
    >>> join_argument_lines(greet).__doc__.splitlines()[-1].strip()
    'name: Name of the person.'
    """
    lines: list[str] = []
    in_arguments = False
    for line in inspect.cleandoc(command.__doc__ or "").splitlines():
        in_arguments = in_arguments or line == "Args:"
        if in_arguments and line.startswith(8 * " "):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    command.__doc__ = "\n".join(lines)
    return command


def show(report: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print a report to standard output, as JSON or as lines of text."""
    if as_json:
        encoding = (sys.stdout.encoding or "").lower()
        ascii_only = not encoding.startswith("utf")  # escapes of JSON can be read back
        print(visible(json.dumps(plain(report), indent=2, ensure_ascii=ascii_only)))
    else:
        print(*map(visible, lines), sep="\n")


def say(line: str) -> None:
    """Print a message to standard error. Standard output is for the report."""
    print(visible(line), file=sys.stderr, flush=True)


class EscapedStderr(io.TextIOBase):
    """Standard error with control characters escaped."""

    def __init__(self) -> None:
        self._stderr = sys.stderr

    def write(self, text: str) -> int:
        return self._stderr.write(visible(text))

    def flush(self) -> None:
        self._stderr.flush()


def progress(quiet: bool = False) -> bool | None:
    """Return the ``progress`` argument for solvers.

    On a terminal it is None: a bar appears if the work takes longer than a second. Otherwise it is
    True: lines of text are printed from time to time. With ``quiet`` it is False.
    """
    if quiet:
        return False
    return None if sys.stderr.isatty() else True


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines with aligned columns.

    >>> aligned([("a", "b"), ("long", "c")])
    ['a     b', 'long  c']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def outline(value: Any, indent: str = "") -> list[str]:
    r"""Return nested data as indented lines. Records in a list are numbered.

    >>> outline({"text": "two\nlines", "steps": [0.1, 2], "stages": [{"seed": 0}]})
    ['text:', '  two', '  lines', 'steps: 0.1, 2', 'stages:', '  1:', '    seed: 0']
    >>> outline({"requires": []})
    ['requires: none']
    """
    if isinstance(value, str):
        return [indent + line for line in value.splitlines()]
    lines = []
    for key, item in value.items():
        content = item
        if isinstance(item, list) and any(isinstance(each, dict) for each in item):
            content = dict(enumerate(item, 1))
        if content and (isinstance(content, dict) or "\n" in str(content)):
            lines.append(f"{indent}{key}:")
            lines += outline(content, indent + "  ")
        else:
            lines.append(f"{indent}{key}: {_format(content)}")
    return lines


def _format(value: Any) -> str:
    """Return a value of an outline as text."""
    if isinstance(value, list) and value:
        items = [
            f"({_format(item)})" if isinstance(item, list) else _format(item) for item in value
        ]
        return ", ".join(items)
    if isinstance(value, float):
        return f"{value:.6g}"
    if value or value == 0:
        return str(value)
    return "none"


def plain(value: Any) -> Any:
    """Return data in the types of JSON.

    Dataclasses become tables, paths become text, and numbers that are not finite become null.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (bool, int, str, type(None))):
        return value
    return str(value)
