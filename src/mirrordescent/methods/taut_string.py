"""The taut string: total-variation denoising of signals, exactly."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from mirrordescent.methods.signals import SignalMethod, require_signals
from mirrordescent.problems.base import Problem
from mirrordescent.problems.grid_tv import GridTV


class TautString(SignalMethod):
    """Solve total-variation denoising of signals in one step, in time O(length).

    With the sums rₖ = y₁ + … + yₖ, the shortest line from (0, 0) to (n, rₙ) that stays within the
    radius of r has the slopes x. Its distance to r is the dual point, which proves a bound that
    equals the minimum up to rounding.

    The problem is a :class:`~mirrordescent.problems.GridTV` on signals (batch, channels, length)
    without a Huber function; ``coupled`` needs a single channel.

    >>> import torch
    >>> import mirrordescent as md
    >>> problem = md.GridTV(torch.tensor([[[0.0, 0.0, 3.0, 3.0]]]), weight=1.0)
    >>> md.solve(problem, md.methods.TautString(), iterations=1).x
    tensor([[[0.2500, 0.2500, 2.7500, 2.7500]]])

    Reference: Davies and Kovac, Ann. Statist. 29 (2001).
    """

    cli_names = ("taut-string",)

    def require(self, problem: Problem | None) -> GridTV:
        grid = require_signals(type(self).__name__, problem, GridTV)
        if grid.huber or (grid.coupled and grid.y.shape[1] > 1):
            raise TypeError(
                f"{type(self).__name__} needs huber=0 and channels that are not coupled; use PDHG"
            )
        return grid

    def denoise(self, y: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        mean = y.mean(-1, keepdim=True)
        rows = (y - mean).tolist()
        strings = [_taut_string(row, r) for row, r in zip(rows, radius.tolist(), strict=True)]
        string = torch.tensor(strings, dtype=torch.float64)
        sums = (y - mean).cumsum(-1)
        return mean + string.diff(dim=-1), string[:, 1:-1] - sums[:, :-1]


Corner = tuple[int, float]
"""A corner of the string: a place and a height."""


def _taut_string(y: list[float], radius: float) -> list[float]:
    """Return the heights of the string at 0, …, n.

    The lines from the last certain corner form a funnel, which two chains of corners bound: the
    tube's upper side by a convex chain and its lower side by a concave one.
    """
    apex: Corner = (0, 0.0)
    chains: tuple[list[Corner], list[Corner]] = ([], [])
    path = [apex]
    total = 0.0
    for place, step in enumerate(y, 1):
        total += step
        room = 0.0 if place == len(y) else radius
        for side, sign in enumerate((1.0, -1.0)):
            new = (place, total + sign * room)
            own = chains[side]
            other = chains[1 - side]
            while own:
                before = own[-2] if len(own) > 1 else apex
                if sign * _slope(own[-1], new) > sign * _slope(before, own[-1]):
                    break
                own.pop()
            while not own and other and other[0][0] < place:
                if sign * _slope(apex, new) >= sign * _slope(apex, other[0]):
                    break
                apex = other.pop(0)
                path.append(apex)
            own.append(new)
    path += chains[0] if len(chains[0]) > len(chains[1]) else chains[1]
    string = []
    for begin, end in pairwise(path):
        slope = _slope(begin, end)
        string += [begin[1] + slope * (k - begin[0]) for k in range(begin[0], end[0])]
    return [*string, path[-1][1]]


def _slope(a: Corner, b: Corner) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])
