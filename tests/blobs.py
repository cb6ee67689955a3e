"""Gaussians, of which all projections are known."""

from __future__ import annotations

import math

import torch

DOUBLE = torch.float64


def blob(size, x=0.3, y=-0.2, width=0.12):
    """A Gaussian, whose projections are Gaussians: (1, 1, size, size)."""
    centres = (torch.arange(size, dtype=DOUBLE) + 0.5) * (2 / size) - 1
    u = centres
    v = -centres[:, None]
    return torch.exp(-((u - x).square() + (v - y).square()) / (2 * width**2))[None, None]


def blob_projections(angles, s, x=0.3, y=-0.2, width=0.12):
    middle = x * angles.cos() + y * angles.sin()
    return (
        width * math.sqrt(2 * math.pi) * torch.exp(-(s - middle[:, None]).square() / (2 * width**2))
    )


def round_image(generator):
    """A smooth random image of odd size that is zero outside the circle, as scikit-image
    wants it.
    """
    size = 65
    image = sum(
        blob(size, float(x), float(y), 0.08) * float(height)
        for x, y, height in torch.rand(6, 3, generator=generator) - 0.5
    )
    rows = torch.arange(size, dtype=DOUBLE) - size // 2
    return image * (rows.square() + rows[:, None].square() <= (size // 2) ** 2)
