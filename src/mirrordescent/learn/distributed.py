"""Work shared among processes that ``torchrun`` started: batches of problems, or whole searches."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn

T = TypeVar("T")
_SINGLE_PROCESS = ContextVar("_SINGLE_PROCESS", default=False)


def join(timeout: timedelta | None = None) -> tuple[int, int]:
    """Join the process group of ``torchrun``, if there is one, and return (rank, world size).

    Args:
        timeout: Time that processes wait for each other. The default is that of torch.
    """
    if _SINGLE_PROCESS.get() or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return 0, 1
    if not distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=timeout)
        atexit.register(_leave)
    return distributed.get_rank(), distributed.get_world_size()


def _leave() -> None:
    """Leave the process group. Its threads may otherwise abort a process that exits."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


@contextmanager
def single_process() -> Iterator[None]:
    """Let this process work on its own in this context, even if there are other processes."""
    token = _SINGLE_PROCESS.set(True)
    try:
        yield
    finally:
        _SINGLE_PROCESS.reset(token)


def broadcast_result(compute: Callable[[], T], rank: int, world: int) -> T:
    """Call a function in the first process and return its result in every process.

    If the function fails in the first process, all processes fail.

    Args:
        compute: Function whose result consists of numbers, texts, lists and dicts.
        rank: Rank of this process.
        world: Number of processes.
    """
    if world == 1:
        return compute()
    if rank > 0:
        message = json.loads(_receive())
        if "failed" in message:
            raise RuntimeError(f"the first process failed: {message['failed']}")
        return message["result"]
    try:
        result = compute()
    except Exception as error:
        _send(json.dumps({"failed": str(error)}))
        raise
    _send(json.dumps({"result": result}))
    return result


def _send(text: str) -> None:
    """Send a text from the first process to all others."""
    content = torch.tensor(list(text.encode()), dtype=torch.uint8)
    distributed.broadcast(torch.tensor([len(content)]), 0)
    distributed.broadcast(content, 0)


def _receive() -> str:
    """Receive the text that the first process sends."""
    length = torch.tensor([0])
    distributed.broadcast(length, 0)
    content = torch.empty(int(length), dtype=torch.uint8)
    distributed.broadcast(content, 0)
    return bytes(content.tolist()).decode()


@torch.no_grad()
def broadcast_module(module: nn.Module, source: int, world: int) -> None:
    """Copy the parameters and buffers of a module from one process to all others, in place.

    Args:
        module: Module with the same structure in every process.
        source: Rank of the process that sends.
        world: Number of processes.
    """
    if world == 1:
        return
    for tensor in module.state_dict().values():
        distributed.broadcast(tensor, source)


def local_share(items: Tensor, rank: int, world: int) -> Tensor:
    """Return the part of a batch that belongs to this process."""
    if len(items) % world:
        raise ValueError(
            f"the batch must be divisible by the number of processes, got a batch of {len(items)} "
            f"and {world} processes"
        )
    return items.chunk(world)[rank]


def average_gradients(parameters: Iterable[nn.Parameter], *tensors: Tensor, world: int) -> None:
    """Replace gradients, and further tensors, by their means over all processes, in place."""
    if world == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for tensor in [*gradients, *tensors]:
        distributed.all_reduce(tensor)
        tensor /= world
