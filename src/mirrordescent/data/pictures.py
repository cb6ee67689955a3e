"""Photographs and digits that need no download, and a user's own pictures."""

from pathlib import Path
from typing import get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent._internal.extras import requires_extra
from mirrordescent._internal.suggestions import require_known
from mirrordescent.data.image_files import read_image, read_images
from mirrordescent.data.splits import Split, split_indices

BUNDLED: dict[str, tuple[str, ...]] = {
    "train": ("astronaut.png", "motorcycle_left.png", "rocket.jpg"),
    "test": ("chelsea.png", "coffee.png"),
}


def bundled_photographs(split: Split = "train") -> list[Tensor]:
    """Return colour photographs of scikit-image: three for training, two for testing."""
    require_known(split, BUNDLED, "split")
    with requires_extra("pictures", "Using the bundled photographs", "scikit-image"):
        import skimage
    # skimage.data would download files that a distribution left out, so the files are read here.
    folder = Path(skimage.__file__).parent / "data"
    return [read_image(folder / name) for name in BUNDLED[split]]


def user_pictures(source: str | Path, split: Split = "train") -> list[Tensor]:
    """Return the pictures of a folder or an archive.

    If it has folders ``train`` and ``test``, they are the two parts. Otherwise a fixed random
    fifth of the pictures, sorted by name, is for testing.
    """
    require_known(split, get_args(Split), "split")
    named = list(read_images(source))
    by_folder: dict[str, list[Tensor]] = {part: [] for part in get_args(Split)}
    for name, picture in named:
        folder = name.partition("/")[0]
        if folder in by_folder and folder != name:
            by_folder[folder].append(picture)
    if all(by_folder.values()):
        return by_folder[split]
    if len(named) < 2:
        raise ValueError(
            f"{source} must hold at least two pictures, got one picture: "
            "one is needed for training and another for testing"
        )
    return [named[int(index)][1] for index in split_indices(split, len(named))]


def digits(split: Split = "train", size: int = 8) -> tuple[Tensor, Tensor]:
    """Return images and labels of the 8×8 digits that come with scikit-learn.

    There are 1797 images in [0, 1], of which a fixed random fifth is for testing. They need no
    download.

    Args:
        split: "train" or "test".
        size: Side of the images; if it is not 8, they are enlarged bilinearly.

    >>> images, labels = digits("test")
    >>> images.shape, labels.dtype
    (torch.Size([359, 8, 8]), torch.int64)
    """
    with requires_extra("digits", "Using the bundled digits", "scikit-learn"):
        from sklearn.datasets import load_digits

    bunch = load_digits()
    chosen = split_indices(split, len(bunch.target))
    images = torch.from_numpy(bunch.images)[chosen].float() / 16
    if size != 8:
        images = F.interpolate(
            images[:, None], size=(size, size), mode="bilinear", align_corners=False
        )[:, 0]
    return images, torch.from_numpy(bunch.target)[chosen].long()
