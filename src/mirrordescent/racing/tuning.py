"""Tuning of solvers that have one setting, such as a step size or a ratio of step sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import torch

from mirrordescent.methods import Method
from mirrordescent.oracles import Oracle
from mirrordescent.racing.race import Race

UNSOLVED = 4  # cost of an unsolved problem, as a multiple of the budget


class Comparable(Protocol):
    """A cost that can be compared with another."""

    def __lt__(self, other: Self, /) -> bool: ...


Cost: TypeAlias = Callable[[Method[Any]], float]
Setting = TypeVar("Setting")
CostValue = TypeVar("CostValue", bound=Comparable)


@dataclass(frozen=True)
class TunableSolver:
    """A solver with one setting to choose.

    Args:
        name: Name of the solver.
        make: Makes the solver with a setting.
        settings: Settings to try. A solver with only one setting needs no tuning.
        oracle: Oracle for the gradients; exact gradients by default.
    """

    name: str
    make: Callable[[float], Method[Any]]
    settings: Sequence[float] = (1.0,)
    oracle: Oracle | None = None

    def tune(self, cost: Cost) -> float:
        """Return the setting of lowest cost, for example by :func:`iterations_needed`."""
        return best_setting(self.settings, lambda setting: cost(self.make(setting)))

    def label(self, setting: float) -> str:
        """Return the name, followed by the setting if there was a choice.

        >>> from mirrordescent import GD
        >>> TunableSolver("gradient descent", GD, (0.1, 0.2)).label(0.1)
        'gradient descent (0.1)'
        """
        return self.name if len(self.settings) == 1 else f"{self.name} ({setting:.3g})"


def best_setting(settings: Sequence[Setting], cost: Callable[[Setting], CostValue]) -> Setting:
    """Return the setting of lowest cost, the first of several. One setting costs nothing to choose.

    >>> best_setting([1.0, 2.0, 3.0], lambda t: (t - 2) ** 2)
    2.0
    """
    if len(settings) == 1:
        return settings[0]
    costs = [cost(setting) for setting in settings]
    return settings[min(range(len(settings)), key=costs.__getitem__)]


def iterations_needed(race: Race) -> Cost:
    """Return the cost of a method in mean iterations to the accuracy of a race."""

    def cost(method: Method[Any]) -> float:
        needed = race.run(method, clock=False).iterations
        return float(torch.where(needed < 0, UNSOLVED * race.iterations, needed).double().mean())

    return cost


def mean_log_gap(race: Race, floor: float) -> Cost:
    """Return the cost of a method in the mean of log max(gap, floor) along a run.

    The gap is the mean over the problems. It is low for methods that are fast on the whole way to
    the floor, and it tells methods apart that do not reach it.
    """

    def cost(method: Method[Any]) -> float:
        gaps = race.curve(method).mean().gaps
        return float(gaps.clamp(min=floor, max=1e9).log().mean())

    return cost
