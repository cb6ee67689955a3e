"""Collections of photographs, each with fixed parts for training and for testing."""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from mirrordescent.data.directory import data_directory
from mirrordescent.data.errors import DataDamaged, DataMissing, require_known
from mirrordescent.data.images import read_image, read_images, tiles
from mirrordescent.data.registry import require
from mirrordescent.data.splits import Split, part

BUNDLED: dict[str, tuple[str, ...]] = {
    "train": ("astronaut.png", "motorcycle_left.png", "rocket.jpg"),
    "test": ("chelsea.png", "coffee.png"),
}
SOURCES = ("bundled", "bsds500", "stl10")

BSDSSplit = Literal["train", "val", "test", "cbsd68"]
STLSplit = Literal["train", "test", "unlabeled"]

_STL_SHAPE = (3, 96, 96)


def photographs(
    source: str | Path = "bundled",
    split: Split = "train",
    size: int = 96,
    directory: str | Path | None = None,
) -> Tensor:
    """Return square tiles of photographs: (n, 3, size, size) in [0, 1].

    Args:
        source: "bundled" (with scikit-image, needs no file), "bsds500", "stl10", or the path of a folder or
            an archive of pictures.
        split: no picture has tiles in both parts.
        directory: the data directory, for the sources that have a name.
    """
    whole = pictures(source, split, directory)
    squares = torch.cat([tiles(picture, size) for picture in whole])
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
    """Return photographs of BSDS500, 481×321 or 321×481: 200 for training, 100 to validate, 100 to test.

    "cbsd68" is the denoising benchmark, all of it taken from the validation part. The official archive
    ``BSR_bsds500.tgz``, or its unpacked folder ``BSR``, is read as well; its test part has 200 pictures.
    """
    require_known(split, get_args(BSDSSplit), "split")
    if split == "cbsd68":
        listed = set(require("bsds500", "cbsd68.txt", directory).read_text().split())
        named = _bsds_part("val", directory)
        return [picture for name, picture in named if f"val/{Path(name).name}" in listed]
    return [picture for _, picture in _bsds_part(split, directory)]


def stl10(split: STLSplit = "train", directory: str | Path | None = None, count: int | None = None) -> Tensor:
    """Return photographs of STL-10, the first ``count`` of a part: (n, 3, 96, 96).

    From the official binary, packed or unpacked, if it is there: 5000 for training, 8000 for testing, 100000
    unlabelled (11 GB as float numbers: mind ``count``). Else from the small zip of unlabelled images, of
    which a fixed random fifth is the test part.
    """
    require_known(split, get_args(STLSplit), "split")
    folder = data_directory(directory) / "stl10"
    member = f"stl10_binary/{split}_X.bin"
    if (folder / member).is_file():
        return _stl_images(_read_start(require("stl10", member, directory), count))
    if (folder / "stl10_binary.tar.gz").is_file():
        return _stl_images(_unpack_start(require("stl10", "stl10_binary.tar.gz", directory), member, count))
    archive = require("stl10", "stl10_subset.zip", directory)
    images = torch.stack([picture for _, picture in read_images(archive, "unlabeled")])
    if split != "unlabeled":
        images = images[part(split, len(images))]
    return images[:count]


def user_pictures(source: str | Path, split: Split = "train") -> list[Tensor]:
    """Return the pictures of a user's folder or archive.

    Its folders ``train`` and ``test`` are the parts if it has both; otherwise a fixed random fifth of the
    pictures, in the order of their names, is for testing.
    """
    require_known(split, get_args(Split), "split")
    named = list(read_images(source))
    by_folder = {each: [p for name, p in named if name.startswith(f"{each}/")] for each in get_args(Split)}
    if all(by_folder.values()):
        return by_folder[split]
    if len(named) < 2:
        raise ValueError(f"{source} holds one picture, which cannot be both for training and for testing")
    return [named[int(index)][1] for index in part(split, len(named))]


def _bsds_part(split: str, directory: str | Path | None) -> list[tuple[str, Tensor]]:
    folder = data_directory(directory) / "bsds500"
    official = f"BSR/BSDS500/data/images/{split}"
    if not (folder / "BSDS500_images.zip").is_file():
        if (folder / official).is_dir():
            return list(read_images(folder, official))
        if (folder / "BSR_bsds500.tgz").is_file():
            return list(read_images(folder / "BSR_bsds500.tgz", official))
    return list(read_images(require("bsds500", "BSDS500_images.zip", directory), split))


def _stl_bytes(count: int | None) -> int:
    return -1 if count is None else count * int(np.prod(_STL_SHAPE))


def _read_start(path: Path, count: int | None) -> bytes:
    with path.open("rb") as stream:
        return stream.read(_stl_bytes(count))


def _unpack_start(archive: Path, member: str, count: int | None) -> bytes:
    try:
        with tarfile.open(archive) as opened:
            for entry in opened:
                if entry.name.removeprefix("./") == member:
                    stream = opened.extractfile(entry)
                    if stream is not None:
                        return stream.read(_stl_bytes(count))
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataDamaged(f"{archive} cannot be unpacked: {error}") from error
    raise DataDamaged(f"{archive} has no file {member}")


def _stl_images(raw: bytes) -> Tensor:
    """Turn bytes in the order image, channel, column, row into images."""
    by_column = np.frombuffer(raw, np.uint8).reshape(-1, *_STL_SHAPE)
    rows_first = np.ascontiguousarray(by_column.transpose(0, 1, 3, 2))
    return torch.from_numpy(rows_first).float().div_(255)
