"""Detection of parameters that were changed between two steps."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.execution.tensors import Tensors

LARGE = 1 << 15
"""Entries up to which a parameter is copied. Larger ones are summed until their first change."""

PART = 1 << 10
"""Entries per sum, as in ``optimiser.h``."""


class ChangeTracker:
    """Values of parameters after the last step, to detect later changes.

    A change of ``p.data`` leaves no trace except in the numbers. Small parameters, and parameters
    that were changed before, are copied. For all other parameters, the bits of each part are
    summed. These sums are exact and independent of the order of summation; they take half the time
    of a copy and no memory.
    """

    def __init__(self) -> None:
        # Copies have the dtype of the parameter, sums are integers.
        self._recorded: dict[Tensor, Tensor] = {}
        self._changed: set[Tensor] = set()
        self.version = 0
        """Counter that increases when a copy or a sum is stored in other memory."""

    def changes(self, parameters: Tensors, x: Tensors) -> list[tuple[int, Tensor | None]]:
        """Return (index, previous value) for every parameter changed since the last step.

        Args:
            parameters: Parameters.
            x: Local part of each parameter.

        The previous value is None if only sums were recorded.
        """
        changes: list[tuple[int, Tensor | None]] = []
        for i, (p, current) in enumerate(zip(parameters, x, strict=True)):
            recorded = self._recorded.get(p)
            if recorded is None or _matches(recorded, current):
                continue
            is_copy = recorded.is_floating_point() and recorded.shape == current.shape
            changes.append((i, recorded if is_copy else None))
            self._changed.add(p)
        return changes

    def record(self, parameters: Tensors, x: Tensors) -> None:
        """Record the present values x of the local parts of parameters."""
        targets: Tensors = []
        values: Tensors = []
        for p, current in zip(parameters, x, strict=True):
            recorded = self._recorded.get(p)
            value = _part_sums(current) if self._is_summed(p, current) else current
            if (
                recorded is not None
                and recorded.shape == value.shape
                and recorded.dtype == value.dtype
            ):
                targets.append(recorded)
                values.append(value)
            else:
                self._store(p, current)
        if targets:
            torch._foreach_copy_(targets, values)

    def kernel_can_compare(self, p: Tensor, current: Tensor) -> bool:
        """Return whether a kernel can compare a parameter with its record while it steps."""
        recorded = self._recorded.get(p)
        if recorded is None:
            return True
        if self._is_summed(p, current):
            return not recorded.is_floating_point()
        return (
            recorded.dtype == current.dtype
            and recorded.shape == current.shape
            and recorded.is_contiguous()
        )

    def record_of(self, p: Tensor, current: Tensor) -> Tensor:
        """Return the copy or the sums of a parameter, which a kernel compares and overwrites."""
        if p not in self._recorded:
            self._store(p, current)
        return self._recorded[p]

    def mark_changed(self, p: Tensor, current: Tensor) -> None:
        """Keep a copy of a parameter from now on, because a kernel has found it changed."""
        if p not in self._changed:
            self._changed.add(p)
            self._store(p, current)

    def clear(self) -> None:
        """Forget all records, so that the next step accepts every parameter as it is."""
        self._recorded.clear()
        self.version += 1

    def _store(self, p: Tensor, current: Tensor) -> None:
        if self._is_summed(p, current):
            self._recorded[p] = _part_sums(current)
        else:
            self._recorded[p] = current.clone()
        self.version += 1

    def _is_summed(self, p: Tensor, current: Tensor) -> bool:
        return current.numel() > LARGE and p not in self._changed and _can_be_summed(current)


def _matches(recorded: Tensor, current: Tensor) -> bool:
    if not recorded.is_floating_point():
        return _can_be_summed(current) and torch.equal(recorded, _part_sums(current))
    same_type = recorded.dtype == current.dtype and recorded.device == current.device
    return same_type and torch.equal(recorded, current)


def _can_be_summed(x: Tensor) -> bool:
    return x.is_contiguous() and not x.storage_offset() * x.element_size() % 8


def _part_sums(x: Tensor) -> Tensor:
    """Sum the bits of every part as 64-bit integers, which wrap around; the end is zero-padded."""
    flat = x.flatten()
    words = PART * x.element_size() // 8
    end = flat.numel() // PART * PART
    sums = flat[:end].view(torch.int64).view(-1, words).sum(1)
    rest = F.pad(flat[end:], (0, -(flat.numel() - end) % (8 // x.element_size())))
    if not len(rest):
        return sums
    return torch.cat([sums, rest.view(torch.int64).sum()[None]])
