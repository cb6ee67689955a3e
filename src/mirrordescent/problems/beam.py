"""Parallel-beam projection, the linear operator of tomography, as a sparse matrix with its exact
transpose.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent._internal.checks import require_positive
from mirrordescent.parts import Part

Map: TypeAlias = Callable[[Tensor], Tensor]


class _Linear(torch.autograd.Function):
    """A linear map whose backward pass is its adjoint, to any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, apply: Map, adjoint: Map) -> Tensor:
        ctx.maps = apply, adjoint
        return apply(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        apply, adjoint = ctx.maps
        return _linear(gradients[0], adjoint, apply), None, None


_linear: Callable[[Tensor, Map, Map], Tensor] = _Linear.apply


class ParallelBeam(Part, nn.Module):
    """(Ax)(θ, s) = ∫ x over the line {(u, v) : u cos θ + v sin θ = s}, for images on [−1, 1]².

    u grows with the columns and v against the rows, as in a plot, so that a sinogram is oriented
    like the transpose of ``skimage.transform.radon``. By Joseph's method, every ray is followed in
    unit steps along the axis to which it is closer, with linear interpolation across that axis and
    0 outside the image. ``A_adjoint`` applies the transpose of exactly this matrix. Lengths are
    those of the square, whatever the number of pixels, so that the sinograms of one object at two
    resolutions agree.

    Args:
        size: images are (batch, channels, size, size).
        angles: radians, (n,); or a number n, which means the midpoints of n equal parts of [0, π).
        detectors: the number of cells of the detector; sinograms are (batch, channels, angles,
            detectors).
        reach: the detector covers −reach < s < reach; with √2 it sees the whole square.

    >>> beam = ParallelBeam(8, angles=3, detectors=11)
    >>> beam.A(torch.ones(1, 1, 8, 8)).shape
    torch.Size([1, 1, 3, 11])
    """

    kind = "operator"

    angles: Tensor

    def __init__(
        self,
        size: int,
        angles: int | Tensor = 30,
        detectors: int = 183,
        reach: float = math.sqrt(2),
    ) -> None:
        super().__init__()
        if size < 1 or detectors < 1:
            raise ValueError(f"size and detectors must be at least 1, got {size} and {detectors}")
        require_positive(reach=reach)
        if isinstance(angles, int):
            angles = (torch.arange(angles, dtype=torch.float64) + 0.5) * (math.pi / max(angles, 1))
        if angles.ndim != 1 or len(angles) == 0 or not bool(angles.isfinite().all()):
            raise ValueError("angles must be a number ≥ 1, or finite radians (n,), at least one")
        self.size = size
        self.detectors = detectors
        self.reach = float(reach)
        self.register_buffer("angles", angles.double())

    @property
    def norm(self) -> float:
        """A bound on ‖A‖ that is close to it."""
        return _norm(*self._geometry)

    def A(self, x: Tensor) -> Tensor:
        """Project images: (batch, channels, angles, detectors)."""
        require_shape(x, (self.size, self.size), "images")
        return _linear(x, partial(self._times, 0), partial(self._times, 1))

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Smear sinograms back along their rays: (batch, channels, size, size)."""
        require_shape(y, (len(self.angles), self.detectors), "sinograms")
        return _linear(y, partial(self._times, 1), partial(self._times, 0))

    def part(self, first: int, every: int) -> ParallelBeam:
        """Return the projection along only the angles ``first``, ``first + every``, …."""
        return ParallelBeam(self.size, self.angles[first::every], self.detectors, self.reach)

    def extra_repr(self) -> str:
        return f"size={self.size}, angles={len(self.angles)}, detectors={self.detectors}, reach={self.reach:g}"

    @property
    def _geometry(self) -> tuple[int, tuple[float, ...], int, float]:
        return self.size, tuple(self.angles.tolist()), self.detectors, self.reach

    def _times(self, which: int, data: Tensor) -> Tensor:
        """Multiply by A (0) or Aᵀ (1)."""
        matrix = _matrices(*self._geometry, data.dtype, data.device)[which]
        shape = (self.size, self.size) if which else (len(self.angles), self.detectors)
        return (matrix @ data.flatten(2).flatten(0, 1).T).T.reshape(*data.shape[:2], *shape)


def require_shape(tensor: Tensor, shape: tuple[int, int], what: str) -> None:
    """Raise unless a tensor has four dimensions, the last two of this shape."""
    if tensor.ndim != 4 or tensor.shape[2:] != shape:
        raise ValueError(
            f"{what} must be (batch, channels, {shape[0]}, {shape[1]}), got {tuple(tensor.shape)}"
        )


def cell_centres(count: int, reach: float = 1.0) -> Tensor:
    """Return the centres of ``count`` equal cells of [−reach, reach]."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) * (2 * reach / count) - reach


@lru_cache(maxsize=128)
def _matrices(
    size: int,
    angles: tuple[float, ...],
    detectors: int,
    reach: float,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Return A and Aᵀ, sparse and by rows: products by columns would be several times slower.

    They are kept for the geometries in use and their parts, since making them takes far longer than
    applying them.
    """
    parts = [_joseph(size, angle, cell_centres(detectors, reach)) for angle in angles]
    pixels, weights = (torch.stack(entries).flatten(0, 1) for entries in zip(*parts, strict=True))
    rays = torch.arange(len(pixels)).unsqueeze(1).expand_as(pixels)
    met = weights > 0
    rays = rays[met]
    pixels = pixels[met]
    weights = weights[met].to(dtype)
    order = pixels.argsort(stable=True)
    shape = (len(angles) * detectors, size**2)
    forward = _sparse(rays, pixels, weights, shape)
    transpose = _sparse(pixels[order], rays[order], weights[order], (shape[1], shape[0]))
    return forward.to(device), transpose.to(device)


@lru_cache(maxsize=128)
def _norm(size: int, angles: tuple[float, ...], detectors: int, reach: float) -> float:
    """‖A‖² ≤ maxⱼ (AᵀAv)ⱼ/vⱼ for every v > 0, since no entry of A is negative (Collatz); v by the
    power method.
    """
    forward, transpose = _matrices(
        size, angles, detectors, reach, torch.float64, torch.device("cpu")
    )
    v = torch.ones(size**2, dtype=torch.float64)
    bound = 0.0
    for _ in range(30):
        image = transpose @ (forward @ v)
        seen = image > 0
        bound = float((image[seen] / v[seen]).max())
        v = image / image.max()
    return math.sqrt(bound)


def _sparse(rows: Tensor, columns: Tensor, entries: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the matrix with these entries, which are sorted by rows; 32-bit indices make its
    products faster.
    """
    ends = F.pad(rows.bincount(minlength=shape[0]).cumsum(0), (1, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            ends.int(), columns.int(), entries, shape, check_invariants=False
        )


def _joseph(size: int, angle: float, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return pixels and weights of the rays of one angle: (detectors, 2·size) each."""
    cosine = math.cos(angle)
    sine = math.sin(angle)
    steep = abs(cosine) >= abs(sine)  # then a ray crosses every row of pixels, else every column
    centres = cell_centres(size)
    # A row of pixels has v = −centre and is crossed at some u; a column has u = centre and is
    # crossed at some −v.
    crossing = s[:, None] + centres * sine if steep else centres * cosine - s[:, None]
    place = (crossing / (cosine if steep else sine) + 1) * (size / 2) - 0.5
    nearest = torch.stack([place.floor(), place.floor() + 1], -1)
    inside = (nearest >= 0) & (nearest < size)
    step = 2 / size / max(abs(cosine), abs(sine))
    weights = step * (1 - (place.unsqueeze(-1) - nearest).abs()) * inside
    nearest = nearest.clamp(0, size - 1).long()
    crossed = torch.arange(size)[:, None].expand_as(nearest)
    pixels = crossed * size + nearest if steep else nearest * size + crossed
    return pixels.flatten(1), weights.flatten(1)
