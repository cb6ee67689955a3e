"""How much noise there is in a photograph, from its known pixels alone."""

import torch
from torch import Tensor
from torch.nn import functional as F

SIDES = (8, 6, 4, 3)  # of patches, in pixels; smaller ones where too few pixels are known together
PATCHES = 20_000  # at most; more tell no more
ENOUGH = 500  # pairs of pixels that every entry of the covariance has to be a mean of


@torch.no_grad()
def estimate_noise(y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the standard deviation σ of white noise in images (batch, channels, height, width): (batch,).

    Patches of a photograph lie near a subspace, those of white noise do not: the covariance of patches has a few large
    eigenvalues, and σ² with some scatter for all others. The largest are left out until the mean of the rest is no
    longer above their median; that mean is σ². Where pixels are missing, every entry of the covariance is the mean over
    the pairs of which both are known.

    Reference: Chen, Zhu and Heng, ICCV 2015.

    >>> noise = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    >>> estimate_noise(0.5 + 0.05 * noise)
    tensor([0.0500, 0.0500])
    """
    masks = [None] * len(y) if mask is None else list(mask.expand_as(y))
    return torch.stack([_estimate(image, known) for image, known in zip(y, masks, strict=True)])


def _estimate(image: Tensor, known: Tensor | None) -> Tensor:
    for side in SIDES:
        if min(image.shape[1:]) >= side:
            covariance = _covariance(image, known, side)
            if covariance is not None:
                return _flat_part(torch.linalg.eigvalsh(covariance)).clamp(min=0).sqrt().to(image)
    return image.new_zeros(())  # too little to tell


def _covariance(image: Tensor, known: Tensor | None, side: int) -> Tensor | None:
    """Return the covariance of patches, pairs of known pixels by pairs; None if there are too few of some."""
    height, width = (length - side + 1 for length in image.shape[1:])
    stride = max(1, int((height * width / PATCHES) ** 0.5))
    x = _patches(image, side, stride)
    if known is None:
        centred = x - x.mean(0)
        return (centred.T @ centred / len(x)).double() if len(x) >= 2 * x.shape[1] else None
    m = _patches(known.to(image), side, stride)
    centred = m * (x - (m * x).sum(0) / m.sum(0).clamp(min=1))
    pairs = m.T @ m
    return (centred.T @ centred / pairs).double() if float(pairs.min()) >= max(ENOUGH, 2 * x.shape[1]) else None


def _patches(image: Tensor, side: int, stride: int) -> Tensor:
    """Return patches as rows: (count, channels · side²)."""
    return F.unfold(image.unsqueeze(0), side, stride=stride)[0].T


def _flat_part(eigenvalues: Tensor) -> Tensor:
    """Return the mean of the smallest eigenvalues, of as many as have it no higher than their median."""
    for count in range(len(eigenvalues), 1, -1):
        rest = eigenvalues[:count]  # in rising order
        if rest.mean() <= rest.median():
            return rest.mean()
    return eigenvalues[0]
