"""Estimation of the noise in a photograph from its known pixels."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

SIDES = (8, 6, 4, 3)  # of patches, in pixels; smaller ones if too few known pixels are adjacent
LIGHT_SIDES = (5, 4, 3)
MAX_PATCHES = 20_000  # more patches do not improve the estimate
# Blocks of grey images: their number in each direction, and their sides in pixels.
BLOCKS = 6
SMALLEST_BLOCK = 40
LARGEST_BLOCK = 160
QUANTILE = 0.15  # of the noise levels of the blocks
CLIPPED = 0.02  # distance from black or white, and share of such pixels, that disqualify a block
TEXTURE = 0.03  # noise level that texture in blocks of clean photographs may seem to have
MIN_PAIRS = 500  # pairs of known pixels for every entry of the covariance


class Noise(NamedTuple):
    """The noise of a photograph.

    Args:
        level: Standard deviation σ.
        shared: Whether all channels have the same noise.
    """

    level: float
    shared: bool = False


@torch.no_grad()
def estimate_noise(
    y: Tensor, mask: Tensor | None = None, halved: Sequence[bool] = ()
) -> list[Noise]:
    """Estimate the standard deviation σ of the noise of every image.

    Patches of a photograph lie near a subspace; patches of white noise do not. So the covariance of
    patches has a few large eigenvalues, and the others scatter around σ². The largest eigenvalues
    are left out until the mean of the rest is at most its median. This mean is σ². If pixels are
    missing, every entry of the covariance is a mean over the pairs of known pixels.

    This works well for colour images. Grey images have no colours, and most JPEG files store them
    at half the resolution, which removes their noise. The brightness of such images is examined
    block by block, and blocks with little texture count. Noise below 3 % cannot be distinguished
    from texture then, and is reported as none.

    Args:
        y: Images, (batch, channels, height, width), with values from 0 to 1.
        mask: 1 or True at known pixels, broadcastable to y.
        halved: Whether the colours of each image have half the resolution; by default none has.

    Reference: Chen, Zhu and Heng, ICCV 2015.

    >>> noise = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    >>> [round(found.level, 2) for found in estimate_noise(0.5 + 0.05 * noise)]
    [0.05, 0.05]
    """
    masks = [None] * len(y) if mask is None else list(mask.expand_as(y))
    by_light = list(halved) or [False] * len(y)
    return [_estimate(*each) for each in zip(y, masks, by_light, strict=True)]


def _estimate(image: Tensor, known: Tensor | None, halved: bool) -> Noise:
    grey = len(image) == 1
    noise = Noise(0.0 if grey else _level(image, known, SIDES))
    if not grey and not halved:
        return noise
    light = _level_by_blocks(image.mean(0, keepdim=True), None if known is None else known[:1])
    return Noise(light, shared=True) if light >= max(TEXTURE, noise.level) else noise


def _level(image: Tensor, known: Tensor | None, sides: tuple[int, ...]) -> float:
    for side in sides:
        if min(image.shape[1:]) >= side:
            covariance = _covariance(image, known, side)
            if covariance is not None:
                variance = _mean_of_smallest(torch.linalg.eigvalsh(covariance))
                return float(variance.clamp(min=0).sqrt())
    return 0.0  # the image is too small


def _level_by_blocks(light: Tensor, known: Tensor | None) -> float:
    """Return a low quantile of the levels of blocks, since texture looks like noise."""
    levels = []
    for rows in _intervals(light.shape[1]):
        for columns in _intervals(light.shape[2]):
            block = light[:, rows, columns]
            clipped = (block <= CLIPPED) | (block >= 1 - CLIPPED)
            if float(clipped.float().mean()) > CLIPPED:
                continue  # clipped noise is too small
            known_block = None if known is None else known[:, rows, columns]
            levels.append(_level(block, known_block, LIGHT_SIDES))
    return float(torch.tensor(levels).quantile(QUANTILE)) if levels else 0.0


def _intervals(length: int) -> list[slice]:
    """Return the rows or columns of blocks."""
    count = max(1, min(BLOCKS, length // SMALLEST_BLOCK))
    edges = [length * i // count for i in range(count + 1)]
    return [slice(start, min(end, start + LARGEST_BLOCK)) for start, end in pairwise(edges)]


def _covariance(image: Tensor, known: Tensor | None, side: int) -> Tensor | None:
    """Return the covariance of patches, or None if there are too few of them."""
    positions = (image.shape[1] - side + 1) * (image.shape[2] - side + 1)
    stride = max(1, int((positions / MAX_PATCHES) ** 0.5))
    x = _patches(image, side, stride)
    if known is None:
        if len(x) < 2 * x.shape[1]:
            return None
        centred = x - x.mean(0)
        return (centred.T @ centred / len(x)).double()
    m = _patches(known.to(image), side, stride)
    pairs = m.T @ m
    if float(pairs.min()) < max(MIN_PAIRS, 2 * x.shape[1]):
        return None
    centred = m * (x - (m * x).sum(0) / m.sum(0).clamp(min=1))
    return (centred.T @ centred / pairs).double()


def _patches(image: Tensor, side: int, stride: int) -> Tensor:
    """Return patches as rows: (count, channels · side²)."""
    return F.unfold(image.unsqueeze(0), side, stride=stride)[0].T


def _mean_of_smallest(eigenvalues: Tensor) -> Tensor:
    """Return the mean of the n smallest eigenvalues, for the largest n with mean ≤ median.

    Args:
        eigenvalues: Eigenvalues in increasing order.
    """
    for count in range(len(eigenvalues), 1, -1):
        smallest = eigenvalues[:count]
        if smallest.mean() <= smallest.median():
            return smallest.mean()
    return eigenvalues[0]
