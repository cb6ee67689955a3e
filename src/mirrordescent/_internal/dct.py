"""The orthonormal cosine transform of images (DCT-II): its low frequencies, and the Poisson
equation it solves.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor


def low_frequencies(x: Tensor, cutoff: float) -> Tensor:
    """C_low x: the coefficients of the frequencies below the cut-off in both directions, (…, rows,
    columns).
    """
    height, width = x.shape[-2:]
    # Along the rows first, since the rows of all images together make one product.
    along = x @ dct(low_count(width, cutoff), width, x.dtype, x.device).mT
    return dct(low_count(height, cutoff), height, x.dtype, x.device) @ along


def add_low(x: Tensor, low: Tensor) -> Tensor:
    """x + C_lowᵀ low."""
    height, width = x.shape[-2:]
    rows, columns = low.shape[-2:]
    down = dct(rows, height, x.dtype, x.device).mT @ low
    added = torch.addmm(
        x.reshape(-1, width), down.reshape(-1, columns), dct(columns, width, x.dtype, x.device)
    )
    return added.reshape(x.shape)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # it is kept, and may be needed for a derivative later
def dct(rows: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the first rows of the orthonormal DCT-II matrix of size n: √(2/n) cos(πi(j + ½)/n),
    √(1/n) for i = 0.
    """
    i = torch.arange(rows, dtype=torch.float64)
    j = torch.arange(n, dtype=torch.float64)
    matrix = (torch.pi / n * i[:, None] * (j + 0.5)).cos() * (2 / n) ** 0.5
    matrix[0] = (1 / n) ** 0.5
    return matrix.to(device, dtype)


def low_count(n: int, cutoff: float) -> int:
    """Count the i in 0, …, n − 1 with i/n < cutoff."""
    return min(n, -int(-cutoff * n // 1))


def low_lengths(height: int, width: int, cutoff: float) -> Tensor:
    """|ω| = √((i/n)² + (j/p)²) of the block of low frequencies, in half cycles per pixel: (rows,
    columns), float64.
    """
    rows, columns = (
        torch.arange(low_count(n, cutoff), dtype=torch.float64) / n for n in (height, width)
    )
    return (rows[:, None].square() + columns.square()).sqrt()


def solve_poisson(r: Tensor) -> Tensor:
    """Solve DᵀDφ = r for images r (…, height, width) of mean 0, with D the forward differences.

    The DCT-II diagonalises DᵀD, with the eigenvalues 4 sin²(πi/2H) + 4 sin²(πj/2W).
    """
    rows, columns = (dct(n, n, r.dtype, r.device) for n in r.shape[-2:])
    along = [
        torch.arange(n, dtype=r.dtype, device=r.device) * (math.pi / (2 * n)) for n in r.shape[-2:]
    ]
    eigenvalues = 4 * along[0].sin().square().unsqueeze(1) + 4 * along[1].sin().square()
    eigenvalues[0, 0] = torch.inf  # constants are the kernel: leave them out
    return rows.mT @ ((rows @ r @ columns.mT) / eigenvalues) @ columns
