"""How much noise there is in a photograph, from its known pixels alone."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

SIDES = (8, 6, 4, 3)  # of patches, in pixels; smaller ones where too few pixels are known together
PATCHES = 20_000  # at most; more tell no more
LIGHT_SIDES = (5, 4, 3)
# in each direction; and their sides, in pixels
BLOCKS = 6
SMALLEST = 40
LARGEST = 160
QUANTILE = 0.15  # of the blocks' levels
CLIPPED = 0.02  # how near to black or white, and how much of a block, is too much
TEXTURE = 0.03  # what photographs without noise may seem to have in blocks of their light
ENOUGH = 500  # pairs of pixels that every entry of the covariance has to be a mean of


class Noise(NamedTuple):
    """The standard deviation of noise, and whether it is the same in all channels: of the light
    alone.
    """

    level: float
    shared: bool = False


@torch.no_grad()
def estimate_noise(
    y: Tensor, mask: Tensor | None = None, halved: Sequence[bool] = ()
) -> list[Noise]:
    """Return the noise of images (batch, channels, height, width), its standard deviation σ as a
    share of 1.

    Patches of a photograph lie near a subspace, those of white noise do not: the covariance of
    patches has a few large eigenvalues, and σ² with some scatter for all others. The largest are
    left out until the mean of the rest is no longer above their median; that mean is σ². Where
    pixels are missing, every entry of the covariance is the mean over the pairs of which both are
    known.

    Colours make this sharp. Grey pictures do not have them, and most JPEG files have them at half
    the resolution, without their noise, which ``halved`` says for each image. There the light is
    looked at block by block, and blocks with little texture count; noise below 3 % cannot be told
    from texture then, and counts as none.

    Reference: Chen, Zhu and Heng, ICCV 2015.

    >>> noise = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    >>> [round(found.level, 2) for found in estimate_noise(0.5 + 0.05 * noise)]
    [0.05, 0.05]
    """
    masks = [None] * len(y) if mask is None else list(mask.expand_as(y))
    by_light = list(halved) or [False] * len(y)
    return [_estimate(*each) for each in zip(y, masks, by_light, strict=True)]


def _estimate(image: Tensor, known: Tensor | None, halved: bool) -> Noise:
    own = Noise(_level(image, known, SIDES) if len(image) > 1 else 0.0)
    if len(image) > 1 and not halved:
        return own
    light = _level_by_blocks(image.mean(0, keepdim=True), None if known is None else known[:1])
    return Noise(light, shared=True) if light >= max(TEXTURE, own.level) else own


def _level(image: Tensor, known: Tensor | None, sides: tuple[int, ...]) -> float:
    for side in sides:
        if min(image.shape[1:]) >= side:
            covariance = _covariance(image, known, side)
            if covariance is not None:
                return float(_flat_part(torch.linalg.eigvalsh(covariance)).clamp(min=0).sqrt())
    return 0.0  # too little to tell


def _level_by_blocks(light: Tensor, known: Tensor | None) -> float:
    """Return a low quantile of the levels of blocks: those with much texture seem to have more
    noise than there is.
    """
    found = []
    (tops, bottoms), (lefts, rights) = (_cuts(length) for length in light.shape[1:])
    for top, bottom in zip(tops, bottoms, strict=True):
        for left, right in zip(lefts, rights, strict=True):
            block = light[:, top:bottom, left:right]
            if float(((block <= CLIPPED) | (block >= 1 - CLIPPED)).float().mean()) > CLIPPED:
                continue  # where noise was cut off there is less of it
            seen = None if known is None else known[:, top:bottom, left:right]
            found.append(_level(block, seen, LIGHT_SIDES))
    return float(torch.tensor(found).quantile(QUANTILE)) if found else 0.0


def _cuts(length: int) -> tuple[list[int], list[int]]:
    count = max(1, min(BLOCKS, length // SMALLEST))
    edges = [length * i // count for i in range(count + 1)]
    starts = edges[:-1]
    return starts, [min(end, start + LARGEST) for start, end in zip(starts, edges[1:], strict=True)]


def _covariance(image: Tensor, known: Tensor | None, side: int) -> Tensor | None:
    """Return the covariance of patches, pairs of known pixels by pairs; None if there are too few
    of some.
    """
    height, width = (length - side + 1 for length in image.shape[1:])
    stride = max(1, int((height * width / PATCHES) ** 0.5))
    x = _patches(image, side, stride)
    if known is None:
        centred = x - x.mean(0)
        return (centred.T @ centred / len(x)).double() if len(x) >= 2 * x.shape[1] else None
    m = _patches(known.to(image), side, stride)
    centred = m * (x - (m * x).sum(0) / m.sum(0).clamp(min=1))
    pairs = m.T @ m
    return (
        (centred.T @ centred / pairs).double()
        if float(pairs.min()) >= max(ENOUGH, 2 * x.shape[1])
        else None
    )


def _patches(image: Tensor, side: int, stride: int) -> Tensor:
    """Return patches as rows: (count, channels · side²)."""
    return F.unfold(image.unsqueeze(0), side, stride=stride)[0].T


def _flat_part(eigenvalues: Tensor) -> Tensor:
    """Return the mean of the smallest eigenvalues, of as many as have it no higher than their
    median.
    """
    for count in range(len(eigenvalues), 1, -1):
        rest = eigenvalues[:count]  # in rising order
        if rest.mean() <= rest.median():
            return rest.mean()
    return eigenvalues[0]
