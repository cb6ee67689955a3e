"""Progress of a search and the time that is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from mirrordescent._internal.progress import ProgressBar

WHOLE = 100


class TimePlan:
    """The planned seconds of a search, stage by stage, shown by a progress bar.

    The bar shows elapsed/(elapsed + left). If a stage takes longer than planned, the expected end
    moves, but the bar never moves backwards.

    Args:
        seconds: Planned seconds of the whole search.
        bar: The progress bar.
    """

    def __init__(self, seconds: float, bar: ProgressBar) -> None:
        self.left = seconds
        self.bar = bar
        self.began = perf_counter()

    @contextmanager
    def stage(self, name: str, seconds: float) -> Iterator[None]:
        """Enter a stage that is planned to take some seconds."""
        self.current = name
        self.planned = min(seconds, self.left)
        self.update(0.0)
        yield
        self.left -= self.planned

    def update(self, share: float) -> None:
        """Show that a share of the current stage is done."""
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
