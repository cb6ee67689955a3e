"""The orthonormal discrete cosine transform (DCT-II) of images, and the Poisson equation."""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


def low_frequencies(x: Tensor, cutoff: float) -> Tensor:
    """Return C_low x, the coefficients (…, rows, columns) of frequencies below the cut-off.

    Args:
        x: Images (…, height, width).
        cutoff: Frequency below which coefficients are computed, relative to the largest.
    """
    height, width = x.shape[-2:]
    # Along the rows first: the rows of all images form one matrix product.
    along = x @ dct(low_count(width, cutoff), width, x.dtype, x.device).mT
    return dct(low_count(height, cutoff), height, x.dtype, x.device) @ along


def add_low(x: Tensor, low: Tensor) -> Tensor:
    """Return x + C_lowᵀ low.

    Args:
        x: Images (…, height, width).
        low: Coefficients (…, rows, columns).
    """
    height, width = x.shape[-2:]
    rows, columns = low.shape[-2:]
    down = dct(rows, height, x.dtype, x.device).mT @ low
    added = torch.addmm(
        x.reshape(-1, width), down.reshape(-1, columns), dct(columns, width, x.dtype, x.device)
    )
    return added.reshape(x.shape)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # the cached matrix may later be needed for a derivative
def dct(rows: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the first rows of the orthonormal DCT-II matrix of size n.

    Its entries are √(2/n) cos(πi(j + ½)/n), and √(1/n) for i = 0.
    """
    i = torch.arange(rows, dtype=torch.float64)
    j = torch.arange(n, dtype=torch.float64)
    matrix = (torch.pi / n * i[:, None] * (j + 0.5)).cos() * (2 / n) ** 0.5
    matrix[0] = (1 / n) ** 0.5
    return matrix.to(device, dtype)


def low_count(n: int, cutoff: float) -> int:
    """Return the number of i in 0, …, n − 1 with i/n < cutoff."""
    return min(n, -int(-cutoff * n // 1))


def low_lengths(height: int, width: int, cutoff: float) -> Tensor:
    """Return |ω| = √((i/n)² + (j/p)²) of the low frequencies, in half cycles per pixel.

    The shape is (rows, columns), the type float64.
    """
    rows = torch.arange(low_count(height, cutoff), dtype=torch.float64) / height
    columns = torch.arange(low_count(width, cutoff), dtype=torch.float64) / width
    return (rows[:, None].square() + columns.square()).sqrt()


def solve_poisson(r: Tensor, axis_weights: Sequence[float] = (1.0, 1.0)) -> Tensor:
    """Solve DᵀDφ = r on grids of mean 0; D are the weighted forward differences.

    The DCT-II diagonalises DᵀD, with the eigenvalues Σₖ 4wₖ² sin²(πiₖ/2nₖ).

    Args:
        r: Right-hand sides, (…, n₁, …, n_d); the last d dimensions are the grid.
        axis_weights: Weights w of the differences along the d axes.
    """
    axes = len(axis_weights)
    out = r
    eigenvalues = r.new_zeros(())
    for dimension, weight in zip(range(-axes, 0), axis_weights, strict=True):
        n = r.shape[dimension]
        out = _along(dct(n, n, r.dtype, r.device), out, dimension)
        angles = torch.arange(n, dtype=r.dtype, device=r.device) * (math.pi / (2 * n))
        line = 4 * weight**2 * angles.sin().square()
        eigenvalues = eigenvalues.unsqueeze(-1) + line
    eigenvalues.view(-1)[0] = torch.inf  # removes constants, which are the null space
    out = out / eigenvalues
    for dimension in range(-axes, 0):
        n = r.shape[dimension]
        out = _along(dct(n, n, r.dtype, r.device).mT, out, dimension)
    return out


def _along(matrix: Tensor, x: Tensor, dimension: int) -> Tensor:
    """Multiply the vectors along a dimension by a matrix."""
    if dimension == -1:
        return x @ matrix.mT
    if dimension == -2:
        return matrix @ x
    return (x.movedim(dimension, -1) @ matrix.mT).movedim(-1, dimension)
