"""Means over problems with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval."""

    mean: float
    low: float
    high: float

    @property
    def numbers(self) -> tuple[float, float, float]:
        return self.mean, self.low, self.high

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def paired(differences: Tensor, level: float = 0.95) -> Estimate:
    """Return the mean of paired differences with Student's 95 % interval.

    >>> print(paired(torch.tensor([1.0, 2.0, 3.0, 4.0])))
    2.50 [0.45, 4.55]
    """
    numbers = differences.double()
    mean = float(numbers.mean())
    count = len(numbers)
    if count < 2:
        return Estimate(mean, -math.inf, math.inf)
    half = student(count - 1, level) * float(numbers.std()) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half)


def resampled(
    statistic: Callable[..., float], *runs: Tensor, level: float = 0.95, draws: int = 500
) -> Estimate:
    """Return a statistic of runs on the same problems with its bootstrap interval.

    What is not a number, as a difference of two failures, counts as the least.
    """
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(runs[0]), (draws, len(runs[0])), generator=generator)
    found = torch.tensor(
        [statistic(*(each[pick] for each in runs)) for pick in picks], dtype=torch.float64
    )
    ordered = found.nan_to_num(nan=-math.inf, neginf=-math.inf, posinf=math.inf).sort().values
    cut = round((1 - level) / 2 * (draws - 1))
    return Estimate(statistic(*runs), float(ordered[cut]), float(ordered[-1 - cut]))


@lru_cache
def student(freedom: int, level: float) -> float:
    """Return the t with P(|T| ≤ t) = level, by bisection of the integral of Student's density.

    >>> round(student(7, 0.95), 3), round(student(1000, 0.95), 2)
    (2.365, 1.96)
    """
    low = 0.0
    high = 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share(freedom, middle) < level else (low, middle)
    return (low + high) / 2


def p_value(differences: Tensor) -> float:
    """Return the two-sided p-value of Student's paired test that the mean difference is 0.

    >>> round(p_value(torch.tensor([1.0, 2.0, 3.0, 4.0])), 3)
    0.03
    """
    numbers = differences.double()
    count = len(numbers)
    spread = float(numbers.std()) if count > 1 else math.inf
    if not 0 < spread < math.inf:
        return 1.0 if spread or not float(numbers.mean()) else 0.0
    t = abs(float(numbers.mean())) * math.sqrt(count) / spread
    return max(0.0, 1 - _share(count - 1, t))


def _share(freedom: int, t: float) -> float:
    """Return P(|T| ≤ t) by the integral of Student's density."""
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(
        freedom * math.pi
    )
    x = torch.linspace(0, t, 20_001, dtype=torch.float64)
    return float(
        2 * constant * torch.trapezoid((1 + x.square() / freedom) ** (-(freedom + 1) / 2), x)
    )
