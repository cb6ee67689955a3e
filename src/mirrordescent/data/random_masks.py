"""Shapes of what is missing in images: scattered pixels, blocks, scratches, and writing. 1 is
known, 0 is missing.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor

from mirrordescent._internal.extras import requires_extra


def scattered(size: int, generator: Generator, most: float = 0.9) -> Tensor:
    """Remove every pixel with the same probability, up to ``most``."""
    return (torch.rand(size, size, generator=generator) >= _between(0.02, most, generator)).float()


def blocks(size: int, generator: Generator, most: int = 5) -> Tensor:
    """Remove up to ``most`` rectangles, with sides of up to a third of the image."""
    mask = torch.ones(size, size)
    largest = max(4, size // 3)
    for _ in range(_whole(1, most, generator)):
        height, width = (min(size, _whole(3, largest, generator)) for _ in range(2))
        top = _whole(0, size - height, generator)
        left = _whole(0, size - width, generator)
        mask[top : top + height, left : left + width] = 0
    return mask


def scratches(size: int, generator: Generator, most: int = 11) -> Tensor:
    """Remove up to ``most`` straight lines of any direction, one to eight pixels wide."""
    mask = torch.ones(size, size)
    at = torch.arange(size)
    for _ in range(_whole(1, most, generator)):
        angle = _between(0, math.pi, generator)
        width = _between(0.5, 4, generator)
        down = math.sin(angle)
        along = math.cos(angle)
        offset = _between(0, size, generator) * down + _between(0, size, generator) * along
        mask[(at[:, None] * down + at * along - offset).abs() < width] = 0
    return mask


def writing(size: int, generator: Generator) -> Tensor:
    """Remove lines of text."""
    with requires_extra("pictures", "Masks in the shape of writing", "Pillow"):
        from PIL import Image, ImageDraw, ImageFont

    height = _whole(8, 23, generator)
    page = Image.new("L", (size, size), 255)
    pen = ImageDraw.Draw(page)
    font = ImageFont.load_default(height)
    for top in range(0, size, height + 2):
        line = "".join(chr(_whole(48, 121, generator)) for _ in range(30))
        pen.text((_whole(-10, 3, generator), top), line, fill=0, font=font)
    return torch.from_numpy((np.asarray(page) > 127).astype("float32"))


SHAPES: dict[str, Callable[[int, Generator], Tensor]] = {
    "scattered": scattered,
    "blocks": blocks,
    "scratches": scratches,
    "writing": writing,
}


def _between(low: float, high: float, generator: Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


def _whole(low: int, high: int, generator: Generator) -> int:
    """Return a whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))
