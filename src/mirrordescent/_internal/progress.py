"""Progress bars for long computations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

DELAY = 1.0
"""Seconds until a bar appears on a terminal."""
FIRST_LINE = 2.0
"""Seconds until the first line of text."""
INTERVAL = 10.0
"""Seconds between lines of text."""

_LABELS: ContextVar[dict[str, str] | None] = ContextVar("labels", default=None)
_LISTENER: ContextVar[Callable[[str, int, int], object] | None] = ContextVar(
    "listener", default=None
)


@contextmanager
def bar_labels(**labels: str) -> Iterator[None]:
    """Show other labels on the progress bars of this context.

    An application uses this to describe generic work in its own words. Descriptions of the work,
    such as mean values of a solve, are left out of bars with other labels.

    Args:
        labels: New labels by old labels, such as ``solving="restoring photographs"``.
    """
    token = _LABELS.set((_LABELS.get() or {}) | labels)
    try:
        yield
    finally:
        _LABELS.reset(token)


@contextmanager
def progress_listener(listen: Callable[[str, int, int], object]) -> Iterator[None]:
    """Call a function whenever a bar of this context moves, whether it is shown or not.

    Args:
        listen: Function of the label, the number of finished steps and their total. It may raise an
            exception to stop the work.
    """
    token = _LISTENER.set(listen)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def current_listener() -> Callable[[str, int, int], object] | None:
    """Return the listener of this context, if there is one."""
    return _LISTENER.get()


class ProgressBar:
    """A progress bar on standard error or in a notebook.

    If neither is possible, or the package rich is not installed, lines of text are printed from
    time to time instead.

    Args:
        label: Label of the bar.
        total: Number of steps of the work.
        show: Whether to show the bar. With None, it appears after a second on a terminal, and in a
            notebook if ipywidgets is installed.
        estimate: Whether to estimate the remaining time from the pace so far.
    """

    def __init__(self, label: str, total: int, show: bool | None, estimate: bool = True) -> None:
        labels = _LABELS.get() or {}
        self.label = labels.get(label, label)
        self.described = label not in labels
        self.kind = label
        self.total = total
        self.show = show
        self.estimate = estimate
        self.began = perf_counter()
        self._display: _Display | None = None

    def update(self, done: int, description: str) -> None:
        """Move the bar.

        Args:
            done: Number of finished steps.
            description: State of the work, in a few words.
        """
        listen = _LISTENER.get()
        if listen is not None:
            listen(self.kind, done, self.total)
        if self._display is None and self._is_due():
            self._display = self._open()
        if self._display is not None:
            self._display.update(done, description if self.described else "")

    def _is_due(self) -> bool:
        if self.show is not None:
            return self.show
        return perf_counter() - self.began > DELAY and _shows_bars()

    def _open(self) -> _Display:
        if _shows_bars() and find_spec("rich") is not None:
            return _Bar(self.label, self.total, self.estimate)
        return _Lines(self.label, self.total)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.stop()


def _shows_bars() -> bool:
    """Return whether a bar can be drawn: on a terminal, or as a widget of a notebook."""
    return sys.stderr.isatty() or (_in_notebook() and find_spec("ipywidgets") is not None)


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Display(Protocol):
    """A bar or lines of text."""

    def update(self, done: int, description: str) -> None: ...

    def stop(self) -> None: ...


class _Bar:
    """A bar on a terminal or in a notebook, by the package rich."""

    def __init__(self, label: str, total: int, estimate: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns: list[ProgressColumn] = [TextColumn(label), BarColumn(), MofNCompleteColumn()]
        if estimate:
            columns.append(TimeRemainingColumn())
        columns.append(TextColumn("{task.description}"))
        self.bar: Progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task: TaskID = self.bar.add_task("", total=total)
        self.bar.start()

    def update(self, done: int, description: str) -> None:
        self.bar.update(self.task, completed=done, description=description)

    def stop(self) -> None:
        self.bar.stop()


class _Lines:
    """Progress for a log file: a line every few seconds, and one at the end."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.total = total
        self.last = perf_counter() - max(0.0, INTERVAL - FIRST_LINE)
        self.pending = ""

    def update(self, done: int, description: str) -> None:
        self.pending = f"{self.label} {done}/{self.total}"
        if description:
            self.pending += f", {description}"
        if perf_counter() - self.last > INTERVAL:
            self.stop()

    def stop(self) -> None:
        if self.pending:
            print(self.pending, file=sys.stderr, flush=True)
        self.last = perf_counter()
        self.pending = ""
