"""Overlapping tiles that cover an image."""

from collections.abc import Iterator
from itertools import pairwise, product
from typing import TypeAlias

MARGIN = 32  # pixels around a tile that are solved for and discarded

Window: TypeAlias = tuple[slice, slice]
Tile: TypeAlias = tuple[Window, Window, Window]
"""The part of an image to solve, the part of that solution to keep, and its place in the image."""


def windows(height: int, width: int, side: int) -> Iterator[Tile]:
    """Yield tiles of at most this side.

    Each tile has three windows: the part of the image to solve, the part of that solution to keep,
    and the place of the kept part in the image.

    >>> [core for _, _, core in windows(100, 80, 128)]
    [(slice(0, 50, None), slice(0, 40, None)), (slice(0, 50, None), slice(40, 80, None)),
     (slice(50, 100, None), slice(0, 40, None)), (slice(50, 100, None), slice(40, 80, None))]
    """
    for rows, columns in product(_intervals(height, side), list(_intervals(width, side))):
        outer, inner, core = zip(rows, columns, strict=True)
        yield outer, inner, core


def _intervals(length: int, side: int) -> Iterator[tuple[slice, slice, slice]]:
    count = -(-length // (side - 2 * MARGIN))
    edges = [round(length * i / count) for i in range(count + 1)]
    for begin, end in pairwise(edges):
        first = max(0, begin - MARGIN)
        last = min(length, end + MARGIN)
        yield slice(first, last), slice(begin - first, end - first), slice(begin, end)
