"""Progress of a search and the time that is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from mirrordescent._internal.progress import ProgressBar, current_listener, progress_listener

WHOLE = 100

TICK = 0.5
"""Seconds between updates that follow the clock."""


class TimePlan:
    """The planned seconds of a search, stage by stage, shown by a progress bar.

    The bar shows elapsed/(elapsed + left). If a stage takes longer than planned, the expected end
    moves, but the bar never moves backwards. While problems are solved within a stage, the bar
    follows the clock.

    Args:
        seconds: Planned seconds of the whole search.
        bar: The progress bar.
    """

    def __init__(self, seconds: float, bar: ProgressBar) -> None:
        self.left = seconds
        self.bar = bar
        self.began = perf_counter()
        self.last_update = self.began

    def begin(self, name: str) -> None:
        """Show the first line, before anything was computed."""
        self.bar.update(0, f"{name}, {in_words(self.left)} left")

    @contextmanager
    def stage(self, name: str, seconds: float) -> Iterator[None]:
        """Enter a stage that is planned to take some seconds."""
        self.current = name
        self.planned = min(seconds, self.left)
        self.entered = perf_counter()
        self.update(0.0)
        with progress_listener(self._listener()):
            yield
        self.left -= self.planned

    def _listener(self) -> Callable[[str, int, int], object]:
        """Return a listener to the progress of solves within the stage.

        It passes everything on to the listener outside, and does not listen to its own bar.
        """
        outer = current_listener()

        def listen(kind: str, done: int, total: int) -> None:
            if kind != self.bar.kind:
                self._tick()
            if outer is not None:
                outer(kind, done, total)

        return listen

    def _tick(self) -> None:
        """Show the share of the stage that has passed by the clock."""
        now = perf_counter()
        if now - self.last_update > TICK:
            self.update(min(1.0, (now - self.entered) / max(self.planned, 1e-9)))

    def update(self, share: float) -> None:
        """Show that a share of the current stage is done."""
        self.last_update = perf_counter()
        left = self.left - share * self.planned
        elapsed = perf_counter() - self.began
        done = WHOLE * elapsed / max(elapsed + left, 1e-9)
        self.bar.update(int(done), f"{self.current}, {in_words(left)} left")


def in_words(seconds: float) -> str:
    """Return an approximate duration as text.

    >>> in_words(8.2), in_words(100), in_words(4000)
    ('about 8 s', 'about 2 min', 'about 1 h 7 min')
    """
    if seconds < 90:
        return f"about {seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"about {hours} h {minutes} min" if hours else f"about {minutes} min"
