"""Relative gaps along a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GapCurve:
    """Relative gaps of a batch of problems along a run.

    Args:
        iterations: Iterations at which values were recorded, in increasing order.
        seconds: Seconds of computation up to each of them, without the time for recording.
        gaps: Relative gaps, (points, problems). NaN counts as infinite.
    """

    iterations: list[int]
    seconds: list[float]
    gaps: Tensor

    def mean(self) -> GapCurve:
        """Return the curve of the mean over the problems, with gaps of shape (points, 1)."""
        return GapCurve(self.iterations, self.seconds, self.gaps.mean(1, keepdim=True))

    def iterations_to(self, gap: float | Tensor) -> Tensor:
        """Return the first recorded iteration with at most this gap, (problems,), or −1."""
        return first_below(self.gaps, self.iterations, gap)


def first_below(gaps: Tensor, iterations: Sequence[int], gap: float | Tensor) -> Tensor:
    """Return the first iteration at which each problem reaches a gap, or −1 if there is none.

    Args:
        gaps: Relative gaps, (points, problems).
        iterations: Iterations of the points.
        gap: The gap to reach, one number or one per problem.

    >>> first_below(torch.tensor([[1.0, 1.0], [0.5, 0.9], [0.1, 0.8]]), [0, 5, 9], 0.5)
    tensor([ 5, -1])
    """
    if not len(gaps):
        return torch.full(gaps.shape[1:], -1)
    reached = gaps <= gap
    first = torch.tensor(iterations)[reached.int().argmax(0)]
    return torch.where(reached.any(0), first, -1)
