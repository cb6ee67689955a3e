"""Pictures and digits that need no download, and pictures of a user's own."""

from pathlib import Path
from typing import get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent._internal.suggestions import require_known
from mirrordescent.data.errors import DataMissing
from mirrordescent.data.image_files import read_image, read_images, tiled
from mirrordescent.data.splits import Split, split_indices

BUNDLED: dict[str, tuple[str, ...]] = {
    "train": ("astronaut.png", "motorcycle_left.png", "rocket.jpg"),
    "test": ("chelsea.png", "coffee.png"),
}


def photographs(source: str | Path = "bundled", split: Split = "train", size: int = 96) -> Tensor:
    """Return square tiles of photographs: (n, 3, size, size) in [0, 1].

    Args:
        source: "bundled" (with scikit-image, needs no file), or the path of a folder or an archive
            of pictures.
        split: no picture has tiles in both parts.
        size: side of the tiles.
    """
    return tiled(pictures(source, split), size, str(source))


def pictures(source: str | Path = "bundled", split: Split = "train") -> list[Tensor]:
    """Return whole photographs, (3, height, width) each, of the same sources as ``photographs``."""
    require_known(split, get_args(Split), "split")
    if source == "bundled":
        return bundled_photographs(split)
    if not Path(source).expanduser().exists():
        raise DataMissing(
            f"there is no folder or archive {source}; 'bundled' photographs need none"
        )
    return user_pictures(source, split)


def bundled_photographs(split: Split = "train") -> list[Tensor]:
    """Return the colour photographs in the scikit-image package: three for training, two for
    testing.
    """
    require_known(split, BUNDLED, "split")
    import skimage

    # Read as files, because asking skimage.data for one that a distribution left out starts a
    # download.
    folder = Path(skimage.__file__).parent / "data"
    return [read_image(folder / name) for name in BUNDLED[split]]


def user_pictures(source: str | Path, split: Split = "train") -> list[Tensor]:
    """Return the pictures of a user's folder or archive.

    Its folders ``train`` and ``test`` are the parts if it has both; otherwise a fixed random fifth
    of the pictures, in the order of their names, is for testing.
    """
    require_known(split, get_args(Split), "split")
    named = list(read_images(source))
    by_folder = {
        each: [p for name, p in named if name.startswith(f"{each}/")] for each in get_args(Split)
    }
    if all(by_folder.values()):
        return by_folder[split]
    if len(named) < 2:
        raise ValueError(
            f"{source} holds one picture, which cannot be both for training and for testing"
        )
    return [named[int(index)][1] for index in split_indices(split, len(named))]


def digits(split: Split = "train", size: int = 8) -> tuple[Tensor, Tensor]:
    """Return the 8×8 digits that come with scikit-learn, enlarged bilinearly to another size on
    request.

    1797 images in [0, 1], of which a fixed random fifth is for testing. They need no download.

    >>> images, labels = digits("test")
    >>> images.shape, labels.dtype
    (torch.Size([359, 8, 8]), torch.int64)
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    kept = split_indices(split, len(bunch.target))
    images = torch.from_numpy(bunch.images)[kept].float() / 16
    if size != 8:
        images = F.interpolate(
            images[:, None], size=(size, size), mode="bilinear", align_corners=False
        )[:, 0]
    return images, torch.from_numpy(bunch.target)[kept].long()
