"""Noticing that somebody else has moved a parameter since the last step."""

import torch
from torch import Tensor

from mirrordescent.methods.base import Tensors
from mirrordescent.optim.sharding import local


class Watch:
    """Where the last step has left parameters: a copy of each, since a change of ``p.data`` leaves no other trace."""

    def __init__(self) -> None:
        self._left: dict[Tensor, Tensor] = {}

    def moved(self, parameters: Tensors) -> list[tuple[int, Tensor]]:
        """Return the numbers of the parameters that are not where they were left, and where that was."""
        known = [(i, local(p.detach()), self._left[p]) for i, p in enumerate(parameters) if p in self._left]
        known = [(i, x, left) for i, x, left in known if x.shape == left.shape and x.dtype == left.dtype]
        if all(x.device.type == "cpu" for _, x, _ in known):
            return [(i, left) for i, x, left in known if not torch.equal(x, left)]
        flags = torch.stack([(x != left.to(x.device)).any() for _, x, left in known]).tolist()  # one wait for all
        return [(i, left.to(x.device)) for (i, x, left), moved in zip(known, flags, strict=True) if moved]

    def leave(self, parameters: Tensors) -> None:
        """Remember where parameters are now."""
        for p in parameters:
            x, left = local(p.detach()), self._left.get(p)
            if left is None or left.shape != x.shape or left.dtype != x.dtype or left.device != x.device:
                self._left[p] = x.clone()
            else:
                left.copy_(x)

    def forget(self) -> None:
        """Take every parameter as it is."""
        self._left.clear()
