"""Collections of photographs, each with fixed parts for training and for testing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from mirrordescent.data.directory import DataDamaged, DataMissing, data_directory
from mirrordescent.data.images import read_image, read_images, tiles, unpack_tar
from mirrordescent.data.registry import require
from mirrordescent.data.splits import Split, split_indices
from mirrordescent.names import require_known

BUNDLED: dict[str, tuple[str, ...]] = {
    "train": ("astronaut.png", "motorcycle_left.png", "rocket.jpg"),
    "test": ("chelsea.png", "coffee.png"),
}
SOURCES = ("bundled", "bsds500", "stl10")

BSDSSplit = Literal["train", "val", "test", "cbsd68"]
STLSplit = Literal["train", "test", "unlabeled"]

_STL_SHAPE = (3, 96, 96)


def photographs(
    source: str | Path = "bundled", split: Split = "train", size: int = 96, directory: str | Path | None = None
) -> Tensor:
    """Return square tiles of photographs: (n, 3, size, size) in [0, 1].

    Args:
        source: "bundled" (with scikit-image, needs no file), "bsds500", "stl10", or the path of a folder or an archive
            of pictures.
        split: no picture has tiles in both parts.
        directory: the data directory, for the sources that have a name.
    """
    squares = torch.cat([tiles(picture, size) for picture in pictures(source, split, directory)])
    if len(squares) == 0:
        raise ValueError(f"no picture of {source} holds a tile of {size}×{size}")
    return squares


def pictures(
    source: str | Path = "bundled", split: Split = "train", directory: str | Path | None = None
) -> list[Tensor]:
    """Return whole photographs, (3, height, width) each, of the same sources as ``photographs``."""
    require_known(split, get_args(Split), "split")
    if source == "bundled":
        return bundled_photographs(split)
    if source == "bsds500":
        return bsds500(split, directory)
    if source == "stl10":
        return list(stl10(split, directory))
    if not Path(source).expanduser().exists():
        if isinstance(source, str):
            require_known(source, SOURCES, "folder, archive or source of photographs")
        raise DataMissing(f"there is no folder or archive {source}")
    return user_pictures(source, split)


def bundled_photographs(split: Split = "train") -> list[Tensor]:
    """Return the colour photographs in the scikit-image package: three for training, two for testing."""
    require_known(split, BUNDLED, "split")
    import skimage

    # Read as files, because asking skimage.data for one that a distribution left out starts a download.
    folder = Path(skimage.__file__).parent / "data"
    return [read_image(folder / name) for name in BUNDLED[split]]


def bsds500(split: BSDSSplit = "train", directory: str | Path | None = None) -> list[Tensor]:
    """Return photographs of BSDS500, 481×321 or 321×481: 200 for training, 100 for validation, 100 for testing.

    "cbsd68" is the denoising benchmark, all of it taken from the validation part. The official archive
    ``BSR_bsds500.tgz``, or its unpacked folder ``BSR``, is read as well; its test part has 200 pictures.
    """
    require_known(split, get_args(BSDSSplit), "split")
    if split != "cbsd68":
        return [picture for _, picture in _bsds_part(split, directory)]
    listed = set(require("bsds500", "cbsd68.txt", directory).read_text().split())
    return [picture for name, picture in _bsds_part("val", directory) if f"val/{Path(name).name}" in listed]


def stl10(split: STLSplit = "train", directory: str | Path | None = None, count: int | None = None) -> Tensor:
    """Return photographs of STL-10, the first ``count`` of a part: (n, 3, 96, 96).

    From the official binary, packed or unpacked, if it is there: 5000 for training, 8000 for testing, 100000 unlabelled
    (11 GB as float numbers: mind ``count``). Otherwise from the small zip of unlabelled images, of which a fixed random
    fifth is for testing.
    """
    require_known(split, get_args(STLSplit), "split")
    folder, packed = data_directory(directory) / "stl10", "stl10_binary.tar.gz"
    member, size = f"stl10_binary/{split}_X.bin", -1 if count is None else count * math.prod(_STL_SHAPE)
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


def user_pictures(source: str | Path, split: Split = "train") -> list[Tensor]:
    """Return the pictures of a user's folder or archive.

    Its folders ``train`` and ``test`` are the parts if it has both; otherwise a fixed random fifth of the pictures, in
    the order of their names, is for testing.
    """
    require_known(split, get_args(Split), "split")
    named = list(read_images(source))
    by_folder = {each: [p for name, p in named if name.startswith(f"{each}/")] for each in get_args(Split)}
    if all(by_folder.values()):
        return by_folder[split]
    if len(named) < 2:
        raise ValueError(f"{source} holds one picture, which cannot be both for training and for testing")
    return [named[int(index)][1] for index in split_indices(split, len(named))]


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
