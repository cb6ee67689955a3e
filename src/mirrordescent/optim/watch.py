"""Noticing that somebody else has moved a parameter since the last step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.methods.base import Tensors

LARGE = (
    1 << 15
)  # entries; of larger parameters only sums are kept, until one is moved for the first time
PART = 1 << 10  # entries that are summed by themselves, in ``optimiser.h`` too


class Watch:
    """Where the last step has left parameters. A change of ``p.data`` leaves no other trace than
    their numbers.

    Of a small parameter, and of one that has been moved before, there is a copy; of others sums of
    the bits of their parts, exact and the same in any order of summation, which take half the time
    and no memory.
    """

    def __init__(self) -> None:
        self._left: dict[
            Tensor, Tensor
        ] = {}  # copies in the type of a parameter, sums as whole numbers
        self._moved: set[Tensor] = set()
        self.version = 0  # which changes whenever something is remembered in another place

    def moved(self, parameters: Tensors, x: Tensors) -> list[tuple[int, Tensor | None]]:
        """Return the numbers of parameters, with local parts x, that are not where they were left:
        where was that?
        """
        found = []
        for i, (p, here) in enumerate(zip(parameters, x, strict=True)):
            left = self._left.get(p)
            if left is not None and not _same(left, here):
                known = left.is_floating_point() and left.shape == here.shape
                found.append((i, left if known else None))
                self._moved.add(p)
        return found

    def leave(self, parameters: Tensors, x: Tensors) -> None:
        """Remember where parameters are now."""
        kept = []
        new = []
        for p, here in zip(parameters, x, strict=True):
            left = self._left.get(p)
            now = _sums(here) if self._is_summed(p, here) else here
            if left is not None and left.shape == now.shape and left.dtype == now.dtype:
                kept.append(left)
                new.append(now)
            else:
                self._remember(p, here)
        if kept:
            torch._foreach_copy_(kept, new)

    def suits(self, p: Tensor, here: Tensor) -> bool:
        """Tell whether a kernel can look by itself, as it steps: what is remembered is laid out as
        the parameter is.
        """
        left = self._left.get(p)
        if left is None or self._is_summed(p, here):
            return left is None or not left.is_floating_point()
        return left.dtype == here.dtype and left.shape == here.shape and left.is_contiguous()

    def told(self, p: Tensor, here: Tensor) -> Tensor:
        """Return the copy or the sums of a parameter, for a kernel to compare and to write to."""
        if p not in self._left:
            self._remember(p, here)
        return self._left[p]

    def heard(self, p: Tensor, here: Tensor) -> None:
        """Note that a kernel has found a parameter moved: of such a one a copy is kept from
        now on.
        """
        if p not in self._moved:
            self._moved.add(p)
            self._remember(p, here)

    def _remember(self, p: Tensor, here: Tensor) -> None:
        self._left[p] = _sums(here) if self._is_summed(p, here) else here.clone()
        self.version += 1

    def forget(self) -> None:
        """Take every parameter as it is."""
        self._left.clear()
        self.version += 1

    def _is_summed(self, p: Tensor, here: Tensor) -> bool:
        return here.numel() > LARGE and p not in self._moved and _can_be_summed(here)


def _same(left: Tensor, here: Tensor) -> bool:
    if left.is_floating_point():
        return left.dtype == here.dtype and left.device == here.device and torch.equal(left, here)
    return _can_be_summed(here) and torch.equal(left, _sums(here))


def _can_be_summed(x: Tensor) -> bool:
    return x.is_contiguous() and not x.storage_offset() * x.element_size() % 8


def _sums(x: Tensor) -> Tensor:
    """Sum the bits of parts as whole numbers of eight bytes, which wrap around; zeros are put
    behind the last.
    """
    flat = x.flatten()
    words = PART * x.element_size() // 8
    end = flat.numel() // PART * PART
    whole = flat[:end].view(torch.int64).view(-1, words).sum(1)
    rest = F.pad(flat[end:], (0, -(flat.numel() - end) % (8 // x.element_size())))
    return torch.cat([whole, rest.view(torch.int64).sum()[None]]) if len(rest) else whole
