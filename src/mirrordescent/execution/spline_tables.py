"""Lookup tables of piecewise linear maps for C kernels; ``optimiser.h`` has their layout."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.execution.map_values import has_type_of
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.spline import Spline

MIN_LEAVES = 256
"""Least number of leaves: few enough for the first cache, enough for 40 similar intervals."""


def spline_pieces(mirror: MirrorMap, like: Tensor) -> Tensor | None:
    """Return the linear pieces of a spline that is shared by all entries of a tensor, or None.

    The row has the interval ends, intercepts and slopes of ∇ψ*, then those of ∇ψ. Only the exact
    class :class:`Spline` has one, because a subclass may override the map.
    """
    if type(mirror) is not Spline:
        return None
    pieces = mirror.linear_pieces()
    if pieces is None or not has_type_of(pieces, like):
        return None
    return pieces


def spline_table(pieces: Tensor) -> Tensor:
    """Return the tables of ∇ψ* and then of ∇ψ."""
    n = interval_count(pieces)
    values, b, a, knots, c, d = torch.split(pieces, [n - 1, n, n, n - 1, n, n])
    return torch.cat([_table(values, knots, b, a), _table(knots, values, c, d)])


def interval_count(pieces: Tensor) -> int:
    """Return the number n of intervals: each direction has n − 1 ends, n intercepts, n slopes."""
    return (pieces.numel() + 2) // 6


def leaf_count(intervals: int) -> int:
    """Return the number of leaves of a table for this many intervals."""
    return max(MIN_LEAVES, 1 << intervals.bit_length())


def table_length(leaves: int) -> int:
    """Return the number of entries of the two tables of a map."""
    return 2 * (4 + 5 * leaves)


def _table(ends: Tensor, values: Tensor, intercepts: Tensor, slopes: Tensor) -> Tensor:
    """Return the table of one function.

    The table has as many cells as leaves, or fewer if a cell would contain several ends. If 0 is
    an end, it lies in the middle of a cell and at a leaf. Small numbers then keep all their digits:
    their line is not continued from a far larger end.
    """
    n = len(ends)
    leaves = leaf_count(len(slopes))
    zero = min(int((ends < 0).sum()), n - 1)
    for depth in range(leaves.bit_length()):
        cells = leaves >> depth
        scale = (max(cells - 1, 1) / (ends[-1] - ends[0])).nan_to_num(0.0)
        origin = ((ends[0] * scale).round() - 0.5) / scale
        # The same arithmetic as in C: an end lies in the same cell as a number equal to it.
        cell = ((ends - origin) * scale).nan_to_num(0.0).clamp(0, cells - 1).long()
        cell_numbers = torch.arange(cells, device=ends.device)
        start = torch.searchsorted(cell, cell_numbers)
        stop = torch.searchsorted(cell, cell_numbers, right=True)
        # Every second end, starting with the first one, is at a leaf.
        start[cell[zero]] -= (zero - start[cell[zero]]) % 2
        if int((stop - start).max()) < 2 << depth:
            break
    # Every cell gets as many ends as a tree of this depth has nodes. From left to right, every
    # second end is at a leaf, every second one of the rest at a node of the level above, and so
    # on. Ends of other cells and missing ends lead to the ends of the cell; index −1, before the
    # first end, refers to the last entry of ``padded``.
    index = start[:, None] + torch.arange((2 << depth) - 1, device=ends.device)
    missing = index.shape[1]
    padded = torch.cat([ends, ends.new_full((missing,), math.nan), ends.new_full((1,), -math.inf)])
    cell_of = torch.cat([cell, cell.new_full((missing,), cells), cell.new_full((1,), -1)])
    nodes = [
        padded[index[:, (1 << level) - 1 :: 2 << level]].flatten() for level in range(depth, 0, -1)
    ]
    index = index[:, ::2]
    has_end = cell_of[index] == cell_numbers[:, None]
    left = (index + (cell_of[index] < cell_numbers[:, None])).clamp(max=n)
    leaf_end = torch.where(has_end, padded[index], 0)
    leaf_value = torch.where(has_end, F.pad(values, (0, 1))[left], intercepts[left])
    leaf = torch.stack([leaf_end, leaf_value, slopes[left], slopes[left + has_end]], -1)
    head = torch.stack([origin, scale, torch.full_like(scale, cells)])
    return torch.cat([F.pad(head, (0, 1 + cells)), *nodes, leaf.flatten()])
