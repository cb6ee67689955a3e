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

    The file has two zero bytes, a byte for the type, a byte for the number d of dimensions, d
    sizes as big-endian 32-bit numbers, and the entries, last index fastest.
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
    stored_bytes = len(raw) - header
    if stored_bytes != math.prod(shape) * entry.itemsize:
        announced = f"{' × '.join(map(str, shape))} entries of {entry.itemsize} bytes"
        raise DataDamaged(f"{path} announces {announced} but holds {stored_bytes} bytes")
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
    """Halve the sides of images (…, height, width) by pooling blocks of 2×2 pixels.

    Args:
        images: Images with even sides.
        pooling: "max" or "mean".

    >>> image = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    >>> halve(image), halve(image, "mean")
    (tensor([[1.]]), tensor([[0.2500]]))
    """
    require_known(pooling, get_args(Pooling), "pooling")
    height, width = images.shape[-2:]
    if height % 2 or width % 2:
        raise ValueError(f"2×2 pooling needs even sides, got {height}×{width}")
    blocks = images.reshape(*images.shape[:-2], height // 2, 2, width // 2, 2)
    if pooling == "max":
        return blocks.amax((-3, -1))
    return blocks.mean((-3, -1))


def _labelled(name: str, split: Split, directory: str | Path | None) -> tuple[Tensor, Tensor]:
    require_known(split, _STEMS, "split")

    def read(content: str) -> Tensor:
        stem = f"{_STEMS[split]}-{content}-ubyte"
        unpacked = data_directory(directory) / name / stem
        if unpacked.is_file():  # unpacked by the user; it has no published checksum
            return read_idx(unpacked)
        return read_idx(require(name, f"{stem}.gz", directory))

    images = read("images-idx3")
    labels = read("labels-idx1")
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataDamaged(
            f"{name}: images {tuple(images.shape)} do not match labels {tuple(labels.shape)}"
        )
    return images.float() / 255, labels.long()
