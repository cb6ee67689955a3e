"""Parallel-beam tomography: projection, its adjoint, filtered back-projection, and the noise they make."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mirrordescent.cache import key_of, remember
from mirrordescent.data.phantoms import ellipse_phantoms

Map: TypeAlias = Callable[[Tensor], Tensor]

_CHUNK = 32  # phantoms projected at a time, which bounds the memory


class _Matrix(NamedTuple):
    """A projection and its transpose, sparse, by rows: a product by columns would be several times slower."""

    forward: Tensor
    transpose: Tensor


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


class ParallelBeam(nn.Module):
    """(Ax)(θ, s) = ∫ x over the line {(u, v) : u cos θ + v sin θ = s}, for images on [−1, 1]².

    u grows with the columns and v against the rows, as in a plot, so that a sinogram has the orientation of
    ``skimage.transform.radon``, transposed. Joseph's method: every ray is followed in unit steps along
    the axis it is closer to, with linear interpolation across and zero outside. ``A_adjoint`` applies the
    transpose of exactly that matrix. Lengths are those of the square, whatever the number of pixels, so that
    sinograms of one object at two resolutions agree.

    Args:
        size: images are (batch, channels, size, size).
        angles: in radians, (n,), or a number n of them, the midpoints of n equal parts of [0, π).
        detectors: cells of the detector; sinograms are (batch, channels, angles, detectors).
        reach: the detector covers −reach < s < reach; √2 sees the whole square.

    >>> beam = ParallelBeam(8, angles=3, detectors=11)
    >>> beam.A(torch.ones(1, 1, 8, 8)).shape
    torch.Size([1, 1, 3, 11])
    """

    angles: Tensor

    def __init__(self, size: int, angles: int | Tensor = 30, detectors: int = 183, reach: float = math.sqrt(2)) -> None:
        super().__init__()
        if size < 1 or detectors < 1:
            raise ValueError(f"size and detectors must be at least 1, got {size} and {detectors}")
        if not 0 < reach < float("inf"):
            raise ValueError(f"reach must be positive and finite, got {reach}")
        if isinstance(angles, int):
            angles = (torch.arange(angles, dtype=torch.float64) + 0.5) * (math.pi / max(angles, 1))
        if angles.ndim != 1 or len(angles) == 0 or not bool(angles.isfinite().all()):
            raise ValueError("angles must be a positive number of them, or finite radians (n,), not empty")
        self.size, self.detectors, self.reach = size, detectors, float(reach)
        self.register_buffer("angles", angles.double())

    @property
    def norm(self) -> float:
        """A bound on ‖A‖ that is close to it."""
        return _norm(self.size, tuple(self.angles.tolist()), self.detectors, self.reach)

    def A(self, x: Tensor) -> Tensor:
        """Project images: (batch, channels, angles, detectors)."""
        self._require(x, (self.size, self.size), "images")
        return _linear(x, self._project, self._smear)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Smear sinograms back along their rays: (batch, channels, size, size)."""
        self._require(y, (len(self.angles), self.detectors), "sinograms")
        return _linear(y, self._smear, self._project)

    def part(self, first: int, every: int) -> ParallelBeam:
        """Return the projection along every so-manieth angle only, from a first one on."""
        return ParallelBeam(self.size, self.angles[first::every], self.detectors, self.reach)

    def extra_repr(self) -> str:
        """Show the geometry."""
        return f"size={self.size}, angles={len(self.angles)}, detectors={self.detectors}, reach={self.reach:g}"

    def _project(self, x: Tensor) -> Tensor:
        rays = self._matrix(x).forward @ x.reshape(-1, self.size**2).T
        return rays.T.reshape(*x.shape[:2], -1, self.detectors)

    def _smear(self, y: Tensor) -> Tensor:
        pixels = self._matrix(y).transpose @ y.reshape(-1, len(self.angles) * self.detectors).T
        return pixels.T.reshape(*y.shape[:2], self.size, self.size)

    def _matrix(self, like: Tensor) -> _Matrix:
        angles = tuple(self.angles.tolist())
        return _matrix(self.size, angles, self.detectors, self.reach, like.dtype, like.device)

    @staticmethod
    def _require(tensor: Tensor, shape: tuple[int, int], what: str) -> None:
        if tensor.ndim != 4 or tensor.shape[2:] != shape:
            raise ValueError(f"{what} must be (batch, channels, {shape[0]}, {shape[1]}), got {tuple(tensor.shape)}")


@functools.lru_cache(maxsize=128)
def _matrix(
    size: int,
    angles: tuple[float, ...],
    detectors: int,
    reach: float,
    dtype: torch.dtype,
    device: torch.device,
) -> _Matrix:
    """Kept for the geometries in use and their parts, since making it costs many times what applying it does."""
    parts = [_joseph(size, angle, _centres(detectors, reach)) for angle in angles]
    pixels, weights = (torch.stack(entries).flatten(0, 1) for entries in zip(*parts, strict=True))
    rays = torch.arange(len(pixels)).unsqueeze(1).expand_as(pixels)
    met = weights > 0
    rays, pixels, weights = rays[met], pixels[met], weights[met].to(dtype)
    order = pixels.argsort(stable=True)
    shape = (len(angles) * detectors, size**2)
    return _Matrix(
        _sparse(rays, pixels, weights, shape).to(device),
        _sparse(pixels[order], rays[order], weights[order], (shape[1], shape[0])).to(device),
    )


@functools.lru_cache(maxsize=128)
def _norm(size: int, angles: tuple[float, ...], detectors: int, reach: float) -> float:
    """‖A‖² ≤ maxⱼ (AᵀAv)ⱼ/vⱼ for every v > 0, since no entry of A is negative (Collatz); v by the power method."""
    forward, transpose = _matrix(size, angles, detectors, reach, torch.float64, torch.device("cpu"))
    v = torch.ones(size**2, dtype=torch.float64)
    bound = 0.0
    for _ in range(30):
        image = transpose @ (forward @ v)
        seen = image > 0
        bound = float((image[seen] / v[seen]).max())
        v = image / image.max()
    return math.sqrt(bound)


def _sparse(rows: Tensor, columns: Tensor, entries: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the matrix with these entries, sorted by rows; short indices make its products faster."""
    ends = F.pad(rows.bincount(minlength=shape[0]).cumsum(0), (1, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(ends.int(), columns.int(), entries, shape, check_invariants=False)


def _joseph(size: int, angle: float, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return pixels and weights of the rays of one angle: (detectors, 2·size) each."""
    cosine, sine = math.cos(angle), math.sin(angle)
    steep = abs(cosine) >= abs(sine)  # then a ray crosses every row of pixels, else every column
    index, centres = torch.arange(size), _centres(size)
    # A row of pixels has v = −centre and is met at some u, a column has u = centre and is met at some −v.
    crossing = s[:, None] + centres * sine if steep else centres * cosine - s[:, None]
    place = (crossing / (cosine if steep else sine) + 1) * (size / 2) - 0.5
    nearest = torch.stack([place.floor(), place.floor() + 1], -1)
    inside = (nearest >= 0) & (nearest < size)
    step = 2 / size / max(abs(cosine), abs(sine))
    weights = step * (1 - (place.unsqueeze(-1) - nearest).abs()) * inside
    nearest = nearest.clamp(0, size - 1).long()
    crossed = index[:, None].expand_as(nearest)
    pixels = crossed * size + nearest if steep else nearest * size + crossed
    return pixels.flatten(1), weights.flatten(1)


def _centres(count: int, reach: float = 1.0) -> Tensor:
    """Return the centres of ``count`` equal cells of [−reach, reach]."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) * (2 * reach / count) - reach


def filtered_back_projection(sinogram: Tensor, beam: ParallelBeam) -> Tensor:
    """Invert the projection: x(u, v) ≈ (π/n) Σ_θ (h ∗ y_θ)(u cos θ + v sin θ), with h the Ram-Lak filter.

    The angles should divide [0, π) equally. Filtered projections are interpolated linearly, and are zero
    beyond the detector.
    """
    beam._require(sinogram, (len(beam.angles), beam.detectors), "sinograms")
    spacing = 2 * beam.reach / beam.detectors
    filtered = ramp_filter(sinogram, spacing).reshape(-1, *sinogram.shape[2:])
    rays = F.pad(filtered, (1, 1)).permute(1, 2, 0).contiguous()
    centres = _centres(beam.size)
    image = sinogram.new_zeros(beam.size**2, rays.shape[-1])
    for angle, projection in zip(beam.angles.tolist(), rays, strict=True):
        s = centres * math.cos(angle) - centres[:, None] * math.sin(angle)
        place = ((s.flatten() + beam.reach) / spacing + 0.5).clamp(0, beam.detectors + 1).to(sinogram.device)
        below = place.floor().clamp(max=beam.detectors).long()
        share = (place - below).to(sinogram).unsqueeze(-1)
        image += torch.lerp(projection[below], projection[below + 1], share)
    image *= math.pi / len(beam.angles)
    return image.T.reshape(*sinogram.shape[:2], beam.size, beam.size)


def ramp_filter(sinogram: Tensor, spacing: float) -> Tensor:
    """Convolve along the detector with the band-limited ramp, sampled in space (Kak, Slaney 1988, eq. 3.61).

    h(0) = 1/(4τ²),  h(n) = −1/(πnτ)² for odd n,  0 for even n ≠ 0;  times τ for the integral.
    """
    detectors = sinogram.shape[-1]
    length = 2 * detectors  # zero-padded, so that the circular convolution is a linear one
    n = torch.fft.fftfreq(length, 1 / length, dtype=torch.float64, device=sinogram.device)
    kernel = torch.where(n % 2 == 0, torch.zeros_like(n), -1 / (math.pi * n * spacing).square())
    kernel[0] = 1 / (4 * spacing**2)
    response = (torch.fft.rfft(kernel).real * spacing).to(sinogram)
    return torch.fft.irfft(torch.fft.rfft(sinogram, n=length) * response, n=length)[..., :detectors]


def reconstruct_noisily(
    clean: Tensor,
    *,
    angles: int = 30,
    detectors: int = 183,
    simulated: int = 400,
    noise: float = 0.025,
    generator: Generator,
) -> Tensor:
    """Enlarge bilinearly to side ``simulated``, project, add white noise, reconstruct at the original size.

    The noise has standard deviation ``noise`` × mean |sinogram|, image by image. Few angles give the result
    its rays; the finer grid keeps the simulation from being inverted by its own discretisation.
    """
    size = clean.shape[-1]
    fine = F.interpolate(clean, size=(simulated, simulated), mode="bilinear", align_corners=False)
    sinogram = ParallelBeam(simulated, angles, detectors).A(fine)
    level = noise * sinogram.abs().mean((-3, -2, -1), keepdim=True)
    white = torch.randn(sinogram.shape, generator=generator, device=generator.device, dtype=sinogram.dtype).to(
        sinogram.device
    )
    return filtered_back_projection(sinogram + level * white, ParallelBeam(size, angles, detectors))


def noisy_phantoms(
    count: int,
    size: int = 128,
    seed: int = 0,
    *,
    angles: int = 30,
    detectors: int = 183,
    simulated: int = 400,
    noise: float = 0.025,
) -> tuple[Tensor, Tensor]:
    """Return ellipse phantoms and what tomography makes of them: two tensors (count, 1, size, size).

    Kept on disk: the same arguments give the same images, the second time at once.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")

    def compute() -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        clean = ellipse_phantoms(count, size, generator=generator)
        noisy = [
            reconstruct_noisily(
                chunk,
                angles=angles,
                detectors=detectors,
                simulated=simulated,
                noise=noise,
                generator=generator,
            )
            for chunk in torch.split(clean, _CHUNK)
        ]
        return {"clean": clean, "noisy": torch.cat(noisy)}

    key = key_of(
        "noisy phantoms",
        count=count,
        size=size,
        seed=seed,
        angles=angles,
        detectors=detectors,
        simulated=simulated,
        noise=float(noise),
    )
    images = remember(key, compute)
    return images["clean"], images["noisy"]
