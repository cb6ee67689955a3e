"""Transforms of images: Fourier coefficients as magnetic resonance measures them, and wavelets."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mirrordescent.parts import Part


class Fourier(Part, nn.Module):
    """ZFx: the coefficients of the unitary Fourier transform of images where a mask is 1, as in
    magnetic resonance.

    Complex numbers are two channels, real and imaginary part, so that all that is written for real
    numbers holds. Images are (batch, 2, height, width), or (batch, 1, height, width) if they are
    ``real``; coefficients are (batch, 2, height, width), the frequency 0 in the corner, as
    ``torch.fft.fft2`` has it.

    Args:
        mask: 1 where a coefficient is measured, (height, width), or (batch, 1, height, width) for
            one each.
        real: whether images are real.

    >>> import torch
    >>> Fourier(torch.ones(4, 4), real=True).A(torch.ones(1, 1, 4, 4))[0, 0, 0, 0]
    tensor(4.)
    """

    kind = "operator"

    mask: Tensor

    norm = 1.0

    def __init__(self, mask: Tensor, real: bool = False) -> None:
        super().__init__()
        if mask.ndim not in (2, 4) or not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError(
                f"a mask must be (height, width) or (batch, 1, height, width) of 0 and 1, got {tuple(mask.shape)}"
            )
        self.register_buffer("mask", mask if mask.is_floating_point() else mask.float())
        self.real = bool(real)

    def A(self, x: Tensor) -> Tensor:
        """ZFx."""
        wanted = (1 if self.real else 2, *self.mask.shape[-2:])
        if x.ndim != 4 or x.shape[1:] != wanted:
            raise ValueError(
                f"images must be (batch, {wanted[0]}, {wanted[1]}, {wanted[2]}), got {tuple(x.shape)}"
            )
        seen = torch.fft.fft2(x[:, 0] if self.real else joined(x), norm="ortho")
        return self.mask * parted(seen)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """F⁻¹Zy, of which real images have the real part."""
        image = torch.fft.ifft2(joined(self.mask * y), norm="ortho")
        return image.real.unsqueeze(1) if self.real else parted(image)

    def resolvent(self, x: Tensor, t: Tensor) -> Tensor:
        """(I + tAᵀA)⁻¹x, for a t or one for every sample, (batch, 1, 1, 1).

        AᵀA multiplies coefficients: by the mask, or for real images by the mean of the mask and its
        mirror image.
        """
        mask = self.mask if self.mask.ndim == 2 else self.mask[:, 0]
        mirrored = mask.flip((-2, -1)).roll((1, 1), (-2, -1))
        symbol = (mask + mirrored) / 2 if self.real else mask
        image = x[:, 0] if self.real else joined(x)
        solved = torch.fft.ifft2(
            torch.fft.fft2(image) / (1 + (t.reshape(-1, 1, 1) if t.ndim else t) * symbol)
        )
        return solved.real.unsqueeze(1) if self.real else parted(solved)


class Haar(Part, nn.Module):
    """Wx: the orthonormal Haar wavelet transform of images, WᵀW = I. Their sides are multiples of
    2^levels.

    The coefficients lie where the pixels were: means of 2^levels squared in one corner, details in
    the others.

    >>> import torch
    >>> Haar(1).A(torch.ones(1, 1, 2, 2))
    tensor([[[[2., 0.],
              [0., 0.]]]])
    """

    kind = "operator"

    norm = 1.0
    orthonormal = True

    def __init__(self, levels: int = 3) -> None:
        super().__init__()
        if levels < 1:
            raise ValueError(f"a wavelet transform needs at least one level, got {levels}")
        self.levels = int(levels)

    def A(self, x: Tensor) -> Tensor:
        """Wx."""
        self._check(x)
        x = x.clone()
        for height, width in self._corners(x):
            corner = x[..., :height, :width]
            for dimension in (-2, -1):
                corner = _split(corner, dimension)
            x = _with_corner(x, corner)
        return x

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Wᵀy = W⁻¹y."""
        self._check(y)
        for height, width in reversed(self._corners(y)):
            corner = y[..., :height, :width]
            for dimension in (-1, -2):
                corner = _merge(corner, dimension)
            y = _with_corner(y, corner)
        return y

    def _corners(self, x: Tensor) -> list[tuple[int, int]]:
        return [(x.shape[-2] >> level, x.shape[-1] >> level) for level in range(self.levels)]

    def _check(self, x: Tensor) -> None:
        block = 2**self.levels
        if x.ndim != 4 or x.shape[-2] % block or x.shape[-1] % block:
            raise ValueError(
                f"images must be (batch, channels, height, width) with sides that are multiples of {block} for "
                f"{self.levels} levels, got {tuple(x.shape)}"
            )


def joined(x: Tensor) -> Tensor:
    """Return two channels as a complex tensor without channels."""
    return torch.complex(x[:, 0], x[:, 1])


def parted(x: Tensor) -> Tensor:
    """Return a complex tensor (batch, …) as two channels."""
    return torch.stack([x.real, x.imag], 1)


def radial_mask(size: int, spokes: int, turn: float = 0.0) -> Tensor:
    """Return a mask of lines through the frequency 0, which is in the corner, in so many
    directions: (size, size).

    >>> radial_mask(5, 2).int().tolist()[0], radial_mask(5, 2).int().tolist()[1]
    ([1, 1, 1, 1, 1], [1, 0, 0, 0, 0])
    """
    if size < 1 or spokes < 1:
        raise ValueError(f"a mask needs size and spokes of at least 1, got {size} and {spokes}")
    mask = torch.zeros(size, size)
    reach = torch.arange(-size, size + 1, dtype=torch.float64) / 2
    for angle in (torch.arange(spokes, dtype=torch.float64) * (math.pi / spokes) + turn).tolist():
        rows = (reach * math.sin(angle)).round()
        columns = (reach * math.cos(angle)).round()
        inside = (rows.abs() <= (size - 1) // 2) & (columns.abs() <= (size - 1) // 2)
        mask[rows[inside].long() % size, columns[inside].long() % size] = 1
    return mask


def _split(x: Tensor, dimension: int) -> Tensor:
    """Replace pairs of neighbours by their sums, then their differences, over √2."""
    even, odd = (
        x.index_select(dimension, torch.arange(i, x.shape[dimension], 2, device=x.device))
        for i in (0, 1)
    )
    return torch.cat([even + odd, even - odd], dimension) / math.sqrt(2)


def _merge(x: Tensor, dimension: int) -> Tensor:
    """Undo it."""
    sums, gaps = x.chunk(2, dimension)
    pairs = torch.stack(
        [sums + gaps, sums - gaps], dimension if dimension >= 0 else x.ndim + dimension + 1
    )
    return pairs.flatten(x.ndim + dimension, x.ndim + dimension + 1) / math.sqrt(2)


def _with_corner(x: Tensor, corner: Tensor) -> Tensor:
    height, width = corner.shape[-2:]
    lower = torch.cat([corner, x[..., :height, width:]], -1)
    return torch.cat([lower, x[..., height:, :]], -2)
