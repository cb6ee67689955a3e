"""How far a search has got, and how long it will take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from mirrordescent._internal.progress import ProgressBar

WHOLE = 100


class Course:
    """The plan of a search in seconds, stage by stage, and a bar that follows it.

    ``left`` is what is planned still; the bar is at elapsed/(elapsed + left), so that a stage that
    takes longer than planned moves the end, and not the past.
    """

    def __init__(self, seconds: float, bar: ProgressBar) -> None:
        self.left = seconds
        self.bar = bar
        self.began = perf_counter()

    @contextmanager
    def stage(self, name: str, seconds: float) -> Iterator[None]:
        """Do something that takes so many seconds of the plan."""
        self.now = name
        self.planned = min(seconds, self.left)
        self.at(0.0)
        yield
        self.left -= self.planned

    def at(self, share: float) -> None:
        """Say which share of the stage is done."""
        left = self.left - share * self.planned
        elapsed = perf_counter() - self.began
        done = WHOLE * elapsed / max(elapsed + left, 1e-9)
        self.bar.update(int(done), f"{self.now}, {in_words(left)} left")


def in_words(seconds: float) -> str:
    """Say about how long.

    >>> in_words(8.2), in_words(100), in_words(4000)
    ('about 8 s', 'about 2 min', 'about 1 h 7 min')
    """
    if seconds < 90:
        return f"about {seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"about {hours} h {minutes} min" if hours else f"about {minutes} min"
