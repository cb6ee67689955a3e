"""Small labelled images: MNIST and Fashion-MNIST, in the idx format."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from mirrordescent._internal.suggestions import require_known
from mirrordescent.data.directory import data_directory
from mirrordescent.data.errors import DataDamaged, reading
from mirrordescent.data.registry import require
from mirrordescent.data.splits import Split

Pooling: TypeAlias = Literal["max", "mean"]

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"
_STEMS = {"train": "train", "test": "t10k"}


def read_idx(path: str | Path) -> Tensor:
    """Read an idx file, plain or compressed by gzip.

    The format: two zero bytes, one for the type, one for the number d of dimensions, d big-endian
    32-bit sizes, then the entries, last index fastest.
    """
    raw = Path(path).read_bytes()
    if raw[:2] == _GZIP:
        with reading(f"{path} is cut off or damaged"):
            raw = gzip.decompress(raw)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _TYPES:
        raise DataDamaged(
            f"{path} is not an idx file: it begins with {raw[:4].hex(' ') or 'nothing'}"
        )
    header = 4 + 4 * raw[3]
    if len(raw) < header:
        raise DataDamaged(f"{path} is cut off inside its header")
    shape = struct.unpack(f">{raw[3]}I", raw[4:header])
    entry = np.dtype(_TYPES[raw[2]])
    held = len(raw) - header
    if held != math.prod(shape) * entry.itemsize:
        announced = f"{' × '.join(map(str, shape))} entries of {entry.itemsize} bytes"
        raise DataDamaged(f"{path} announces {announced} but holds {held} bytes")
    entries = np.frombuffer(raw, entry, offset=header).reshape(shape)
    return torch.from_numpy(entries.astype(entry.newbyteorder("=")))


def mnist(split: Split = "train", directory: str | Path | None = None) -> tuple[Tensor, Tensor]:
    """Return MNIST digits: images (n, 28, 28) in [0, 1] with ink = 1, labels (n,) of int64."""
    return _labelled("mnist", split, directory)


def fashion_mnist(
    split: Split = "train", directory: str | Path | None = None
) -> tuple[Tensor, Tensor]:
    """Return Fashion-MNIST: images (n, 28, 28) in [0, 1], labels (n,) of int64."""
    return _labelled("fashion-mnist", split, directory)


def halve(images: Tensor, pooling: Pooling = "max") -> Tensor:
    """Pool 2×2 blocks of (…, height, width): the downscaling of 28×28 to 14×14.

    >>> image = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    >>> halve(image), halve(image, "mean")
    (tensor([[1.]]), tensor([[0.2500]]))
    """
    require_known(pooling, get_args(Pooling), "pooling")
    height, width = images.shape[-2:]
    if height % 2 or width % 2:
        raise ValueError(f"2×2 pooling needs even sides, got {height}×{width}")
    blocks = images.reshape(*images.shape[:-2], height // 2, 2, width // 2, 2)
    return blocks.amax((-3, -1)) if pooling == "max" else blocks.mean((-3, -1))


def _labelled(name: str, split: Split, directory: str | Path | None) -> tuple[Tensor, Tensor]:
    require_known(split, _STEMS, "split")

    def read(stem: str) -> Tensor:
        unpacked = data_directory(directory) / name / stem  # by hand; it has no published checksum
        return read_idx(unpacked if unpacked.is_file() else require(name, f"{stem}.gz", directory))

    images, labels = (
        read(f"{_STEMS[split]}-{content}-ubyte") for content in ("images-idx3", "labels-idx1")
    )
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataDamaged(
            f"{name}: images {tuple(images.shape)} do not go with labels {tuple(labels.shape)}"
        )
    return images.float() / 255, labels.long()
