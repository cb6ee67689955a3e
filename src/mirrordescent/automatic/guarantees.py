"""Statements about unseen problems: a share of solved problems with a confidence, and a tail."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor

CONFIDENCE = 0.95


def least_share(solved: int, count: int, confidence: float = CONFIDENCE) -> float:
    """Return a lower bound on the probability that a problem of the class is solved.

    This is the one-sided bound of Clopper and Pearson: the p for which ``solved`` or more successes
    in ``count`` independent trials have the probability 1 − confidence. It holds for problems that
    are drawn like the unseen ones.

    >>> round(least_share(64, 64), 3)
    0.954
    """
    if not 0 <= solved <= count or count < 1:
        raise ValueError(f"solved must be between 0 and count ≥ 1, got {solved} of {count}")
    if solved == 0:
        return 0.0
    low = 0.0
    high = 1.0
    for _ in range(60):
        p = (low + high) / 2
        if _at_least(solved, count, p) < 1 - confidence:
            low = p
        else:
            high = p
    return low


def _at_least(solved: int, count: int, p: float) -> float:
    """Return the probability of at least so many successes of probability p."""
    return sum(comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(solved, count + 1))


@dataclass(frozen=True)
class Tail:
    """Times of single problems of a batch, in seconds: median, 95 % and worst.

    The time of a problem is the time of the batch up to the iteration in which it was solved.
    """

    median: float
    most: float
    worst: float

    def __str__(self) -> str:
        times = [f"{1e3 * each:.3g}" for each in (self.median, self.most, self.worst)]
        return f"{times[0]} ms (median), {times[1]} ms (95 %), {times[2]} ms (worst)"


def tail_of(iterations: Tensor, pace: float) -> Tail | None:
    """Return the tail of the times of the solved problems; None if there are none.

    Args:
        iterations: Iterations of every problem, −1 for problems that were not solved.
        pace: Seconds per iteration of the batch.
    """
    solved = iterations[iterations >= 0].double() * pace
    if not len(solved):
        return None
    quantiles = torch.tensor([0.5, 0.95], dtype=torch.float64)
    median, most = torch.quantile(solved, quantiles).tolist()
    return Tail(median, most, float(solved.max()))


def in_words(solved: int, count: int) -> str:
    """Return the statement with its confidence as a sentence.

    >>> in_words(64, 64)
    'With a confidence of 95 %, it solves at least 95.4 % of such problems.'
    """
    share = 100 * least_share(solved, count)
    return (
        f"With a confidence of {100 * CONFIDENCE:.0f} %, it solves at least {share:.1f} % of such "
        "problems."
    )
