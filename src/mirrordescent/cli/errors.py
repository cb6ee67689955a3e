"""Errors as the command line reports them: users' mistakes, errors in users' code, and bugs.

The library raises plain ``ValueError`` and ``TypeError`` for bad arguments. Python and torch raise
the same classes for bugs. The traceback tells them apart:

- If library code raised the error by a ``raise`` statement, the message was written for the user.
- If the error comes from the user's own Python file, the user needs its line number.
- Every other error is a bug of the library.

Errors of the system (files, memory) are about the user's machine and never count as bugs.
"""

import dis
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from mirrordescent.cli.output import say, visible
from mirrordescent.cli.plugins import plugin_packages

LIBRARY = "mirrordescent"
MISTAKE = 2
"""Exit code for a user's mistake."""
BUG = 70
"""Exit code for a bug of the library (``EX_SOFTWARE`` of sysexits.h)."""

_MISTAKES = (ValueError, TypeError, LookupError, ImportError, ArithmeticError, RuntimeError)
"""Classes that the library raises for mistakes."""
_BUGS = (NotImplementedError, RecursionError)
"""Subclasses of these classes that are always bugs."""
_RAISE = dis.opmap["RAISE_VARARGS"]


@dataclass(frozen=True)
class Report:
    """The lines of text that describe an error, and the exit code."""

    lines: tuple[str, ...]
    exit_code: int


def report(error: Exception, debug: bool) -> int:
    """Print an error to standard error and return the exit code.

    Args:
        error: The error that ended a command.
        debug: Whether to print the traceback, too.
    """
    described = describe(error)
    if debug:
        say("".join(traceback.format_exception(error)).rstrip())
    for line in described.lines:
        say(f"{LIBRARY}: {line}")
    return described.exit_code


def is_mistake(error: Exception) -> bool:
    """Return whether an error is a user's mistake, not a bug."""
    return describe(error).exit_code == MISTAKE


def describe(error: Exception) -> Report:
    """Decide whether an error is a mistake or a bug, and describe it in one or two lines."""
    if isinstance(error, (OSError, MemoryError)) or _out_of_memory(error):
        return Report((_message(error),), MISTAKE)
    packages = {LIBRARY} | plugin_packages()
    location = _responsible_frame(error.__traceback__, packages)
    if location is None:
        return _bug(error, LIBRARY, None)
    frame, line, raised = location
    package = _package(frame)
    if package not in packages:
        path = Path(frame.f_code.co_filename)
        where = f"{path.name}, line {line}, in {frame.f_code.co_name}"
        text = f"error in {where}: {type(error).__name__}: {_message(error)}"
        return Report((f"{text} (--debug shows the traceback)",), MISTAKE)
    reported = isinstance(error, _MISTAKES) and not isinstance(error, _BUGS)
    if raised and reported:
        return Report((_message(error),), MISTAKE)
    return _bug(error, package, f"{frame.f_globals['__name__']}, line {line}")


def _bug(error: Exception, package: str, where: str | None) -> Report:
    place = "" if where is None else f" ({where})"
    first = f"internal error: {type(error).__name__}: {_message(error)}{place}"
    second = f"This is a bug in {package}. Please report it with the traceback that --debug shows."
    return Report((first, second), BUG)


def _message(error: Exception) -> str:
    """Return the text of an error as one line."""
    text = str(error)
    if isinstance(error, KeyError) and error.args:  # str() quotes its argument
        text = str(error.args[0])
    elif isinstance(error, FileNotFoundError) and error.filename:
        text = f"there is no file {error.filename}"
    elif isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    return " ".join(visible(text).split()) or type(error).__name__


def _out_of_memory(error: Exception) -> bool:
    """Return whether torch failed to allocate memory, for which it raises a RuntimeError."""
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "allocate memory" in text or "out of memory" in text
    )


def _responsible_frame(
    entry: TracebackType | None, packages: set[str]
) -> tuple[FrameType, int | None, bool] | None:
    """Return the innermost frame of the library or of the user's code, with its line number.

    The third value is True if a ``raise`` statement of this frame raised the error. Frames of
    Python and of installed packages are skipped.
    """
    entries = list(_entries(entry))
    for position, each in enumerate(reversed(entries)):
        frame = each.tb_frame
        if _package(frame) not in packages and not _is_user_code(frame):
            continue
        innermost = position == 0
        raised = innermost and frame.f_code.co_code[each.tb_lasti] == _RAISE
        return frame, each.tb_lineno, raised
    return None


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _package(frame: FrameType) -> str:
    """Return the top-level package of a frame's module."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_user_code(frame: FrameType) -> bool:
    """Return whether a frame runs a Python file that is neither Python's own nor installed."""
    file = Path(frame.f_code.co_filename)
    if not file.is_file():  # code without a file, such as <string>
        return False
    installed = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    return not any(file.resolve().is_relative_to(Path(folder).resolve()) for folder in installed)
