"""Noticing that somebody else has moved a parameter since the last step."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from mirrordescent.methods.base import Tensors

LARGE = 1 << 15  # entries; of larger parameters only sums are kept, until one is moved for the first time
BLOCKS = 64  # that are summed each by itself, so that an exchange of entries shows too
Left: TypeAlias = Tensor | tuple[Tensor, Tensor]


class Watch:
    """Where the last step has left parameters. A change of ``p.data`` leaves no other trace than their numbers.

    Of a small parameter, and of one that has been moved before, there is a copy; of others sums of their bits in
    blocks, exact and the same in any order of summation, which take half the time and no memory.
    """

    def __init__(self) -> None:
        self._left: dict[Tensor, Left] = {}
        self._moved: set[Tensor] = set()

    def moved(self, parameters: Tensors, x: Tensors) -> list[tuple[int, Tensor | None]]:
        """Return the numbers of parameters, with local parts x, that are not where they were left: where was that?"""
        found = []
        for i, (p, here) in enumerate(zip(parameters, x, strict=True)):
            left = self._left.get(p)
            if left is not None and not _same(left, here):
                found.append((i, left if isinstance(left, Tensor) and left.shape == here.shape else None))
                self._moved.add(p)
        return found

    def leave(self, parameters: Tensors, x: Tensors) -> None:
        """Remember where parameters are now."""
        copies, places = [], []
        for p, here in zip(parameters, x, strict=True):
            if here.numel() > LARGE and p not in self._moved and _can_be_summed(here):
                self._left[p] = _sums(here)
                continue
            left = self._left.get(p)
            if isinstance(left, Tensor) and left.shape == here.shape and left.dtype == here.dtype:
                copies.append(left)
                places.append(here)
            else:
                self._left[p] = here.clone()
        if copies:
            torch._foreach_copy_(copies, places)

    def forget(self) -> None:
        """Take every parameter as it is."""
        self._left.clear()


def _same(left: Left, here: Tensor) -> bool:
    if isinstance(left, Tensor):
        return left.dtype == here.dtype and left.device == here.device and torch.equal(left, here)
    return _can_be_summed(here) and all(map(torch.equal, left, _sums(here)))


def _can_be_summed(x: Tensor) -> bool:
    return x.is_contiguous() and not x.storage_offset() * x.element_size() % 8


def _sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the bits of blocks as whole numbers, which wrap around; and what is left over at the end."""
    flat, words = x.flatten(), BLOCKS * 8 // x.element_size()
    end = flat.numel() // words * words
    return flat[:end].view(torch.int64).view(BLOCKS, -1).sum(1), flat[end:].clone()
