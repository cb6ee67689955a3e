"""Omniglot: hand-drawn characters, and the few-shot classification tasks made of them."""

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

    1200 characters for training and 423 for testing, by a seeded permutation of all 1623. The 28×28
    images are exact averages over areas of the 105×105 originals, the 14×14 ones 2×2 maxima of
    those.
    """
    require_known(split, ("train", "test", "all"), "split")
    if size not in (SIDE, 28, 14):
        raise ValueError(f"Omniglot comes in sizes {SIDE}, 28 and 14, not {size}")
    total = sum(_CHARACTERS.values())
    kept = (
        torch.arange(total)
        if split == "all"
        else split_indices(split, total, TEST_CHARACTERS, seed)
    )
    chunks = []
    first = 0
    for stem, count in _CHARACTERS.items():
        paper = _read(stem, first, count, directory)
        mine = kept[(kept >= first) & (kept < first + count)] - first
        # A few at a time: as floating-point numbers, all of them need gigabytes.
        chunks += [_shrunk(1 - paper[some].float(), size) for some in torch.split(mine, 10)]
        first += count
    return torch.cat(chunks)


class Tasks(NamedTuple):
    """A batch of classification tasks: images (tasks, n, height, width) and labels (tasks, n) in 0,
    …, way − 1.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def sample_tasks(
    characters: Tensor, count: int, way: int, shot: int, generator: Generator
) -> Tasks:
    """Draw ``count`` tasks: tell ``way`` characters apart, given ``shot`` drawings of each.

    The other drawings of the same characters are for testing. Characters of a task are distinct;
    which drawings are learned from is drawn afresh for every character of every task.

    Args:
        characters: (characters, drawings, height, width), as ``omniglot_characters`` returns them.
    """
    if characters.ndim != 4:
        raise ValueError(
            f"characters must be (characters, drawings, height, width), got {tuple(characters.shape)}"
        )
    available, drawings = characters.shape[:2]
    if not 1 <= way <= available:
        raise ValueError(
            f"way must be between 1 and the {available} characters there are, got {way}"
        )
    if not 1 <= shot < drawings:
        raise ValueError(f"shot must leave a test part of the {drawings} drawings, got {shot}")
    chosen = _orders((count, available), generator)[:, :way].to(characters.device)
    order = _orders((count, way, drawings), generator).to(characters.device)
    images = characters[chosen[..., None], order]
    labels = torch.arange(way, device=characters.device)[:, None].expand(count, way, drawings)
    parts = [shot, drawings - shot]
    train, test = (part.flatten(1, 2) for part in torch.split(images, parts, 2))
    train_labels, test_labels = (part.flatten(1) for part in torch.split(labels, parts, 2))
    return Tasks(train, train_labels, test, test_labels)


def area_average(images: Tensor, size: int) -> Tensor:
    """Average (…, n, n) over the squares of a size×size grid laid over it; pixels count by their
    share of a square.

    >>> area_average(torch.tensor([[0.0, 0.0, 3.0]] * 3), 2)
    tensor([[0., 2.],
            [0., 2.]])
    """
    fine = images.shape[-1]
    width = images.shape[-1] / size
    left = torch.arange(size, dtype=torch.float64)[:, None] * width
    start = torch.arange(fine, dtype=torch.float64)
    covered = torch.minimum(left + width, start + 1) - torch.maximum(left, start)
    # The share of every pixel in the mean of every square, along one side: (size, n), rows sum to
    # 1.
    weights = (covered.clamp(min=0) / width).to(images)
    return ((images @ weights.T).mT @ weights.T).mT


def _orders(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Return random permutations of the last dimension."""
    return torch.rand(
        shape, generator=generator, device=generator.device, dtype=torch.float64
    ).argsort(-1)


def _shrunk(ink: Tensor, size: int) -> Tensor:
    middle = area_average(ink, 28).clamp_(0, 1) if size < SIDE else ink
    return halve(middle) if size == 14 else middle


def _read(stem: str, first: int, count: int, directory: str | Path | None) -> Tensor:
    """Return one half of the characters, True on paper, packed or from the official archive."""
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
    """Read 1-bit pictures named by character and drawing, both from 1: ``…/0001_01.png``."""
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
