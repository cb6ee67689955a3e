"""Checks and clipping of gradients before a step."""

from operator import attrgetter

import torch
from torch import Tensor

from mirrordescent.execution.sharding import is_distributed, local_parts, total_norm, true_anywhere

_device = attrgetter("device")

SMALL = 8192
"""Entries below which tensors are summed together, because one kernel call for each is slower."""


def all_finite(gradients: list[Tensor]) -> bool:
    """Return whether every entry is finite, by one pass: a finite sum has finite terms."""
    if not gradients:
        return True
    suspicious = ~_sum(local_parts(gradients)).isfinite()
    if any(map(is_distributed, gradients)):
        suspicious = true_anywhere(suspicious, gradients)
    if not bool(suspicious):
        return True
    return not nonfinite_indices(gradients)  # finite terms may have an infinite sum


def nonfinite_indices(gradients: list[Tensor]) -> list[int]:
    """Return the indices of the gradients that have an entry that is not finite."""
    flags = torch.stack([~g.isfinite().all() for g in local_parts(gradients)])
    if any(map(is_distributed, gradients)):
        flags = true_anywhere(flags, gradients)
    return flags.nonzero().flatten().tolist()


def clipping_factor(gradients: list[Tensor], max_norm: float) -> float:
    """min(1, max_norm/‖g‖) for the norm of all gradients together, as in ``clip_grad_norm_``."""
    return min(1.0, max_norm / (total_norm(gradients) + 1e-6))


def _sum(tensors: list[Tensor]) -> Tensor:
    """Return the sum of all entries of all tensors."""
    devices = set(map(_device, tensors))
    if len(devices) == 1:
        return _sum_on_device(tensors)
    sums: list[Tensor] = []
    for device in devices:
        on_device = [tensor for tensor in tensors if tensor.device == device]
        sums.append(_sum_on_device(on_device).to(tensors[0].device))
    return torch.stack(sums).sum()


def _sum_on_device(tensors: list[Tensor]) -> Tensor:
    small: list[Tensor] = []
    sums: list[Tensor] = []
    for tensor in tensors:
        if tensor.numel() < SMALL:
            small.append(tensor)
        else:
            sums.append(tensor.sum().float())
    if small:
        sums.append(torch._utils._flatten_dense_tensors(small).sum().float())  # type: ignore[no-untyped-call]
    return torch.stack(sums).sum()
