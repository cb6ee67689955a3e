"""Sharing work among processes started by ``torchrun``: the problems of a meta-step, or whole
searches.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

T = TypeVar("T")
_ALONE = ContextVar("_ALONE", default=False)


def join(patience: timedelta | None = None) -> tuple[int, int]:
    """Return (rank, world size), joining the group that ``torchrun`` set up, if it did.

    ``patience`` is how long processes wait for each other, where that is longer than torch would.
    """
    if _ALONE.get() or "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        return 0, 1
    if not distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=patience)
        # Threads of a group that is still there may abort a process that ends.
        atexit.register(
            lambda: distributed.is_initialized() and distributed.destroy_process_group()
        )
    return distributed.get_rank(), distributed.get_world_size()


@contextmanager
def alone() -> Iterator[None]:
    """Let this process learn by itself inside, though there are others."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def agreed(choose: Callable[[], T], rank: int, world: int) -> T:
    """Return, in every process, what the first of them chooses: numbers, texts, lists and tables of
    them.

    Where it fails, the others fail too.
    """
    if world == 1:
        return choose()
    if rank > 0:
        message = json.loads(_told(None))
        if "failed" in message:
            raise RuntimeError(f"the first process failed: {message['failed']}")
        return message["chosen"]
    try:
        chosen = choose()
    except Exception as error:
        _told(json.dumps({"failed": str(error)}))
        raise
    _told(json.dumps({"chosen": chosen}))
    return chosen


def _told(text: str | None) -> str:
    """Send a text from the first process to the others, or receive it."""
    content = torch.tensor(list((text or "").encode()), dtype=torch.uint8)
    length = torch.tensor([len(content)])
    distributed.broadcast(length, 0)
    content = torch.empty(int(length), dtype=torch.uint8) if text is None else content
    distributed.broadcast(content, 0)
    return bytes(content.tolist()).decode()


@torch.no_grad()
def hand_round(module: nn.Module, owner: int, world: int) -> None:
    """Give the numbers of a module, as one process has them, to all the others."""
    if world > 1:
        for tensor in module.state_dict().values():
            distributed.broadcast(tensor, owner)


def share(items: Tensor, rank: int, world: int) -> Tensor:
    """Return this process's part of a batch."""
    if len(items) % world:
        raise ValueError(
            f"a batch of {len(items)} cannot be shared equally among {world} processes"
        )
    return items.chunk(world)[rank]


def average(parameters: Iterable[nn.Parameter], *others: Tensor, world: int) -> None:
    """Replace gradients, and other tensors, by their means over all processes, in place."""
    if world == 1:
        return
    found: list[Any] = [p.grad for p in parameters if p.grad is not None]
    for tensor in [*found, *others]:
        distributed.all_reduce(tensor)
        tensor /= world
