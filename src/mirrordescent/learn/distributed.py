"""Sharing the problems of a meta-step among processes started by ``torchrun``."""

import os
from collections.abc import Iterable

import torch
from torch import Tensor, distributed, nn


def join() -> tuple[int, int]:
    """Return (rank, world size), joining the group that ``torchrun`` set up, if it did."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        return 0, 1
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return distributed.get_rank(), distributed.get_world_size()


def share(items: Tensor, rank: int, world: int) -> Tensor:
    """Return this process's part of a batch."""
    if len(items) % world:
        raise ValueError(f"a batch of {len(items)} cannot be shared equally among {world} processes")
    return items.chunk(world)[rank]


def average(parameters: Iterable[nn.Parameter], *others: Tensor, world: int) -> None:
    """Replace gradients, and other tensors, by their means over all processes, in place."""
    if world == 1:
        return
    for tensor in [p.grad for p in parameters if p.grad is not None] + list(others):
        distributed.all_reduce(tensor)
        tensor /= world
