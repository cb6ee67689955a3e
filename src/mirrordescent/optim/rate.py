"""Step sizes of optimisers."""

from __future__ import annotations

from typing import Any, NamedTuple

from mirrordescent.schedules import Schedule


class Finish(NamedTuple):
    """The last steps of a run, over which step sizes decrease to 0.

    Attributes:
        start: Number of steps before them.
        over: Number of steps.
    """

    start: int
    over: int

    def remaining(self, k: int) -> float:
        """Return the share of the steps that remains in the middle of step k, at least 0."""
        if k <= self.start:
            return 1.0
        return max(0.0, 1 - (k - self.start - 0.5) / self.over)

    @property
    def end(self) -> int:
        """Number of the last step."""
        return self.start + self.over


class LearningRate(Schedule):
    """t(k) = lr·s(k), where the optimiser sets lr before every step.

    If a finish is set, t(k) = lr·s(start) times the remaining share of the last steps.

    Args:
        schedule: s.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule
        self.lr = 1.0
        self.finish: Finish | None = None

    def __call__(self, k: int) -> float:
        # Without the hooks of nn.Module, which take longer than the product.
        finish = self.finish
        if finish is None or k <= finish.start:
            return self.lr * float(self.schedule(k))
        return self.lr * float(self.schedule(max(1, finish.start))) * finish.remaining(k)


def factor_of(group: dict[str, Any]) -> float:
    """Return the factor of the schedule that the ``lr`` of a group stands for.

    ``lr`` is this factor until the first step. Then ``shown`` is set to the pair of the rate of the
    last step, which ``lr`` shows, and its factor. If somebody multiplies ``lr`` by a number, the
    factor is multiplied by that number.
    """
    lr = float(group["lr"])
    shown = group.get("shown")
    if shown is None:
        return lr
    shown_lr, factor = shown
    return factor if lr == shown_lr else factor * lr / shown_lr


def show_rate(group: dict[str, Any], t: float, factor: float) -> None:
    """Show the rate of the last step as ``lr``, unless a scheduler of torch owns ``lr``."""
    unchanged = t == group["lr"] and t == factor
    if unchanged or has_scheduler(group) or not isinstance(group["lr"], float):
        return
    if t > 0:
        group["lr"] = t
        group["shown"] = [t, factor]


def has_scheduler(group: dict[str, Any]) -> bool:
    """Return whether a learning-rate scheduler of torch was constructed for a group."""
    return "initial_lr" in group
