"""Boxes of arrays with two or three axes: windows that cover an array, and dual variables on disk.

Every array is treated as a volume (depth, height, width); an image has height 1. The dual variable
of an axis is an array of the shape of the volume whose entry p belongs to the difference from p to
the next point along the axis, and is 0 at the end of the axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

AXES = 3

MARGIN = 12
"""Points around the core of a window that are solved for with it."""

Box: TypeAlias = tuple[slice, slice, slice]
Shape: TypeAlias = tuple[int, int, int]


class ArrayLike(Protocol):
    """An array that is read and written by boxes: of NumPy, zarr, a memory map, or pages."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""

    @property
    def dtype(self) -> Any:
        """Type of the numbers."""

    def __getitem__(self, key: Any, /) -> Any:
        """Read a box."""


class Volume(NamedTuple):
    """An array that is read as a volume.

    Args:
        array: Array with two or three axes.
        dtype: Floating-point type of the tensors.
    """

    array: ArrayLike
    dtype: torch.dtype

    @property
    def shape(self) -> Shape:
        """(depth, height, width)."""
        return volume_shape(self.array.shape)

    def read(self, box: Box) -> Tensor:
        """Return a box as a tensor (depth, height, width)."""
        part = np.asarray(self.array[_key(self.array, box)])
        return exact_tensor(part, self.dtype).reshape(lengths(box))

    def write(self, box: Box, values: Tensor) -> None:
        """Store a box, rounded and clipped to the range if the array has integers."""
        target: Any = self.array
        numbers = values.numpy()
        kind = np.dtype(target.dtype)
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            numbers = np.clip(np.rint(numbers.astype(np.float64)), limits.min, limits.max)
        key = _key(target, box)
        shape = tuple(part.stop - part.start for part in key)
        target[key] = numbers.reshape(shape).astype(kind)


def exact_dtype(kind: np.dtype[Any]) -> torch.dtype:
    """Return the floating-point type that holds all numbers of a type of arrays, if there is one.

    >>> exact_dtype(np.dtype("uint16")), exact_dtype(np.dtype("int32"))
    (torch.float32, torch.float64)
    """
    small = np.can_cast(kind, np.float32, casting="safe")
    return torch.float32 if small else torch.float64


def exact_tensor(part: NDArray[Any], dtype: torch.dtype) -> Tensor:
    """Return numbers in a floating-point type; raise if that would round them.

    A bound on the minimum for rounded data is none for the data themselves.
    """
    target = torch.empty(0, dtype=dtype).numpy().dtype
    numbers = part.astype(target)
    long = part.dtype.kind in "iu" and part.dtype.itemsize == 8  # safe to cast, says NumPy
    if long or not np.can_cast(part.dtype, target, casting="safe"):
        with np.errstate(invalid="ignore", over="ignore"):
            same = numbers.astype(part.dtype) == part
        if not bool((same | np.isnan(numbers)).all()):
            raise ValueError(
                f"the array has numbers of type {part.dtype} that {target} cannot hold: give "
                "dtype=torch.float64, or an array of smaller numbers"
            )
    return torch.from_numpy(numbers)


def _key(array: ArrayLike, box: Box) -> tuple[slice, ...]:
    return (box[0], box[2]) if len(array.shape) == 2 else box


def volume_shape(shape: Sequence[int]) -> Shape:
    """Return (depth, height, width); an image (rows, columns) has height 1."""
    if len(shape) == 2:
        return (int(shape[0]), 1, int(shape[1]))
    if len(shape) == 3:
        return (int(shape[0]), int(shape[1]), int(shape[2]))
    raise ValueError(f"arrays that are solved in tiles need 2 or 3 axes, got shape {tuple(shape)}")


def lengths(box: Box) -> Shape:
    """Return the lengths of a box."""
    deep, tall, wide = (part.stop - part.start for part in box)
    return (deep, tall, wide)


def grown(box: Box, shape: Shape, before: int, after: int) -> Box:
    """Return a box with more points on both sides of every axis, as far as the volume reaches."""
    return _box(
        slice(max(0, part.start - before), min(n, part.stop + after))
        for part, n in zip(box, shape, strict=True)
    )


def _box(parts: Iterable[slice]) -> Box:
    deep, tall, wide = parts
    return (deep, tall, wide)


def windows(shape: Shape, points: int) -> list[Box]:
    """Return overlapping windows that cover a volume, of at most about this many points each."""
    counts = [1, 1, 1]
    while math.prod(_widest(n, count) for n, count in zip(shape, counts, strict=True)) > points:
        sides = [-(-n // count) for n, count in zip(shape, counts, strict=True)]
        longest = max(range(AXES), key=lambda axis: sides[axis])
        if sides[longest] <= MARGIN:
            raise ValueError(
                f"memory is too small for windows of {MARGIN} points with margins: "
                f"a window can have {points} points; give more memory"
            )
        counts[longest] += 1
    cores = product(*(_cores(n, count) for n, count in zip(shape, counts, strict=True)))
    return [grown(_box(core), shape, MARGIN, MARGIN) for core in cores]


def _widest(n: int, count: int) -> int:
    return min(n, -(-n // count) + 2 * MARGIN) if count > 1 else n


def _cores(n: int, count: int) -> Iterator[slice]:
    edges = [round(n * i / count) for i in range(count + 1)]
    for begin, end in pairwise(edges):
        yield slice(begin, end)


class DualFiles:
    """The dual variables of a volume in three memory-mapped files.

    Args:
        folder: Folder of the files.
        shape: Shape of the volume.
        dtype: Type of the numbers.
    """

    def __init__(self, folder: Path, shape: Shape, dtype: torch.dtype) -> None:
        self.paths = [folder / f"dual-{axis}.npy" for axis in range(AXES)]
        self.shape = shape
        self.dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self.axes = [axis for axis in range(AXES) if shape[axis] > 1]

    @property
    def complete(self) -> bool:
        """Whether all files are there, with the right shape and type."""
        for axis in self.axes:
            try:
                numbers = np.load(self.paths[axis], mmap_mode="r")
            except (OSError, ValueError):
                return False
            if numbers.shape != self.shape or numbers.dtype != self.dtype:
                return False
        return True

    def create(self) -> None:
        """Write files of zeros."""
        for axis in self.axes:
            created = np.lib.format.open_memmap(
                self.paths[axis], "w+", dtype=self.dtype, shape=self.shape
            )
            del created

    def read(self, box: Box) -> list[Tensor]:
        """Return the dual variables of a box, one tensor (depth, height, width) for every axis."""
        parts = []
        for axis in range(AXES):
            if axis in self.axes:
                # A map is closed at once, so that its pages do not count as memory of the process.
                numbers: NDArray[Any] = np.load(self.paths[axis], mmap_mode="r")
                parts.append(torch.from_numpy(np.array(numbers[box])))
                del numbers
            else:
                parts.append(torch.zeros(lengths(box), dtype=torch.from_numpy(self._none()).dtype))
        return parts

    def write(self, box: Box, parts: Sequence[Tensor]) -> None:
        """Store the dual variables of a box."""
        for axis in self.axes:
            numbers: Any = np.load(self.paths[axis], mmap_mode="r+")
            numbers[box] = parts[axis].numpy()
            del numbers

    def _none(self) -> NDArray[Any]:
        return np.empty(0, self.dtype)
