"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_whole(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    """Write a safetensors file so that a reader finds the old one or the new one, never half of one."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        # Copies: tied or sliced tensors share memory, which the format does not store.
        save_file({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, partial, metadata)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
