"""A progress bar for solves that a person is waiting for."""

from __future__ import annotations

import sys
from time import perf_counter
from types import TracebackType
from typing import Any

PATIENCE = 1.0  # seconds before a bar is worth showing


class ProgressBar:
    """A bar on standard error: when asked for, or by default on a terminal once a run has lasted a second."""

    def __init__(self, iterations: int, show: bool | None) -> None:
        self.iterations, self.show = iterations, show
        self.began = perf_counter()
        self.bar: Any = None

    def update(self, k: int, running: int, value: float) -> None:
        """Move the bar to iteration k."""
        if self.bar is None and self._wanted():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("solving"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            console = Console(stderr=True)
            # A terminal is left clean; a log file gets the final line.
            self.bar = Progress(*columns, console=console, transient=console.is_terminal)
            self.task = self.bar.add_task("", total=self.iterations)
            self.bar.start()
        if self.bar is not None:
            self.bar.update(self.task, completed=k, description=f"{running} running, mean value {value:.4g}")

    def _wanted(self) -> bool:
        if self.show is None:
            return sys.stderr.isatty() and perf_counter() - self.began > PATIENCE
        return self.show

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
