"""The collections of photographs that the experiments use, each with fixed parts for training and
for testing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from mirrordescent import data
from mirrordescent._internal.suggestions import require_known
from mirrordescent.data.errors import DataDamaged
from mirrordescent.data.image_files import read_images, tiled, unpack_tar
from mirrordescent.data.splits import Split, split_indices
from mirrordescent_lab.data.directory import data_directory
from mirrordescent_lab.data.registry import require

BSDSSplit = Literal["train", "val", "test", "cbsd68"]
STLSplit = Literal["train", "test", "unlabeled"]

_STL_SHAPE = (3, 96, 96)


def photographs(
    source: str | Path = "bundled",
    split: Split = "train",
    size: int = 96,
    directory: str | Path | None = None,
) -> Tensor:
    """Return square tiles of photographs, (n, 3, size, size) in [0, 1], of the sources of
    ``pictures``.
    """
    return tiled(pictures(source, split, directory), size, str(source))


def pictures(
    source: str | Path = "bundled", split: Split = "train", directory: str | Path | None = None
) -> list[Tensor]:
    """Return whole photographs, (3, height, width) each: of "bsds500", "stl10", or any source of
    the library.
    """
    require_known(split, get_args(Split), "split")
    if isinstance(source, str) and not Path(source).expanduser().exists():
        require_known(
            source, ("bundled", "bsds500", "stl10"), "folder, archive or source of photographs"
        )
    if source == "bsds500":
        return bsds500(split, directory)
    return list(stl10(split, directory)) if source == "stl10" else data.pictures(source, split)


def bsds500(split: BSDSSplit = "train", directory: str | Path | None = None) -> list[Tensor]:
    """Return photographs of BSDS500, 481×321 or 321×481: 200 for training, 100 for validation, 100
    for testing.

    "cbsd68" is the denoising benchmark, all of it taken from the validation part. The official
    archive ``BSR_bsds500.tgz``, or its unpacked folder ``BSR``, is read as well; its test part has
    200 pictures.
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
    """Return photographs of STL-10, the first ``count`` of a part: (n, 3, 96, 96).

    From the official binary, packed or unpacked, if it is there: 5000 for training, 8000 for
    testing, 100000 unlabelled (11 GB as floats, so mind ``count``). Otherwise from the small zip of
    unlabelled images, of which a fixed random fifth is for testing.
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
    return (images if split == "unlabeled" else images[split_indices(split, len(images))])[:count]


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
    """Turn bytes in the order image, channel, column, row into images."""
    by_column = np.frombuffer(raw, np.uint8).reshape(-1, *_STL_SHAPE)
    rows_first = np.ascontiguousarray(by_column.transpose(0, 1, 3, 2))
    return torch.from_numpy(rows_first).float().div_(255)
