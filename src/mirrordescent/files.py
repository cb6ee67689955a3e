"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a path to write to, whose file then takes the place of ``path``: a reader finds the old one or the new."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    """Write a safetensors file so that a reader finds the old one or the new one, never half of one."""
    with whole(path) as partial:
        # Copies: tied or sliced tensors share memory, which the format does not store.
        save_file({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, partial, metadata)
