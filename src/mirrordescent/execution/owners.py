"""Directions of whole tensors, each computed by one of several processes and sent to the others.

Processes that hold the same tensors (``DistributedDataParallel``) or parts of them (FSDP2) would
otherwise all compute the same directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mirrordescent.execution.sharding import Gathered, Replicated
from mirrordescent.execution.tensors import Tensors

SharedMap: TypeAlias = Gathered | Replicated


def choose_owners(shapes: Sequence[tuple[int, ...]], processes: int) -> list[int]:
    """Return the process that owns each tensor, so that all have about the same work.

    Tensors are assigned in order of decreasing cost, each to the process with the smallest load.
    The cost of a matrix is its number of entries times its shorter side.

    >>> choose_owners([(4, 4), (9, 9), (3,), (4, 4)], processes=2)
    [1, 0, 1, 1]
    """
    work = [math.prod(shape) * min(shape, default=1) for shape in shapes]
    loads = [0] * processes
    owners = [0] * len(shapes)
    for i in sorted(range(len(shapes)), key=lambda i: -work[i]):
        owners[i] = loads.index(min(loads))
        loads[owners[i]] += work[i]
    return owners


def shared_group(mirror: Any) -> Any:
    """Return the process group that shares the work of a map, or None."""
    return mirror.group if type(mirror) in (Gathered, Replicated) else None


class OwnedDirections:
    """Directions of tensors that several processes hold.

    Args:
        maps: Map of each tensor.
        directions: Function from maps to a function that computes directions of whole tensors.
    """

    def __init__(
        self,
        maps: Sequence[SharedMap],
        directions: Callable[[Sequence[Any]], Callable[[Tensors], Tensors]],
    ) -> None:
        self.maps = list(maps)
        self.group: Any = maps[0].group
        self._directions = directions
        self._shapes: list[torch.Size] = []
        self._owners: list[int] = []
        self._own: Callable[[Tensors], Tensors] = list
        self._rank = torch.distributed.get_rank(self.group)

    def _assign(self, wholes: list[torch.Size]) -> None:
        """Choose the owners of tensors of these shapes."""
        self._shapes = wholes
        processes = torch.distributed.get_world_size(self.group)
        self._owners = choose_owners([tuple(shape) for shape in wholes], processes)
        owned = [
            mirror.mirror
            for mirror, owner in zip(self.maps, self._owners, strict=True)
            if owner == self._rank
        ]
        if owned:
            self._own = self._directions(owned)

    def __call__(self, tensors: Tensors) -> Tensors:
        """Return the parts of the directions that this process holds."""
        shapes = [mirror.whole_shape(y) for mirror, y in zip(self.maps, tensors, strict=True)]
        if shapes != self._shapes:
            self._assign(shapes)
        owned: Tensors = []
        for mirror, y, owner in zip(self.maps, tensors, self._owners, strict=True):
            whole = mirror.gathered(y)
            if owner == self._rank:
                owned.append(whole)
        computed = [direction.contiguous() for direction in self._own(owned)] if owned else []
        result = list(tensors)
        for owner in sorted(set(self._owners)):
            indices = [i for i, each in enumerate(self._owners) if each == owner]
            received = self._sent(owner, computed, [shapes[i] for i in indices], tensors[0])
            for i, direction in zip(indices, received, strict=True):
                result[i] = self.maps[i].own_part(direction)
        return result

    def _sent(
        self, owner: int, computed: Tensors, shapes: list[torch.Size], like: Tensor
    ) -> Tensors:
        """Return the directions of one owner on every process, sent in one message."""
        sizes = [math.prod(shape) for shape in shapes]
        if owner == self._rank:
            flat = torch.cat([direction.flatten() for direction in computed])
        else:
            flat = like.new_empty(sum(sizes))
        source = torch.distributed.get_global_rank(self.group, owner)
        torch.distributed.broadcast(flat, source, group=self.group)
        pieces = zip(torch.split(flat, sizes), shapes, strict=True)
        return [piece.view(shape) for piece, shape in pieces]
