"""The Poisson equation of an image grid, by the cosine transform that diagonalises it."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def solve_poisson(r: Tensor) -> Tensor:
    """Solve DᵀDφ = r for images r (…, height, width) of mean 0, D the forward differences.

    DᵀD has the eigenvectors of the DCT-II, with eigenvalues 4 sin²(πi/2H) + 4 sin²(πj/2W).
    """
    rows, columns = _cosines(r.shape[-2], r), _cosines(r.shape[-1], r)
    eigenvalues = _eigenvalues(r.shape[-2], r).unsqueeze(1) + _eigenvalues(r.shape[-1], r)
    eigenvalues[0, 0] = torch.inf  # constants are the kernel: leave them out
    return rows.mT @ ((rows @ r @ columns.mT) / eigenvalues) @ columns


def _cosines(n: int, like: Tensor) -> Tensor:
    """Return the orthonormal DCT-II matrix (n, n), a row per frequency."""
    index = torch.arange(n, dtype=like.dtype, device=like.device)
    matrix = torch.cos(math.pi / n * torch.outer(index, index + 0.5)) * math.sqrt(2 / n)
    matrix[0] /= math.sqrt(2)
    return matrix


def _eigenvalues(n: int, like: Tensor) -> Tensor:
    return 4 * torch.sin(math.pi / (2 * n) * torch.arange(n, dtype=like.dtype, device=like.device)).square()
