"""Tuning of solvers: of a step size, or of a ratio of step sizes and a relaxation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import torch

from mirrordescent.methods import Method
from mirrordescent.oracles import Oracle
from mirrordescent.racing.race import Race

RELAXATIONS = (1.0, 1.5, 1.8, 1.9)
"""Relaxations of primal-dual methods that are tried with every ratio of step sizes."""

FIRST_RELAXATION = 1.5
"""Relaxation with which all ratios are tried first."""

UNSOLVED = 4
"""Cost of an unsolved problem, as a multiple of the number of iterations."""


class Comparable(Protocol):
    """A cost that can be compared with another."""

    def __lt__(self, other: Self, /) -> bool: ...


Cost: TypeAlias = Callable[[Method[Any]], float]
Setting = TypeVar("Setting")
CostValue = TypeVar("CostValue", bound=Comparable)


@dataclass(frozen=True)
class TunableSolver:
    """A solver with a setting to choose.

    Args:
        name: Name of the solver.
        make: Makes the solver with a setting.
        settings: Settings to try. A solver with only one setting needs no tuning.
        oracle: Oracle for the gradients; exact gradients by default.
    """

    name: str
    make: Callable[[Any], Method[Any]]
    settings: Sequence[Any] = (1.0,)
    oracle: Oracle | None = None

    def tune(self, cost: Cost) -> Any:
        """Return the setting of lowest cost, for example by :func:`iterations_needed`."""
        return self.search(lambda setting: cost(self.make(setting)))

    def search(self, cost: Callable[[Any], float]) -> Any:
        """Return the setting of lowest cost, given the cost of a setting."""
        return best_setting(self.settings, cost)

    def label(self, setting: Any) -> str:
        """Return the name, followed by the setting if there was a choice.

        >>> from mirrordescent import GD
        >>> TunableSolver("gradient descent", GD, (0.1, 0.2)).label(0.1)
        'gradient descent (0.1)'
        """
        return self.name if len(self.settings) == 1 else f"{self.name} ({self._words(setting)})"

    def _words(self, setting: Any) -> str:
        return f"{setting:.3g}"


class PrimalDualKind(Protocol):
    """A class of primal-dual methods, such as PDHG or CondatVu."""

    def __call__(self, ratio: float, *, relaxation: float) -> Method[Any]:
        """Make a method."""


class TunablePrimalDual(TunableSolver):
    """A primal-dual solver whose setting is a pair: the ratio of its step sizes, and ρ.

    Args:
        name: Name of the solver.
        kind: Class of the method.
        ratios: Ratios of its step sizes.
        relaxations: Relaxations ρ.

    >>> from mirrordescent import PDHG
    >>> solver = TunablePrimalDual("PDHG", PDHG, (0.3, 1.0))
    >>> solver.label((0.3, 1.8))
    'PDHG (0.3, ρ = 1.8)'
    """

    def __init__(
        self,
        name: str,
        kind: PrimalDualKind,
        ratios: Sequence[float],
        relaxations: Sequence[float] = RELAXATIONS,
    ) -> None:
        def make(setting: Sequence[float]) -> Method[Any]:
            ratio, relaxation = setting
            return kind(ratio, relaxation=relaxation)

        pairs = [(ratio, relaxation) for ratio in ratios for relaxation in relaxations]
        super().__init__(name, make, pairs)

    def search(self, cost: Callable[[tuple[float, float]], float]) -> tuple[float, float]:
        """Return the pair of lowest cost on a part of the grid.

        All ratios are tried with a relaxation of 1.5, then the best one and its neighbours with all
        relaxations. The best ratio hardly depends on the relaxation.
        """
        costs: dict[tuple[float, float], float] = {}

        def cached(pair: tuple[float, float]) -> float:
            if pair not in costs:
                costs[pair] = cost(pair)
            return costs[pair]

        ratios = list(dict.fromkeys(ratio for ratio, _ in self.settings))
        relaxations = list(dict.fromkeys(relaxation for _, relaxation in self.settings))
        first = FIRST_RELAXATION if FIRST_RELAXATION in relaxations else relaxations[0]
        best = ratios.index(best_setting(ratios, lambda ratio: cached((ratio, first))))
        near = ratios[max(best - 1, 0) : best + 2]
        pairs = [(ratio, relaxation) for ratio in near for relaxation in relaxations]
        return best_setting(pairs, cached)

    def _words(self, setting: Sequence[float]) -> str:
        ratio, relaxation = setting
        return f"{ratio:.3g}, ρ = {relaxation:g}"


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
