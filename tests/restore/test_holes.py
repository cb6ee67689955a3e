"""Holes in photographs whose known pixels are kept."""

from __future__ import annotations

import numpy as np
import torch
from skimage.restoration import inpaint_biharmonic

import mirrordescent as md
from mirrordescent.restore.deep_holes import fill_holes, smooth_holes


def damaged(missing=0.3, size=48):
    image = md.data.bundled_photographs("train")[0][:, 100 : 100 + size, 200 : 200 + size]
    return image, torch.rand(
        1, 1, size, size, generator=torch.Generator().manual_seed(0)
    ) >= missing


def test_small_holes_become_biharmonic():
    image, mask = damaged()
    start = torch.where(mask, image, md.TVInpainting(mask * image, mask).start(fill=True))
    smooth = smooth_holes(start, mask, steps=100)[0]
    known = mask[0, 0].numpy()
    other = inpaint_biharmonic(np.where(known, image.numpy(), 0), ~known, channel_axis=0)
    inside = slice(3, -3)  # the border is treated otherwise
    assert np.abs(smooth.numpy() - other)[:, inside, inside].max() < 5e-3
    assert torch.equal(smooth[:, known], image[:, known])
    few = smooth_holes(start, mask)[0]
    assert (few - smooth).square().mean() < 0.02 * (start[0] - smooth).square().mean()


def test_deep_holes_are_filled_from_around_and_small_ones_from_near():
    image = torch.full((1, 1, 64, 64), 0.25)
    image[..., 32:] = 0.75
    mask = torch.ones(1, 1, 64, 64, dtype=torch.bool)
    mask[..., 4:60, 2:30] = False
    mask[..., 10, 50] = False
    filled = fill_holes(torch.where(mask, image, 9.0), mask)
    assert torch.equal(filled[mask], image[mask])
    assert float(filled.max()) <= 0.75
    assert abs(float(filled[0, 0, 10, 50]) - 0.75) < 1e-6
    assert abs(float(filled[0, 0, 30, 15]) - 0.25) < 0.1
