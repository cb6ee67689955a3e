"""What is done with gradients before a method sees them: they are checked and clipped."""

import torch
from torch import Tensor

from mirrordescent.optim.sharding import is_distributed, local_parts, total_norm, true_anywhere

# entries; tensors of fewer are looked at together, since a kernel each would take longer than the
# look
SMALL = 8192


def all_finite(gradients: list[Tensor]) -> bool:
    """Tell whether every entry is finite, in one pass where it is: a sum is finite only if its
    terms are.
    """
    if not gradients:
        return True
    unsure = ~_sum(local_parts(gradients)).isfinite()
    if any(map(is_distributed, gradients)):
        unsure = true_anywhere(unsure, gradients)
    return not bool(unsure) or not nonfinite(gradients)  # a sum may also overflow


def nonfinite(gradients: list[Tensor]) -> list[int]:
    """Return the indices of the gradients that have an entry that is not finite."""
    flags = torch.stack([~g.isfinite().all() for g in local_parts(gradients)])
    if any(map(is_distributed, gradients)):
        flags = true_anywhere(flags, gradients)
    return flags.nonzero().flatten().tolist()


def clipping(gradients: list[Tensor], largest: float) -> float:
    """min(1, largest/‖g‖), for the norm of all gradients together; as in ``clip_grad_norm_``."""
    return min(1.0, largest / (total_norm(gradients) + 1e-6))


def _sum(tensors: list[Tensor]) -> Tensor:
    """Return the sum of everything."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor)
    sums = [_sum_on_device(together).to(tensors[0].device) for together in by_device.values()]
    return torch.stack(sums).sum()


def _sum_on_device(tensors: list[Tensor]) -> Tensor:
    small = [tensor for tensor in tensors if tensor.numel() < SMALL]
    sums = [tensor.sum().float() for tensor in tensors if tensor.numel() >= SMALL]
    if small:
        sums.append(torch._utils._flatten_dense_tensors(small).sum().float())  # type: ignore[no-untyped-call]
    return torch.stack(sums).sum()
