"""Transforms of images: masked Fourier coefficients (magnetic resonance) and Haar wavelets."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mirrordescent.parts import Part


class Fourier(Part, nn.Module):
    """Ax = ZFx, the unitary Fourier transform F of images and a mask Z, as in magnetic resonance.

    Complex numbers are two real channels, the real and the imaginary part. Images are
    (batch, 2, height, width), or (batch, 1, height, width) if they are real. Coefficients are
    (batch, 2, height, width), with frequency 0 in the corner, as in ``torch.fft.fft2``.

    Args:
        mask: 1 where a coefficient is measured, (height, width); or (batch, 1, height, width), one
            mask per image.
        real: Whether images are real.

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
                "mask must be (height, width) or (batch, 1, height, width) with entries 0 or 1, "
                f"got shape {tuple(mask.shape)}"
            )
        self.register_buffer("mask", mask if mask.is_floating_point() else mask.float())
        self.real = bool(real)

    def A(self, x: Tensor) -> Tensor:
        """ZFx."""
        expected = (1 if self.real else 2, *self.mask.shape[-2:])
        if x.ndim != 4 or x.shape[1:] != expected:
            channels, height, width = expected
            raise ValueError(
                f"images must be (batch, {channels}, {height}, {width}), got {tuple(x.shape)}"
            )
        coefficients = torch.fft.fft2(x[:, 0] if self.real else as_complex(x), norm="ortho")
        return self.mask * as_channels(coefficients)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """F⁻¹Zy; its real part, if images are real."""
        image = torch.fft.ifft2(as_complex(self.mask * y), norm="ortho")
        return image.real.unsqueeze(1) if self.real else as_channels(image)

    def resolvent(self, x: Tensor, t: Tensor) -> Tensor:
        """(I + tAᵀA)⁻¹x for a number t, or one per sample, (batch, 1, 1, 1).

        AᵀA multiplies coefficients by the mask; for real images, by the mean of the mask and its
        reflection.
        """
        mask = self.mask if self.mask.ndim == 2 else self.mask[:, 0]
        mirrored = mask.flip((-2, -1)).roll((1, 1), (-2, -1))
        symbol = (mask + mirrored) / 2 if self.real else mask
        image = x[:, 0] if self.real else as_complex(x)
        t = t.reshape(-1, 1, 1) if t.ndim else t
        solved = torch.fft.ifft2(torch.fft.fft2(image) / (1 + t * symbol))
        return solved.real.unsqueeze(1) if self.real else as_channels(solved)


class Haar(Part, nn.Module):
    """Ax = Wx, the orthonormal Haar wavelet transform of images: WᵀW = I.

    The sides of images must be multiples of 2^levels. The coefficients have the shape of the image:
    scaled means of blocks of 2^levels × 2^levels pixels are in the upper left corner, details
    elsewhere.

    Args:
        levels: Number of levels.

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
            raise ValueError(f"levels must be at least 1, got {levels}")
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
                "images must be (batch, channels, height, width) with sides that are multiples of "
                f"{block} for {self.levels} levels, got {tuple(x.shape)}"
            )


def as_complex(x: Tensor) -> Tensor:
    """Return two channels (batch, 2, …) as one complex tensor (batch, …)."""
    return torch.complex(x[:, 0], x[:, 1])


def as_channels(x: Tensor) -> Tensor:
    """Return a complex tensor (batch, …) as two channels (batch, 2, …)."""
    return torch.stack([x.real, x.imag], 1)


def radial_mask(size: int, spokes: int, turn: float = 0.0) -> Tensor:
    """Return a mask of lines through frequency 0, which is in the corner: (size, size).

    Args:
        size: Side of the mask.
        spokes: Number of lines, at equal angles.
        turn: Angle of the first line in radians.

    >>> radial_mask(5, 2).int().tolist()[0], radial_mask(5, 2).int().tolist()[1]
    ([1, 1, 1, 1, 1], [1, 0, 0, 0, 0])
    """
    if size < 1 or spokes < 1:
        raise ValueError(f"size and spokes must be at least 1, got {size} and {spokes}")
    mask = torch.zeros(size, size)
    radius = torch.arange(-size, size + 1, dtype=torch.float64) / 2
    angles = torch.arange(spokes, dtype=torch.float64) * (math.pi / spokes) + turn
    for angle in angles.tolist():
        rows = (radius * math.sin(angle)).round()
        columns = (radius * math.cos(angle)).round()
        inside = (rows.abs() <= (size - 1) // 2) & (columns.abs() <= (size - 1) // 2)
        mask[rows[inside].long() % size, columns[inside].long() % size] = 1
    return mask


def _split(x: Tensor, dimension: int) -> Tensor:
    """Return the sums of pairs of neighbours, followed by their differences, over √2."""
    length = x.shape[dimension]
    even = x.index_select(dimension, torch.arange(0, length, 2, device=x.device))
    odd = x.index_select(dimension, torch.arange(1, length, 2, device=x.device))
    return torch.cat([even + odd, even - odd], dimension) / math.sqrt(2)


def _merge(x: Tensor, dimension: int) -> Tensor:
    """Invert :func:`_split` along a dimension < 0."""
    sums, gaps = x.chunk(2, dimension)
    place = x.ndim + dimension
    pairs = torch.stack([sums + gaps, sums - gaps], place + 1)
    return pairs.flatten(place, place + 1) / math.sqrt(2)


def _with_corner(x: Tensor, corner: Tensor) -> Tensor:
    """Return images with their upper left corner replaced."""
    height, width = corner.shape[-2:]
    upper = torch.cat([corner, x[..., :height, width:]], -1)
    return torch.cat([upper, x[..., height:, :]], -2)
