"""The Poisson equation of an image grid, by the cosine transform that diagonalises it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mirrordescent.cosine import dct


def solve_poisson(r: Tensor) -> Tensor:
    """Solve DᵀDφ = r for images r (…, height, width) of mean 0, D the forward differences.

    DᵀD has the eigenvectors of the DCT-II, with eigenvalues 4 sin²(πi/2H) + 4 sin²(πj/2W).
    """
    rows, columns = (dct(n, n, r.dtype, r.device) for n in r.shape[-2:])
    eigenvalues = _eigenvalues(r.shape[-2], r).unsqueeze(1) + _eigenvalues(r.shape[-1], r)
    eigenvalues[0, 0] = torch.inf  # constants are the kernel: leave them out
    return rows.mT @ ((rows @ r @ columns.mT) / eigenvalues) @ columns


def _eigenvalues(n: int, like: Tensor) -> Tensor:
    return 4 * torch.sin(math.pi / (2 * n) * torch.arange(n, dtype=like.dtype, device=like.device)).square()
