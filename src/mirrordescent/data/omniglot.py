"""Omniglot: hand-drawn characters, and tasks to classify them from a few drawings."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from mirrordescent._internal.suggestions import require_known
from mirrordescent.data.errors import DataDamaged, reading
from mirrordescent.data.idx import halve
from mirrordescent.data.image_files import read_image
from mirrordescent.data.registry import require_any
from mirrordescent.data.splits import Split, split_indices

TEST_CHARACTERS = 423  # of 1623
DRAWINGS = 20
SIDE = 105
_CHARACTERS = {"images_background": 964, "images_evaluation": 659}


def omniglot_characters(
    split: Split | Literal["all"] = "train",
    size: Literal[105, 28, 14] = 28,
    directory: str | Path | None = None,
    seed: int = 0,
) -> Tensor:
    """Return drawings of characters: (characters, 20, size, size) in [0, 1] with ink = 1.

    A seeded permutation of all 1623 characters sets 1200 apart for training and 423 for testing.
    Images of 28×28 pixels are exact averages over areas of the 105×105 originals. Images of 14×14
    pixels are the maxima of 2×2 blocks of these.

    Args:
        split: "train", "test" or "all".
        size: Side of the images.
        directory: Folder of the data sets.
        seed: Seed of the permutation.
    """
    require_known(split, ("train", "test", "all"), "split")
    if size not in (SIDE, 28, 14):
        raise ValueError(f"size must be {SIDE}, 28 or 14, got {size}")
    total = sum(_CHARACTERS.values())
    if split == "all":
        chosen = torch.arange(total)
    else:
        chosen = split_indices(split, total, TEST_CHARACTERS, seed)
    chunks = []
    first = 0
    for stem, count in _CHARACTERS.items():
        paper = _read(stem, first, count, directory)
        inside = (chosen >= first) & (chosen < first + count)
        # Ten at a time: as floating-point numbers, all characters need gigabytes.
        batches = torch.split(chosen[inside] - first, 10)
        chunks += [_resized(1 - paper[batch].float(), size) for batch in batches]
        first += count
    return torch.cat(chunks)


class Tasks(NamedTuple):
    """A batch of classification tasks.

    Images are (tasks, n, height, width). Labels are (tasks, n), from 0 to way − 1.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def sample_tasks(
    characters: Tensor, count: int, way: int, shot: int, generator: Generator
) -> Tasks:
    """Draw tasks to tell characters apart, given a few drawings of each.

    The characters of a task are distinct. The drawings to learn from are drawn anew for every
    character of every task; the other drawings of these characters are for testing.

    Args:
        characters: Drawings (characters, drawings, height, width) from ``omniglot_characters``.
        count: Number of tasks.
        way: Number of characters in a task.
        shot: Number of drawings of each character to learn from.
        generator: Random generator.
    """
    if characters.ndim != 4:
        raise ValueError(
            "characters must be (characters, drawings, height, width), got "
            f"{tuple(characters.shape)}"
        )
    available, drawings = characters.shape[:2]
    if not 1 <= way <= available:
        raise ValueError(
            f"way must be between 1 and the number of characters, {available}; got {way}"
        )
    if not 1 <= shot < drawings:
        raise ValueError(
            f"shot must be between 1 and {drawings - 1}, to leave drawings for testing; got {shot}"
        )
    chosen = _orders((count, available), generator)[:, :way].to(characters.device)
    order = _orders((count, way, drawings), generator).to(characters.device)
    images = characters[chosen[..., None], order]
    labels = torch.arange(way, device=characters.device)[:, None].expand(count, way, drawings)
    parts = [shot, drawings - shot]
    train, test = (part.flatten(1, 2) for part in torch.split(images, parts, 2))
    train_labels, test_labels = (part.flatten(1) for part in torch.split(labels, parts, 2))
    return Tasks(train, train_labels, test, test_labels)


def area_average(images: Tensor, size: int) -> Tensor:
    """Average images (…, n, n) over the squares of a size×size grid.

    A pixel that lies in several squares counts in each by its share.

    >>> area_average(torch.tensor([[0.0, 0.0, 3.0]] * 3), 2)
    tensor([[0., 2.],
            [0., 2.]])
    """
    fine = images.shape[-1]
    width = images.shape[-1] / size
    left = torch.arange(size, dtype=torch.float64)[:, None] * width
    start = torch.arange(fine, dtype=torch.float64)
    covered = torch.minimum(left + width, start + 1) - torch.maximum(left, start)
    # The weight of every pixel in the mean of every square, along one side: (size, n).
    weights = (covered.clamp(min=0) / width).to(images)
    return ((images @ weights.T).mT @ weights.T).mT


def _orders(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Return random permutations of the last dimension."""
    return torch.rand(
        shape, generator=generator, device=generator.device, dtype=torch.float64
    ).argsort(-1)


def _resized(ink: Tensor, size: int) -> Tensor:
    if size == SIDE:
        return ink
    averaged = area_average(ink, 28).clamp_(0, 1)
    return halve(averaged) if size == 14 else averaged


def _read(stem: str, first: int, count: int, directory: str | Path | None) -> Tensor:
    """Return one part of the characters, True on paper and False on ink."""
    path = require_any("omniglot", (f"{stem}.npz", f"{stem}.zip"), directory)
    paper = _read_packed(path) if path.suffix == ".npz" else _read_official(path, first, count)
    if paper.shape != (count, DRAWINGS, SIDE, SIDE):
        raise DataDamaged(f"{path} holds images of shape {tuple(paper.shape)}")
    return paper


def _read_packed(path: Path) -> Tensor:
    fault = f"{path} is not a packed Omniglot file"
    with reading(fault), path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return torch.from_numpy(arrays["images"]).bool()


def _read_official(path: Path, first: int, count: int) -> Tensor:
    """Read 1-bit pictures, named by the numbers of character and drawing: ``…/0001_01.png``."""
    paper = torch.ones(count, DRAWINGS, SIDE, SIDE, dtype=torch.bool)
    read = 0
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if match := re.search(r"(\d{4})_(\d{2})\.png$", name):
                character = int(match[1]) - 1 - first
                drawing = int(match[2]) - 1
                paper[character, drawing] = (
                    read_image(io.BytesIO(archive.read(name)), f"{path}:{name}")[0] > 0.5
                )
                read += 1
    if read != count * DRAWINGS:
        raise DataDamaged(f"{path} holds {read} drawings instead of {count * DRAWINGS}")
    return paper
