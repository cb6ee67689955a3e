"""Estimation of the noise of colours from the covariance of patches with missing pixels."""

import torch
from torch import Tensor
from torch.nn import functional as F

SIDES = (8, 6, 4, 3)  # of patches, in pixels; smaller ones if too few known pixels are adjacent
MAX_PATCHES = 20_000  # more patches do not improve the estimate
MIN_PAIRS = 500  # pairs of known pixels for every entry of the covariance


def level_of_colours(image: Tensor, known: Tensor | None) -> float:
    """Return the standard deviation of the noise of a colour image.

    Patches of a photograph lie near a subspace; patches of white noise do not. So the covariance of
    patches has a few large eigenvalues, and the others scatter around σ². The largest eigenvalues
    are left out until the mean of the rest is at most its median. This mean is σ². If pixels are
    missing, every entry of the covariance is a mean over the pairs of known pixels.

    Args:
        image: Image (channels, height, width) in [0, 1].
        known: 1 or True at known pixels, (channels, height, width).

    Reference: Chen, Zhu and Heng, ICCV 2015.
    """
    for side in SIDES:
        if min(image.shape[1:]) >= side:
            covariance = _covariance(image, known, side)
            if covariance is not None:
                variance = _mean_of_smallest(torch.linalg.eigvalsh(covariance))
                return float(variance.clamp(min=0).sqrt())
    return 0.0  # the image is too small


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
