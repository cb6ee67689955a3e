"""Steps by kernels in C, in one pass over memory, for methods that name theirs (``GradientMethod.compiled``)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrordescent import kernels
from mirrordescent.methods.base import GradientMethod, Tensors
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.optim.forms import Reading, diagonal, lines
from mirrordescent.optim.slot import Slot
from mirrordescent.parts import written_together

LONG = 512  # multipliers that repeat sooner are written out up to this length, so that loops are long


class Form(NamedTuple):
    """Which kernel steps a parameter, and how many intervals its map has; 0 for multipliers."""

    kernel: str
    intervals: int


def form_of(slot: Slot, like: Tensor) -> Form | None:
    """Return the form in which a kernel can step a parameter, or None if there is none for its method and map."""
    method = slot.method
    name = method.compiled if written_together(type(method), "compiled", "update") else None
    if name is None or not method.steps_in_place or slot.converts or not kernels.suits(like):
        return None
    if multipliers(slot.mirror, like) is not None:
        return Form(f"{name}_scaled", 0)
    table = None if corrected(method) else lines(slot.mirror, like)
    return None if table is None else Form(f"{name}_spline", (table.numel() + 2) // 6)  # 3n − 1 numbers each way


def multipliers(mirror: MirrorMap, like: Tensor) -> Tensor | None:
    """Return the w of a map with ∇ψ*(y) = w·y if it repeats along a tensor; a short one several times over."""
    d = diagonal(mirror, like)
    if d is None:
        return None
    w = torch.as_tensor(d, dtype=like.dtype, device=like.device).reciprocal()
    leading = next((i for i, n in enumerate(w.shape) if n > 1), w.ndim)
    if w.shape[leading:] != like.shape[like.ndim - (w.ndim - leading) :]:
        return None
    return w.flatten().repeat(-(-LONG // w.numel())) if 0 < w.numel() < LONG else w.flatten()


def corrected(method: GradientMethod[Any]) -> bool:
    """Tell whether the correcting step of an accelerated method is taken in the map's geometry too."""
    return method.mirror is not None and getattr(method, "regulariser", None) is method.mirror


def compiled(slots: list[Slot], x: Tensors, beside: Tensors) -> Callable[[int, Tensors, Any, Tensors], None]:
    """Return steps on several parameters by one call of a kernel, good as long as nothing moves in memory."""
    method, form, maps = slots[0].method, slots[0].form, [slot.mirror for slot in slots]
    kernel = kernels.Function(form.kernel, x[0].dtype)
    sizes = array("l", [tensor.numel() for tensor in x])
    known: dict[str, Any] = {"count": len(x), "sizes": sizes, "x": _addresses(x), "z": _addresses(beside)}
    known |= {"intervals": form.intervals, "corrected": corrected(method)}

    def read() -> tuple[dict[str, Any], Tensors]:
        """Return all arguments of a kernel but gradients and lengths, and the tables of the maps among them."""
        find = lines if form.intervals else multipliers
        found = [find(mirror, tensor) for mirror, tensor in zip(maps, x, strict=True)]
        tables = [table.contiguous() for table in found if table is not None]
        lengths = [table.numel() for table in tables]
        if len(tables) < len(x) or (form.intervals and set(lengths) != {6 * form.intervals - 2}):
            raise RuntimeError("a map is of another type or shape than when the optimiser was made: make it anew")
        told = {"w": _addresses(tables), "tables": _addresses(tables), "periods": array("l", lengths), **known}
        return {name: value for name, value in told.items() if name in kernel.names}, tables

    told, moved = Reading(maps, read), [*x, *beside]

    def step(count: int, x: Tensors, stored: Any, g: Tensors) -> None:
        lengths = zip(kernel.numbers, method.lengths(count), strict=True)
        kernel(**told()[0], g=_addresses(g), **dict(lengths))
        torch.autograd.graph.increment_version(moved)  # so that a graph with what they were is not used any more

    return step


def _addresses(tensors: Tensors) -> array[int]:
    return array("Q", map(Tensor.data_ptr, tensors))
