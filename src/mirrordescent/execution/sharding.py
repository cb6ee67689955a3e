"""Parameters that are sharded over processes (``DTensor``, as in FSDP2).

Every process works on its local part. An elementwise map needs no communication: its tensors are
sharded like the parameter. A map of whole tensors cannot be sharded. If it acts on gradients, they
are gathered.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from mirrordescent.mirrors.base import MirrorMap

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement

_PLAIN_TYPES = {Tensor, nn.Parameter}


def is_distributed(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether a tensor is a DTensor, without importing ``torch.distributed.tensor``."""
    return type(tensor) not in _PLAIN_TYPES and hasattr(tensor, "device_mesh")


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether a process holds only a part of a tensor."""
    if not is_distributed(tensor):
        return False
    return not all(placement.is_replicate() for placement in tensor.placements)


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds, as a view."""
    return tensor.to_local() if is_distributed(tensor) else tensor


def local_parts(tensors: list[Tensor]) -> list[Tensor]:
    """Return the local part of each tensor."""
    return tensors if _PLAIN_TYPES.issuperset(map(type, tensors)) else list(map(local, tensors))


def local_gradients(gradients: list[Tensor], parameters: list[Tensor]) -> list[Tensor]:
    """Return the gradient of the local part of each parameter."""
    if _PLAIN_TYPES.issuperset(map(type, gradients)):
        return gradients
    return [local(_aligned(g, p)) for g, p in zip(gradients, parameters, strict=True)]


def spread_like(parameter: Tensor, part: Tensor) -> Tensor:
    """Return a local part as a tensor that is sharded like a parameter, for checkpoints."""
    if not is_distributed(parameter):
        return part
    from torch.distributed.tensor import DTensor

    mesh = parameter.device_mesh
    placements = parameter.placements
    shape = parameter.shape
    return DTensor.from_local(
        part, mesh, placements, run_check=False, shape=shape, stride=parameter.stride()
    )


def local_map(mirror: MirrorMap, parameter: Tensor, name: str) -> MirrorMap:
    """Return the map of the local part of a parameter."""
    if not is_sharded(parameter):
        return mirror
    if not mirror.elementwise:
        raise ValueError(
            f"{type(mirror).__name__} acts on whole tensors, and parameter {name} is sharded: "
            f"use an elementwise map, or do not shard the parameter (DistributedDataParallel)"
        )
    shards = {
        attribute: _sharded_like(parameter, getattr(mirror, attribute), name)
        for attribute in mirror.per_entry
    }
    return _with_tensors(mirror, shards) if shards else mirror


class Gathered(MirrorMap):
    """The map of a whole tensor, applied to the local part: gather, map, and shard again.

    Args:
        mirror: Map of the whole tensor.
        parameter: The sharded tensor.
    """

    def __init__(self, mirror: MirrorMap, parameter: DTensor) -> None:
        super().__init__()
        self.mirror = mirror
        self.mesh = parameter.device_mesh
        self.placements = parameter.placements
        self.shape = parameter.shape
        self.stride = parameter.stride()

    def _to_primal(self, y: Tensor) -> Tensor:
        return self._on_whole(self.mirror._to_primal, y)

    def _direction(self, y: Tensor) -> Tensor:
        return self._on_whole(self.mirror._direction, y)

    @property
    def direction_size(self) -> float:
        return self.mirror.direction_size

    def sum_of_parts(self, values: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, Partial, Replicate

        split = [Replicate() if p.is_replicate() else Partial() for p in self.placements]
        return DTensor.from_local(values, self.mesh, split, run_check=False).full_tensor()

    @property
    def group(self) -> ProcessGroup | None:
        """The processes that hold the parts, if they are along one axis of a mesh."""
        return self.mesh.get_group() if self.mesh.ndim == 1 else None

    def whole_shape(self, y: Tensor) -> torch.Size:
        """Return the shape of the whole tensor."""
        return self.shape

    def gathered(self, y: Tensor) -> Tensor:
        """Return the whole tensor, of which this process has the part y."""
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            y, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        ).full_tensor()

    def own_part(self, whole: Tensor) -> Tensor:
        """Return the part of a whole tensor that belongs to this process."""
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(whole, self.mesh, self.placements, src_data_rank=None).to_local()

    def _on_whole(self, function: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        mapped = function(self.gathered(y[0])[None])[0].contiguous()
        return self.own_part(mapped)[None]


class Replicated(MirrorMap):
    """The map of a tensor that all processes of a group hold, as in ``DistributedDataParallel``.

    Args:
        mirror: Map of the tensor.
        group: Processes with the same values of the tensor and of its gradients.
    """

    def __init__(self, mirror: MirrorMap, group: ProcessGroup) -> None:
        super().__init__()
        self.mirror = mirror
        self.group = group

    def __deepcopy__(self, memo: dict[int, object]) -> Replicated:
        # A process group cannot be copied.
        return Replicated(copy.deepcopy(self.mirror, memo), self.group)

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.mirror._to_primal(y)

    def _direction(self, y: Tensor) -> Tensor:
        return self.mirror._direction(y)

    @property
    def direction_size(self) -> float:
        return self.mirror.direction_size

    def whole_shape(self, y: Tensor) -> torch.Size:
        """Return the shape of the tensor."""
        return y.shape

    def gathered(self, y: Tensor) -> Tensor:
        """Return the tensor."""
        return y

    def own_part(self, whole: Tensor) -> Tensor:
        """Return the tensor."""
        return whole


def replicas_of(model: nn.Module) -> ProcessGroup | None:
    """Return the processes that hold copies of a model, or None if there are no others."""
    wrapper: Any = getattr(model, "_orig_mod", model)
    if type(wrapper).__name__ != "DistributedDataParallel":
        return None
    group: ProcessGroup = wrapper.process_group
    return group if group.size() > 1 else None


def true_anywhere(flags: Tensor, tensors: list[Tensor]) -> Tensor:
    """Return the flags, combined by a logical or over the processes that share a tensor."""
    from torch.distributed.tensor import DTensor, Partial

    number = flags.float()
    for mesh in _meshes(tensors):
        number = DTensor.from_local(
            number, mesh, [Partial("max")] * mesh.ndim, run_check=False
        ).full_tensor()
    return number > 0


def total_norm(tensors: list[Tensor]) -> float:
    """√Σ‖·‖² over all entries on all processes."""
    norms = [torch.nn.utils.get_total_norm([t for t in tensors if not is_distributed(t)])]
    for mesh in _meshes(tensors):
        norm = torch.nn.utils.get_total_norm(
            [t for t in tensors if is_distributed(t) and t.device_mesh == mesh]
        )
        norms.append(norm.full_tensor() if is_distributed(norm) else norm)
    return math.hypot(*map(float, norms))


def _aligned(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient that is sharded like its parameter."""
    if (
        is_distributed(gradient)
        and is_distributed(parameter)
        and gradient.placements != parameter.placements
    ):
        return gradient.redistribute(placements=parameter.placements)
    return gradient


def _meshes(tensors: list[Tensor]) -> list[DeviceMesh]:
    return list(dict.fromkeys(tensor.device_mesh for tensor in tensors if is_distributed(tensor)))


def _sharded_like(parameter: DTensor, tensor: Tensor, name: str) -> Tensor:
    """Return the local part of a tensor that broadcasts to a parameter.

    Axes of length 1 are replicated.
    """
    from torch.distributed.tensor import distribute_tensor

    tensor = tensor.detach().reshape([1] * (parameter.ndim - tensor.ndim) + list(tensor.shape))
    placements = [_placement(placement, tensor, name) for placement in parameter.placements]
    return distribute_tensor(
        tensor.to(parameter.device), parameter.device_mesh, placements, src_data_rank=None
    ).to_local()


def _placement(placement: Placement, tensor: Tensor, name: str) -> Placement:
    from torch.distributed.tensor import Replicate, Shard

    if type(placement) not in (Replicate, Shard):
        raise ValueError(
            f"parameter {name} is sharded as {placement}, along which its map cannot be sharded: "
            f"shard it along one axis, or tie all entries of the tensor"
        )
    whole = placement.is_replicate() or tensor.shape[placement.dim] == 1  # type: ignore[attr-defined]
    return Replicate() if whole else placement


def _with_tensors(mirror: MirrorMap, changed: dict[str, Tensor]) -> MirrorMap:
    """Return a shallow copy of a map with some tensors replaced."""
    other = copy.copy(mirror)
    other._parameters = {
        name: tensor for name, tensor in mirror._parameters.items() if name not in changed
    }
    other._buffers = {**mirror._buffers, **changed}
    return other
