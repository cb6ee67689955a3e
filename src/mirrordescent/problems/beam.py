"""Parallel-beam projection, the operator of tomography, as a sparse matrix and its transpose."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent._internal.checks import require_positive
from mirrordescent._internal.rounding import unit
from mirrordescent.parts import Part

Map: TypeAlias = Callable[[Tensor], Tensor]


class _Linear(torch.autograd.Function):
    """A linear map whose backward pass is its adjoint, differentiable to any order."""

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

    u grows with the columns and v against the rows, as in a plot. A sinogram is therefore oriented
    like the transpose of ``skimage.transform.radon``. Lengths are those of the square, so the
    sinograms of one object at two resolutions agree.

    The matrix follows Joseph's method: each ray advances by one pixel along its main axis, with
    linear interpolation across that axis and 0 outside the image. ``A_adjoint`` applies the
    transpose of exactly this matrix.

    Args:
        size: Side of the images, which are (batch, channels, size, size).
        angles: Angles in radians, (n,); or their number n, for the midpoints of n equal parts of
            [0, π).
        detectors: Number of detector cells; sinograms are (batch, channels, angles, detectors).
        reach: Half width of the detector, which covers −reach < s < reach. The default √2 covers
            the whole square.

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
            raise ValueError("angles must be a number ≥ 1, or a tensor (n,) of finite radians")
        self.size = size
        self.detectors = detectors
        self.reach = float(reach)
        self.register_buffer("angles", angles.double())

    @property
    def norm(self) -> float:
        """An upper bound on ‖A‖, close to it."""
        return _norm(*self._geometry)

    def A(self, x: Tensor) -> Tensor:
        """Project images: (batch, channels, angles, detectors)."""
        require_shape(x, (self.size, self.size), "images")
        return _linear(x, self._project, self._back_project)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Back-project sinograms: (batch, channels, size, size)."""
        require_shape(y, (len(self.angles), self.detectors), "sinograms")
        return _linear(y, self._back_project, self._project)

    def subset(self, first: int, step: int) -> ParallelBeam:
        """Return the projection along the angles ``first``, ``first + step``, … only."""
        return ParallelBeam(self.size, self.angles[first::step], self.detectors, self.reach)

    def extra_repr(self) -> str:
        return (
            f"size={self.size}, angles={len(self.angles)}, detectors={self.detectors}, "
            f"reach={self.reach:g}"
        )

    @property
    def _geometry(self) -> tuple[int, tuple[float, ...], int, float]:
        return self.size, tuple(self.angles.tolist()), self.detectors, self.reach

    def _project(self, x: Tensor) -> Tensor:
        matrix, _ = _matrices(*self._geometry, x.dtype, x.device)
        sinograms = (matrix @ x.flatten(2).flatten(0, 1).T).T
        return sinograms.reshape(*x.shape[:2], len(self.angles), self.detectors)

    def _back_project(self, y: Tensor) -> Tensor:
        _, transpose = _matrices(*self._geometry, y.dtype, y.device)
        images = (transpose @ y.flatten(2).flatten(0, 1).T).T
        return images.reshape(*y.shape[:2], self.size, self.size)


def require_shape(tensor: Tensor, shape: tuple[int, int], what: str) -> None:
    """Raise an error unless a tensor is (batch, channels, *shape)."""
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
    """Return A and Aᵀ as sparse matrices in row format.

    Products in column format would be several times slower. The matrices are cached, because they
    take far longer to construct than to apply.
    """
    centres = cell_centres(detectors, reach)
    by_angle = [_joseph(size, angle, centres) for angle in angles]
    pixels = torch.cat([pixels for pixels, _ in by_angle])
    weights = torch.cat([weights for _, weights in by_angle])
    rays = torch.arange(len(pixels)).unsqueeze(1).expand_as(pixels)
    nonzero = weights > 0
    rays = rays[nonzero]
    pixels = pixels[nonzero]
    weights = weights[nonzero].to(dtype)
    order = pixels.argsort(stable=True)
    shape = (len(angles) * detectors, size**2)
    forward = _sparse(rays, pixels, weights, shape)
    transpose = _sparse(pixels[order], rays[order], weights[order], (shape[1], shape[0]))
    return forward.to(device), transpose.to(device)


@lru_cache(maxsize=128)
def _norm(size: int, angles: tuple[float, ...], detectors: int, reach: float) -> float:
    """Return a bound on ‖A‖ by ‖A‖² ≤ maxⱼ (AᵀAv)ⱼ/vⱼ, with v > 0 from the power method.

    The inequality (Collatz) holds because no entry of A is negative. For the same reason, the
    relative rounding error of the two sums is at most that of one sum of all their terms.
    """
    forward, transpose = _matrices(
        size, angles, detectors, reach, torch.float64, torch.device("cpu")
    )
    v = torch.ones(size**2, dtype=torch.float64)
    bound = 0.0
    for _ in range(30):
        image = transpose @ (forward @ v)
        positive = image > 0
        bound = float((image[positive] / v[positive]).max())
        v = image / image.max()
    return math.sqrt(bound * (1 + unit(size**2 + len(angles) * detectors)))


def _sparse(rows: Tensor, columns: Tensor, entries: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the matrix with these entries, which must be sorted by rows.

    Products with 32-bit indices are faster.
    """
    ends = F.pad(rows.bincount(minlength=shape[0]).cumsum(0), (1, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            ends.int(), columns.int(), entries, shape, check_invariants=False
        )


def _joseph(size: int, angle: float, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pixels and weights of the rays of one angle, (detectors, 2·size) each.

    Args:
        size: Side of the images.
        angle: Angle in radians.
        s: Centres of the detector cells.
    """
    cosine = math.cos(angle)
    sine = math.sin(angle)
    steep = abs(cosine) >= abs(sine)
    centres = cell_centres(size)
    if steep:  # the ray crosses every row of pixels, where v = −centre, at some u
        crossing = (s[:, None] + centres * sine) / cosine
    else:  # the ray crosses every column of pixels, where u = centre, at some −v
        crossing = (centres * cosine - s[:, None]) / sine
    position = (crossing + 1) * (size / 2) - 0.5
    nearest = torch.stack([position.floor(), position.floor() + 1], -1)
    inside = (nearest >= 0) & (nearest < size)
    step = 2 / size / max(abs(cosine), abs(sine))
    weights = step * (1 - (position.unsqueeze(-1) - nearest).abs()) * inside
    nearest = nearest.clamp(0, size - 1).long()
    crossed = torch.arange(size)[:, None].expand_as(nearest)
    pixels = crossed * size + nearest if steep else nearest * size + crossed
    return pixels.flatten(1), weights.flatten(1)
