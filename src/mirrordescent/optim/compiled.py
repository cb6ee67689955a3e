"""Steps by kernels in C, in one pass over memory, for methods that name theirs
(``GradientMethod.compiled``).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent import kernels
from mirrordescent.methods.base import GradientMethod, Tensors
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.optim.forms import Reading, diagonal, lines
from mirrordescent.optim.slot import Slot
from mirrordescent.optim.watch import Watch
from mirrordescent.parts import written_together

# of a table, at least: few enough for the nearest cache, and enough for 40 intervals of similar
# length
LEAVES = 256
LONG = (
    512  # multipliers that repeat sooner are written out up to this length, so that loops are long
)


class Form(NamedTuple):
    """Which kernel steps a parameter, and how many leaves the tables of its map have; 0 for
    multipliers.
    """

    kernel: str
    leaves: int


def form_of(slot: Slot, like: Tensor) -> Form | None:
    """Return the form in which a kernel can step a parameter, or None if there is none for its
    method and map.
    """
    method = slot.method
    name = method.compiled if written_together(type(method), "compiled", "update") else None
    if name is None or not method.steps_in_place or slot.converts or not kernels.suits(like):
        return None
    if multipliers(slot.mirror, like) is not None:
        return Form(f"{name}_scaled", 0)
    row = None if corrected(method) else lines(slot.mirror, like)
    return None if row is None else Form(f"{name}_spline", _leaves(_intervals(row)))


def multipliers(mirror: MirrorMap, like: Tensor) -> Tensor | None:
    """Return the w of a map with ∇ψ*(y) = w·y if it repeats along a tensor; a short one several
    times over.
    """
    d = diagonal(mirror, like)
    if d is None:
        return None
    w = torch.as_tensor(d, dtype=like.dtype, device=like.device).reciprocal()
    leading = next((i for i, n in enumerate(w.shape) if n > 1), w.ndim)
    if w.shape[leading:] != like.shape[like.ndim - (w.ndim - leading) :]:
        return None
    return w.flatten().repeat(-(-LONG // w.numel())) if 0 < w.numel() < LONG else w.flatten()


def tabulated(mirror: MirrorMap, like: Tensor) -> Tensor | None:
    """Return the tables of ∇ψ* and then of ∇ψ, see ``optimiser.h``, if both are piecewise
    linear.
    """
    row = lines(mirror, like)
    if row is None:
        return None
    n = _intervals(row)
    values, b, a, knots, c, d = torch.split(row, [n - 1, n, n, n - 1, n, n])
    return torch.cat([_table(values, knots, b, a), _table(knots, values, c, d)])


def _intervals(row: Tensor) -> int:
    return (row.numel() + 2) // 6  # one end less, an intercept and a slope for each, both ways


def _leaves(intervals: int) -> int:
    return max(LEAVES, 1 << intervals.bit_length())


def _table(ends: Tensor, values: Tensor, intercepts: Tensor, slopes: Tensor) -> Tensor:
    """Return the table of one function, with as many cells as there are leaves unless some would
    have several ends.

    If 0 is an end, it is in the middle of a cell and at a leaf. Small numbers so keep all their
    digits: their lines are not continued from an end that is far greater than they are.
    """
    n = len(ends)
    leaves = _leaves(len(slopes))
    zero = min(int((ends < 0).sum()), n - 1)
    for depth in range(leaves.bit_length()):
        cells = leaves >> depth
        scale = (max(cells - 1, 1) / (ends[-1] - ends[0])).nan_to_num(0.0)
        origin = ((ends[0] * scale).round() - 0.5) / scale
        # The same arithmetic as in C, so that no end is in another cell than a number equal to it.
        cell = ((ends - origin) * scale).nan_to_num(0.0).clamp(0, cells - 1).long()
        every = torch.arange(cells, device=ends.device)
        start = torch.searchsorted(cell, every)
        stop = torch.searchsorted(cell, every, right=True)
        start[cell[zero]] -= (
            zero - start[cell[zero]]
        ) % 2  # since every other end is at a leaf, from the first one on
        if int((stop - start).max()) < 2 << depth:
            break
    # As many ends as a tree can have. From left to right, every other one is at a leaf, every other
    # one of the rest at a node of the level above, and so on. Those of other cells, and those that
    # are not there, lead to where the ends of the cell are; the last of the padded stands before
    # the first end, at −1.
    at = start[:, None] + torch.arange((2 << depth) - 1, device=ends.device)
    missing = at.shape[1]
    padded = torch.cat([ends, ends.new_full((missing,), math.nan), ends.new_full((1,), -math.inf)])
    in_cell = torch.cat([cell, cell.new_full((missing,), cells), cell.new_full((1,), -1)])
    nodes = [
        padded[at[:, (1 << level) - 1 :: 2 << level]].flatten() for level in range(depth, 0, -1)
    ]
    at = at[:, ::2]
    has_end = in_cell[at] == every[:, None]
    left = (at + (in_cell[at] < every[:, None])).clamp(max=n)
    end = torch.where(has_end, padded[at], 0)
    there = torch.where(has_end, F.pad(values, (0, 1))[left], intercepts[left])
    leaf = torch.stack([end, there, slopes[left], slopes[left + has_end]], -1)
    head = torch.stack([origin, scale, torch.full_like(scale, cells)])
    return torch.cat([F.pad(head, (0, 1 + cells)), *nodes, leaf.flatten()])


def corrected(method: GradientMethod[Any]) -> bool:
    """Tell whether the correcting step of an accelerated method is taken in the map's
    geometry too.
    """
    return method.mirror is not None and getattr(method, "regulariser", None) is method.mirror


class Compiled:
    """Steps on several parameters, with local parts x, by one call of a kernel, as long as nothing
    moves in memory.

    If there is a ``watch``, the kernel looks by itself whether the parameters are where the last
    step has left them, in the same pass over memory, and lets the duals of those that are not start
    anew.
    """

    def __init__(self, slots: list[Slot], parameters: Tensors, x: Tensors, beside: Tensors) -> None:
        self._method = slots[0].method
        self._form = slots[0].form
        self._maps = [slot.mirror for slot in slots]
        self._kernel = kernels.Function(self._form.kernel, x[0].dtype)
        self._parameters = parameters
        self._x = x
        self._moving = [*x, *beside]
        self._looks = "moved" in self._kernel.names
        self._looked = dict[str, Any]()
        self._version: tuple[Watch, int] | None = None
        known = {
            "count": len(x),
            "sizes": array("l", [tensor.numel() for tensor in x]),
            "x": kernels.addresses(x),
        }
        known |= {
            "z": kernels.addresses(beside),
            "leaves": self._form.leaves,
            "corrected": corrected(self._method),
        }
        self._told = Reading(self._maps, partial(self._read, known))

    def _read(self, known: dict[str, Any]) -> tuple[dict[str, Any], Tensors]:
        """Return all arguments of a kernel that last, and the tables of the maps among them."""
        find = tabulated if self._form.leaves else multipliers
        leaves = self._form.leaves
        found = [find(mirror, tensor) for mirror, tensor in zip(self._maps, self._x, strict=True)]
        tables = [table.contiguous() for table in found if table is not None]
        lengths = [table.numel() for table in tables]
        if len(tables) < len(found) or (leaves and set(lengths) != {2 * (4 + 5 * leaves)}):
            raise RuntimeError(
                "a map is of another type or shape than when the optimiser was made: make it anew"
            )
        told = {
            "w": kernels.addresses(tables),
            "tables": kernels.addresses(tables),
            "periods": array("l", lengths),
            **known,
        }
        return {name: value for name, value in told.items() if name in self._kernel.names}, tables

    def looks(self, watch: Watch) -> bool:
        """Tell whether the kernel can look for parameters that were moved."""
        if self._looks and self._version != (watch, watch.version):
            both = list(zip(self._parameters, self._x, strict=True))
            suits = all(watch.suits(p, here) for p, here in both)
            left = [watch.told(p, here) for p, here in both] if suits else []
            self._looked = _left(left)
            self._version = watch, watch.version
        return bool(self._looked)

    def step(self, count: int, g: Tensors, watch: Watch | None) -> None:
        """Take step ``count`` along gradients g."""
        arguments = {**self._told()[0], "g": kernels.addresses(g)}
        arguments |= zip(self._kernel.numbers, self._method.lengths(count), strict=True)
        if self._looks:
            looks = watch is not None and self.looks(watch)
            arguments |= self._looked if looks else _left([None] * len(g))
        self._kernel(**arguments)
        if watch is not None and any(arguments.get("moved", ())):
            for p, here, moved in zip(self._parameters, self._x, arguments["moved"], strict=True):
                if moved:
                    watch.heard(p, here)
            arguments["moved"][:] = array("i", bytes(4 * len(g)))
        torch.autograd.graph.increment_version(
            self._moving
        )  # so that a graph with what they were is not used any more


def _left(left: Sequence[Tensor | None]) -> dict[str, Any]:
    """Return the arguments that tell a kernel where parameters were left, and those with which it
    answers.
    """
    copies = [None if each is None or not each.is_floating_point() else each for each in left]
    sums = [None if each is None or each.is_floating_point() else each for each in left]
    moved = array("i", bytes(4 * len(left)))
    return (
        {"copies": kernels.addresses(copies), "sums": kernels.addresses(sums), "moved": moved}
        if left
        else {}
    )
