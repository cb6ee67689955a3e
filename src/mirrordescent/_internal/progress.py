"""A progress bar for work that a person is waiting for."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

PATIENCE = 1.0  # seconds before a bar is worth showing
INTERVAL = 10.0  # seconds between lines


class ProgressBar:
    """A bar on standard error: when asked for, or by default on a terminal once the work has lasted
    a second.

    Where standard error is not a terminal, a line of text is printed now and then instead. The time
    that is left is estimated from the pace so far, unless whoever moves the bar knows better
    (``estimate=False``).
    """

    def __init__(self, label: str, total: int, show: bool | None, estimate: bool = True) -> None:
        self.label = label
        self.total = total
        self.show = show
        self.estimate = estimate
        self.began = perf_counter()
        self.bar: Any = None

    def update(self, done: int, description: str) -> None:
        """Move the bar, and say how things stand."""
        if self.bar is None and self._wanted():
            self._open()
        if self.bar is not None:
            self.bar.update(self.task, completed=done, description=description)

    def _wanted(self) -> bool:
        if self.show is None:
            return sys.stderr.isatty() and perf_counter() - self.began > PATIENCE
        return self.show

    def _open(self) -> None:
        self.task = 0
        if not sys.stderr.isatty():
            self.bar = _Lines(self.label, self.total)
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = [
            TextColumn(self.label),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
        ]
        if self.estimate:
            columns.insert(3, TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("", total=self.total)
        self.bar.start()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()


class _Lines:
    """Progress for a log file: a line every few seconds, and one at the end."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.total = total
        self.last = perf_counter()
        self.unsaid = ""

    def update(self, task: int, completed: int, description: str) -> None:
        self.unsaid = f"{self.label} {completed}/{self.total}, {description}"
        if perf_counter() - self.last > INTERVAL:
            self.stop()

    def stop(self) -> None:
        if self.unsaid:
            print(self.unsaid, file=sys.stderr, flush=True)
        self.last = perf_counter()
        self.unsaid = ""
