"""Collections of photographs, each with fixed parts for training and for testing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from mirrordescent._internal.suggestions import require_known
from mirrordescent.data.directory import data_directory
from mirrordescent.data.errors import DataDamaged, DataMissing
from mirrordescent.data.image_files import read_images, tiled, unpack_tar
from mirrordescent.data.pictures import bundled_photographs, user_pictures
from mirrordescent.data.registry import require
from mirrordescent.data.splits import Split, split_indices

BSDSSplit = Literal["train", "val", "test", "cbsd68"]
STLSplit = Literal["train", "test", "unlabeled"]

COLLECTIONS = ("bundled", "bsds500", "stl10")
_STL_SHAPE = (3, 96, 96)


def photographs(
    source: str | Path = "bundled",
    split: Split = "train",
    size: int = 96,
    directory: str | Path | None = None,
) -> Tensor:
    """Return square tiles of photographs: (n, 3, size, size) in [0, 1].

    Args:
        source: Source of the photographs, as for :func:`pictures`.
        split: Part of the photographs. No photograph has tiles in both parts.
        size: Side of the tiles.
        directory: Folder of the data sets.
    """
    return tiled(pictures(source, split, directory), size, str(source))


def pictures(
    source: str | Path = "bundled", split: Split = "train", directory: str | Path | None = None
) -> list[Tensor]:
    """Return whole photographs, (3, height, width) each.

    Args:
        source: "bundled" (part of scikit-image, needs no file), "bsds500", "stl10", or the path
            of a folder or an archive of pictures.
        split: Part of the photographs.
        directory: Folder of the data sets.
    """
    require_known(split, get_args(Split), "split")
    if source == "bundled":
        return bundled_photographs(split)
    if source == "bsds500":
        return bsds500(split, directory)
    if source == "stl10":
        return list(stl10(split, directory))
    if not Path(source).expanduser().exists():
        if isinstance(source, str) and Path(source).name == source:
            require_known(source, COLLECTIONS, "folder, archive or source of photographs")
        raise DataMissing(
            f"there is no folder or archive {source}; 'bundled' photographs need none"
        )
    return user_pictures(source, split)


def bsds500(split: BSDSSplit = "train", directory: str | Path | None = None) -> list[Tensor]:
    """Return photographs of BSDS500, 481×321 or 321×481 pixels.

    There are 200 for training, 100 for validation and 100 for testing. "cbsd68" is the denoising
    benchmark, a subset of the validation part. The official archive ``BSR_bsds500.tgz``, or its
    unpacked folder ``BSR``, is read as well; its test part has 200 pictures.
    """
    require_known(split, get_args(BSDSSplit), "split")
    if split != "cbsd68":
        return [picture for _, picture in _bsds_part(split, directory)]
    listed = set(require("bsds500", "cbsd68.txt", directory).read_text().split())
    return [
        picture
        for name, picture in _bsds_part("val", directory)
        if f"val/{Path(name).name}" in listed
    ]


def stl10(
    split: STLSplit = "train", directory: str | Path | None = None, count: int | None = None
) -> Tensor:
    """Return photographs of STL-10: (n, 3, 96, 96).

    If the official binary exists, packed or unpacked, it is read: 5000 photographs for training,
    8000 for testing, 100000 unlabelled. Otherwise the small archive of unlabelled images is read,
    of which a fixed random fifth is for testing.

    Args:
        split: Part of the data set.
        directory: Folder of the data sets.
        count: Number of photographs, from the first; all by default. All unlabelled ones are
            11 GB as floats.
    """
    require_known(split, get_args(STLSplit), "split")
    folder = data_directory(directory) / "stl10"
    packed = "stl10_binary.tar.gz"
    member = f"stl10_binary/{split}_X.bin"
    size = -1 if count is None else count * math.prod(_STL_SHAPE)
    if (folder / member).is_file():
        with require("stl10", member, directory).open("rb") as stream:
            return _stl_images(stream.read(size))
    if (folder / packed).is_file():
        archive = require("stl10", packed, directory)
        for _, content in unpack_tar(archive, lambda name: name == member, size):
            return _stl_images(content)
        raise DataDamaged(f"{archive} has no file {member}")
    subset = read_images(require("stl10", "stl10_subset.zip", directory), "unlabeled")
    images = torch.stack([picture for _, picture in subset])
    if split != "unlabeled":
        images = images[split_indices(split, len(images))]
    return images[:count]


def _bsds_part(split: str, directory: str | Path | None) -> list[tuple[str, Tensor]]:
    folder = data_directory(directory) / "bsds500"
    official = f"BSR/BSDS500/data/images/{split}"
    if not (folder / "BSDS500_images.zip").is_file():
        if (folder / official).is_dir():
            return list(read_images(folder, official))
        if (folder / "BSR_bsds500.tgz").is_file():
            return list(read_images(folder / "BSR_bsds500.tgz", official))
    return list(read_images(require("bsds500", "BSDS500_images.zip", directory), split))


def _stl_images(raw: bytes) -> Tensor:
    """Return images from bytes in the order image, channel, column, row."""
    by_column = np.frombuffer(raw, np.uint8).reshape(-1, *_STL_SHAPE)
    rows_first = np.ascontiguousarray(by_column.transpose(0, 1, 3, 2))
    return torch.from_numpy(rows_first).float().div_(255)
