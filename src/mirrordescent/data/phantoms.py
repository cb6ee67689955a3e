"""Random ellipse phantoms, the test objects of computed tomography."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent.data.image_files import require_size

MEAN_COUNT = 40
LARGEST_COUNT = 70
_CHUNK = 64  # images rasterised at a time, which bounds the memory


class Ellipses(NamedTuple):
    """Ellipses in the square [−1, 1]². All fields are (images, 70); value 0 means no ellipse."""

    value: Tensor
    first_axis: Tensor
    second_axis: Tensor
    x: Tensor
    y: Tensor
    rotation: Tensor


def random_ellipses(count: int, generator: Generator) -> Ellipses:
    """Draw min(Poisson(40), 70) ellipses per image.

    value ~ U(−0.4, 1),  semi-axes ~ 0.2·Exp(1),  centre ~ U(−0.9, 0.9)²,  rotation ~ U(0, 2π).
    """
    shape = (count, LARGEST_COUNT)
    device = generator.device

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator, device=device)

    def axis() -> Tensor:
        return -0.2 * torch.log1p(-torch.rand(shape, generator=generator, device=device))

    number = torch.poisson(
        torch.full((count, 1), float(MEAN_COUNT), device=device), generator=generator
    )
    present = torch.arange(LARGEST_COUNT, device=device) < number
    value = uniform(-0.4, 1.0)
    axes = (axis(), axis())
    centre = (uniform(-0.9, 0.9), uniform(-0.9, 0.9))
    return Ellipses(value * present, *axes, *centre, uniform(0.0, 2 * math.pi))


def rasterise(ellipses: Ellipses, size: int) -> Tensor:
    """Return images (images, 1, size, size): the sum of the values of all ellipses at a pixel."""
    require_size(size)
    value = ellipses.value
    centres = (torch.arange(size, dtype=value.dtype, device=value.device) + 0.5) * (2 / size) - 1
    image = value.new_zeros(value.shape[0], size, size)
    fields = (field.T[..., None, None] for field in ellipses)
    for height, first, second, x, y, rotation in zip(*fields, strict=True):
        right = centres - x
        up = centres[:, None] - y
        cosine = rotation.cos()
        sine = rotation.sin()
        along = (cosine * right + sine * up) / first
        across = (cosine * up - sine * right) / second
        image += height * (along.square() + across.square() <= 1)
    return image.unsqueeze(1)


def normalise(images: Tensor) -> Tensor:
    """Scale every image to [0, 1].

    Non-zero pixels are shifted by the minimum, then all pixels are divided by the maximum.
    """
    shifted = torch.where(images != 0, images - images.amin((-2, -1), keepdim=True), images)
    largest = shifted.amax((-2, -1), keepdim=True)
    return shifted / torch.where(largest > 0, largest, 1)


def ellipse_phantoms(count: int, size: int = 128, *, generator: Generator) -> Tensor:
    """Draw ellipse phantoms: (count, 1, size, size) in [0, 1].

    >>> ellipse_phantoms(2, 16, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 1, 16, 16])
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    ellipses = random_ellipses(count, generator)
    chunks = zip(*(torch.split(field, _CHUNK) for field in ellipses), strict=True)
    return torch.cat([normalise(rasterise(Ellipses(*chunk), size)) for chunk in chunks])
