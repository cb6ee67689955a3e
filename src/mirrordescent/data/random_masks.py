"""Random masks of missing pixels: scattered pixels, blocks, scratches and writing.

A mask is 1 at known pixels and 0 at missing pixels.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor

from mirrordescent._internal.extras import requires_extra


def scattered(size: int, generator: Generator, most: float = 0.9) -> Tensor:
    """Remove every pixel with the same probability, which is at most ``most``."""
    noise = torch.rand(size, size, generator=generator)
    return (noise >= _uniform(0.02, most, generator)).float()


def blocks(size: int, generator: Generator, most: int = 5) -> Tensor:
    """Remove at most ``most`` rectangles, with sides of at most a third of the image."""
    mask = torch.ones(size, size)
    largest = max(4, size // 3)
    for _ in range(_integer(1, most, generator)):
        height = min(size, _integer(3, largest, generator))
        width = min(size, _integer(3, largest, generator))
        top = _integer(0, size - height, generator)
        left = _integer(0, size - width, generator)
        mask[top : top + height, left : left + width] = 0
    return mask


def scratches(size: int, generator: Generator, most: int = 11) -> Tensor:
    """Remove at most ``most`` straight lines of any direction, one to eight pixels wide."""
    mask = torch.ones(size, size)
    at = torch.arange(size)
    for _ in range(_integer(1, most, generator)):
        angle = _uniform(0, math.pi, generator)
        width = _uniform(0.5, 4, generator)
        down = math.sin(angle)
        along = math.cos(angle)
        offset = _uniform(0, size, generator) * down + _uniform(0, size, generator) * along
        mask[(at[:, None] * down + at * along - offset).abs() < width] = 0
    return mask


def writing(size: int, generator: Generator) -> Tensor:
    """Remove lines of text."""
    with requires_extra("pictures", "Masks in the shape of writing", "Pillow"):
        from PIL import Image, ImageDraw, ImageFont

    height = _integer(8, 23, generator)
    page = Image.new("L", (size, size), 255)
    pen = ImageDraw.Draw(page)
    font = ImageFont.load_default(height)
    for top in range(0, size, height + 2):
        line = "".join(chr(_integer(48, 121, generator)) for _ in range(30))
        pen.text((_integer(-10, 3, generator), top), line, fill=0, font=font)
    return torch.from_numpy((np.asarray(page) > 127).astype("float32"))


SHAPES: dict[str, Callable[[int, Generator], Tensor]] = {
    "scattered": scattered,
    "blocks": blocks,
    "scratches": scratches,
    "writing": writing,
}


def _uniform(low: float, high: float, generator: Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


def _integer(low: int, high: int, generator: Generator) -> int:
    """Return a random integer from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))
