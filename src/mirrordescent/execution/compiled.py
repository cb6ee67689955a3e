"""Steps by C kernels, in one pass over memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrordescent import kernels
from mirrordescent.execution.changes import ChangeTracker
from mirrordescent.execution.foreach import corrects_in_map, diagonal_steps
from mirrordescent.execution.map_values import CachedMapValue, usable_diagonal
from mirrordescent.execution.spline_tables import (
    interval_count,
    leaf_count,
    spline_pieces,
    spline_table,
    table_length,
)
from mirrordescent.execution.tensors import Tensors
from mirrordescent.methods.base import GradientMethod
from mirrordescent.mirrors.base import MirrorMap

MIN_PERIOD = 512
"""Multipliers that repeat sooner are written out up to this length, so that loops are long."""


class KernelForm(NamedTuple):
    """The C kernel of a parameter, and the number of leaves of its spline table, if any."""

    name: str
    leaves: int


def kernel_form(method: GradientMethod[Any], mirror: MirrorMap, like: Tensor) -> KernelForm | None:
    """Return the kernel for a method and a map on tensors like this one, or None."""
    steps = diagonal_steps(method)
    if steps is None or steps.kernel is None or not kernels.supports(like):
        return None
    if repeating_multipliers(mirror, like) is not None:
        return KernelForm(f"{steps.kernel}_scaled", 0)
    if corrects_in_map(method):
        return None
    pieces = spline_pieces(mirror, like)
    if pieces is None:
        return None
    return KernelForm(f"{steps.kernel}_spline", leaf_count(interval_count(pieces)))


def repeating_multipliers(mirror: MirrorMap, like: Tensor) -> Tensor | None:
    """Return w of a map with ∇ψ*(y) = w·y if w repeats along the tensor, or None.

    A short w is repeated up to :data:`MIN_PERIOD` entries.
    """
    d = usable_diagonal(mirror, like)
    if d is None:
        return None
    w = torch.as_tensor(d, dtype=like.dtype, device=like.device).reciprocal()
    leading = next((i for i, n in enumerate(w.shape) if n > 1), w.ndim)
    if w.shape[leading:] != like.shape[like.ndim - (w.ndim - leading) :]:
        return None
    if 0 < w.numel() < MIN_PERIOD:
        return w.flatten().repeat(-(-MIN_PERIOD // w.numel()))
    return w.flatten()


class KernelSteps:
    """Steps on several parameters by one call of a kernel, valid while no tensor moves in memory.

    If there is a change tracker, the kernel compares the parameters with their records in the same
    pass over memory, and restarts the duals of changed ones.

    Args:
        form: Kernel of all parameters.
        method: Method of one of the parameters; the others differ from it only in their maps.
        maps: Map of each parameter.
        parameters: Parameters.
        x: Local part of each parameter.
        stored: Stored field of each parameter, empty if the method stores none.
    """

    def __init__(
        self,
        form: KernelForm,
        method: GradientMethod[Any],
        maps: list[MirrorMap],
        parameters: Tensors,
        x: Tensors,
        stored: Tensors,
    ) -> None:
        steps = diagonal_steps(method)
        assert steps is not None
        self._form = form
        self._method = method
        self._step_sizes = steps.step_sizes
        self._maps = maps
        self._kernel = kernels.KernelFunction(form.name, x[0].dtype)
        self._parameters = parameters
        self._x = x
        self._written = [*x, *stored]
        self._detects_changes = "moved" in self._kernel.names
        self._comparison: dict[str, Any] = {}
        self._compared: tuple[ChangeTracker, int] | None = None
        self._fixed_arguments = {
            "count": len(x),
            "sizes": array("q", [tensor.numel() for tensor in x]),
            "x": kernels.addresses(x),
            "z": kernels.addresses(stored),
            "leaves": form.leaves,
            "corrected": corrects_in_map(method),
        }
        self._arguments = CachedMapValue(maps, self._arguments_and_tables)

    def _arguments_and_tables(self) -> tuple[dict[str, Any], Tensors]:
        """Return the arguments that stay the same between steps, and the tables they point to."""
        tables: Tensors = []
        for mirror, tensor in zip(self._maps, self._x, strict=True):
            table = self._table(mirror, tensor)
            if table is None:
                raise RuntimeError(
                    "a mirror map has another type or shape than when the optimiser was "
                    "constructed: construct the optimiser again"
                )
            tables.append(table.contiguous())
        pointers = kernels.addresses(tables)
        arguments = {
            "w": pointers,
            "tables": pointers,
            "periods": array("q", [table.numel() for table in tables]),
            **self._fixed_arguments,
        }
        names = self._kernel.names
        return {name: value for name, value in arguments.items() if name in names}, tables

    def _table(self, mirror: MirrorMap, x: Tensor) -> Tensor | None:
        """Return the multipliers or the spline table of a map, or None if it no longer fits."""
        if not self._form.leaves:
            return repeating_multipliers(mirror, x)
        pieces = spline_pieces(mirror, x)
        if pieces is None:
            return None
        table = spline_table(pieces)
        return table if table.numel() == table_length(self._form.leaves) else None

    def detects_changes(self, tracker: ChangeTracker) -> bool:
        """Return whether the kernel can compare its parameters with the tracker's records."""
        if self._detects_changes and self._compared != (tracker, tracker.version):
            pairs = list(zip(self._parameters, self._x, strict=True))
            records: list[Tensor | None] = []
            if all(tracker.kernel_can_compare(p, x) for p, x in pairs):
                records = [tracker.record_of(p, x) for p, x in pairs]
            self._comparison = _comparison(records) if records else {}
            self._compared = tracker, tracker.version
        return bool(self._comparison)

    def __call__(self, count: int, g: Tensors, tracker: ChangeTracker | None) -> None:
        """Take step ``count`` along gradients g."""
        arguments = {**self._arguments()[0], "g": kernels.addresses(g)}
        sizes = self._step_sizes(self._method, count)
        arguments |= zip(self._kernel.numbers, sizes, strict=True)
        if self._detects_changes:
            if tracker is not None and self.detects_changes(tracker):
                arguments |= self._comparison
            else:
                arguments |= _comparison([None] * len(g))
        self._kernel(**arguments)
        if tracker is not None and self._detects_changes:
            self._report_changes(arguments["moved"], tracker)
        # Autograd graphs that saved the old values must not be used any more.
        torch.autograd.graph.increment_version(self._written)

    def _report_changes(self, moved: array[int], tracker: ChangeTracker) -> None:
        """Tell the tracker which parameters have changed, according to the kernel."""
        if not any(moved):
            return
        for p, x, changed in zip(self._parameters, self._x, moved, strict=True):
            if changed:
                tracker.mark_changed(p, x)
        moved[:] = array("i", bytes(4 * len(moved)))


def _comparison(records: Sequence[Tensor | None]) -> dict[str, Any]:
    """Return the kernel's arguments for the comparison of parameters with their records."""
    copies: list[Tensor | None] = []
    sums: list[Tensor | None] = []
    for record in records:
        is_copy = record is not None and record.is_floating_point()
        copies.append(record if is_copy else None)
        sums.append(None if is_copy else record)
    return {
        "copies": kernels.addresses(copies),
        "sums": kernels.addresses(sums),
        "moved": array("i", bytes(4 * len(records))),
    }
