"""Steps by kernels in C, in one pass over memory: the same mathematics as ``Method.update``, on lists of tensors."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from operator import is_not
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mirrordescent import methods
from mirrordescent.kernels import library
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.spline import Spline
from mirrordescent.optim.curvature import curvature_of, is_identity
from mirrordescent.optim.foreach import pick
from mirrordescent.optim.slot import Slot

Tensors: TypeAlias = list[Tensor]

LONG = 512  # multipliers that repeat sooner are written out up to this length, so that loops are long
TYPES = {torch.float32: "float", torch.float64: "double"}


class Multiplied:
    """The w of a map with ∇ψ*(y) = w·y, where w repeats along the entries of a tensor."""

    kernel, intervals = "scaled", 0

    def __init__(self, mirror: MirrorMap, like: Tensor) -> None:
        self.curvature = curvature_of(mirror)
        # Where the numbers of the map are held, looked up so often that attributes of modules would take too long.
        self.source = ({"": like}, "") if self.curvature is None else self.curvature.source
        self._ones = like.new_ones(LONG)

    @classmethod
    def fits(cls, mirror: MirrorMap, like: Tensor) -> bool:
        """Tell whether the map is such a one, with a w for the last dimensions of the tensor."""
        if is_identity(mirror):
            return True
        curvature = curvature_of(mirror)
        if curvature is None or not curvature.fits(like):
            return False
        shape = curvature().shape
        trailing = tuple(shape)[next((i for i, n in enumerate(shape) if n > 1), len(shape)) :]
        return trailing == tuple(like.shape[like.ndim - len(trailing) :])

    def table(self) -> Tensor:
        """Return w, as often as it takes."""
        if self.curvature is None:
            return self._ones
        w = self.curvature().reciprocal().flatten()
        return w.repeat(-(-LONG // w.numel())) if w.numel() < LONG else w


class Splined:
    """The lines of one spline and of its inverse."""

    kernel = "spline"

    def __init__(self, mirror: Spline) -> None:
        self.mirror, self.intervals = mirror, 2 * mirror.knots
        self.source: tuple[dict[str, Any], str] = (mirror._parameters, "raw_slopes")

    @classmethod
    def fits(cls, mirror: MirrorMap, like: Tensor) -> bool:
        """Tell whether the map is one spline for the whole tensor, of its type."""
        alike = type(mirror) is Spline and mirror.count == 1
        return alike and mirror.raw_slopes.dtype == like.dtype and mirror.raw_slopes.device == like.device

    def table(self) -> Tensor:
        """Return ends, intercepts and slopes of the inverse, then of the spline."""
        return self.mirror.lines()


Geometry: TypeAlias = Multiplied | Splined


def geometry_of(slot: Slot, like: Tensor) -> Geometry | None:
    """Return what a kernel needs to know of the map of a parameter, or None if there is no kernel for it."""
    method, mirror = slot.method, slot.mirror
    if like.device.type != "cpu" or like.dtype not in TYPES or slot.converts or type(method) not in _STEPS:
        return None
    if Multiplied.fits(mirror, like):
        return Multiplied(mirror, like)
    corrected = isinstance(method, methods.AMD) and method.regulariser is method.mirror
    if Splined.fits(mirror, like) and not corrected:
        assert isinstance(mirror, Spline)
        return Splined(mirror)
    return None


class Batch:
    """Tensors that one call of a kernel serves. What stays the same from step to step is prepared once."""

    def __init__(self, slots: list[Slot], moved: list[Tensors], numbers: list[int]) -> None:
        self.numbers = numbers
        self.method = slots[0].method  # others differ in their maps alone
        self.geometries: list[Geometry] = [slot.fused for slot in slots]
        first, x = self.geometries[0], moved[0]
        self.scaled = first.kernel == "scaled"
        name, self._settings = _STEPS[type(self.method)]
        self._kernel = library()[f"{name}_{first.kernel}_{TYPES[x[0].dtype]}"]
        self._count, self._sizes = ctypes.c_long(len(x)), _longs([tensor.numel() for tensor in x])
        self._moved, self._intervals = [_addresses(tensors) for tensors in moved], ctypes.c_long(first.intervals)
        self._sources = [geometry.source for geometry in self.geometries]
        self._held: Tensors = []
        self._versions: list[int] = []

    def step(self, k: int, g: Tensors) -> None:
        """Take a step on all tensors along their gradients."""
        self._read()
        settings, gradients = self._settings(self.method, k + 1, self.scaled), _addresses(g)
        threads = ctypes.c_int(torch.get_num_threads())
        self._kernel(*self._before, _address(gradients), *self._after, *settings, threads)

    def _read(self) -> None:
        """Make the tables, and make them anew when a map has changed."""
        held = [tensors[name] for tensors, name in self._sources]
        versions = [tensor._version for tensor in held]
        if self._versions and not any(map(is_not, held, self._held)) and versions == self._versions:
            return
        self._held, self._versions = held, versions
        self._tables = [geometry.table().contiguous() for geometry in self.geometries]
        self._tables_at = _addresses(self._tables)
        periods = [_longs([table.numel() for table in self._tables])] if self.scaled else []
        self._before = (self._count, self._sizes, *periods, *map(_address, self._moved))
        self._after = (_address(self._tables_at), *([] if self.scaled else [self._intervals]))


class Fused:
    """The kernels of one group of parameters."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._where: list[list[int]] = []
        self._batches: list[Batch] = []
        self._left: list[int] = []

    def __reduce__(self) -> tuple[type[Fused], tuple[()]]:
        return Fused, ()  # addresses mean nothing in a copy

    def step(self, k: int, slots: list[Slot], x: Tensors, stored: list[Tensors], g: Tensors) -> list[int]:
        """Take the steps there are kernels for; return the numbers of the tensors that are left."""
        beside = [list(column) for column in zip(*stored, strict=True)] if all(stored) else []
        moved = [x, *beside]
        where = [list(map(Tensor.data_ptr, tensors)) for tensors in moved]
        if slots != self._slots or where != self._where:
            self._prepare(slots, moved)
            self._slots, self._where = slots, where
        if not all(map(Tensor.is_contiguous, g)):
            return list(range(len(slots)))
        for batch in self._batches:
            batch.step(k, pick(g, batch.numbers))
        return self._left

    def _prepare(self, slots: list[Slot], moved: list[Tensors]) -> None:
        """Find out which tensors can be stepped together; until one moves in memory, that remains so."""
        alike: dict[tuple[str, int, torch.dtype], list[int]] = {}
        for i, slot in enumerate(slots):
            tensors = [each[i] for each in moved]
            plain = all(tensor.is_contiguous() and tensor.dtype == tensors[0].dtype for tensor in tensors)
            if slot.fused is not None and plain:
                alike.setdefault((slot.fused.kernel, slot.fused.intervals, tensors[0].dtype), []).append(i)
        self._batches = [
            Batch(pick(slots, numbers), [pick(tensors, numbers) for tensors in moved], numbers)
            for numbers in alike.values()
        ]
        taken = {i for numbers in alike.values() for i in numbers}
        self._left = [i for i in range(len(slots)) if i not in taken]


def _md(method: methods.MD, count: int, scaled: bool) -> list[Any]:
    return [ctypes.c_double(float(method.t(count)))]


def _amd(method: methods.AMD, count: int, scaled: bool) -> list[Any]:
    t = float(method.t(count))
    far, near = t * float(method.dual_weight(count)), t * float(method.gamma(count))
    numbers: list[Any] = [ctypes.c_double(number) for number in (far, near, float(method.mixing(count + 1)))]
    return numbers + ([ctypes.c_int(method.regulariser is method.mirror)] if scaled else [])


# The first half of a kernel's name, and the numbers it is told at a step.
_STEPS: dict[type, tuple[str, Callable[[Any, int, bool], list[Any]]]] = {
    methods.MD: ("md", _md),
    methods.AMD: ("amd", _amd),
}


def _longs(numbers: list[int]) -> ctypes.Array[ctypes.c_long]:
    return (ctypes.c_long * len(numbers))(*numbers)


def _addresses(tensors: Tensors) -> array[int]:
    return array("Q", map(Tensor.data_ptr, tensors))


def _address(numbers: array[int]) -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])
