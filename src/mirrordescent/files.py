"""Files that are either whole or not there, and the content of tensors as bytes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a path to write to, whose file then replaces ``path``: a reader finds the old one or the new, never half."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    """Write a safetensors file as a whole."""
    with whole(path) as partial:
        # Copies: tied or sliced tensors share memory, which the format does not store.
        save_file({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, partial, metadata)


def content_of(tensor: Tensor) -> bytes:
    """Return the entries of a tensor of any type as bytes, in their order."""
    # A view of a single entry counts as contiguous whatever its stride is, so it has to be copied by format.
    flat = tensor.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes()
