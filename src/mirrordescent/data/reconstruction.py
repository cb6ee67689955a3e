"""Images from few noisy projections by filtered back-projection."""

from __future__ import annotations

import math
from typing import TypedDict, Unpack, cast

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mirrordescent._internal.cache import key_of, remember
from mirrordescent.data.phantoms import ellipse_phantoms
from mirrordescent.problems.beam import ParallelBeam, cell_centres, require_shape

_CHUNK = 32  # phantoms projected at a time, which bounds the memory


class Scan(TypedDict, total=False):
    """Settings of ``reconstruct_noisily``."""

    angles: int
    detectors: int
    simulated: int
    noise: float


def filtered_back_projection(sinogram: Tensor, beam: ParallelBeam) -> Tensor:
    """Reconstruct images from their projections.

    x(u, v) ≈ (π/n) Σ_θ (h ∗ y_θ)(u cos θ + v sin θ), with h the Ram-Lak filter.

    Filtered projections are interpolated linearly, and are zero beyond the detector.

    Args:
        sinogram: Projections (batch, channels, angles, detectors).
        beam: Geometry of the scan. Its angles should divide [0, π) equally.
    """
    require_shape(sinogram, (len(beam.angles), beam.detectors), "sinograms")
    spacing = 2 * beam.reach / beam.detectors
    filtered = ramp_filter(sinogram, spacing).reshape(-1, *sinogram.shape[2:])
    rays = F.pad(filtered, (1, 1)).permute(1, 2, 0).contiguous()
    centres = cell_centres(beam.size)
    image = sinogram.new_zeros(beam.size**2, rays.shape[-1])
    for angle, projection in zip(beam.angles.tolist(), rays, strict=True):
        s = centres * math.cos(angle) - centres[:, None] * math.sin(angle)
        place = (
            ((s.flatten() + beam.reach) / spacing + 0.5)
            .clamp(0, beam.detectors + 1)
            .to(sinogram.device)
        )
        below = place.floor().clamp(max=beam.detectors).long()
        share = (place - below).to(sinogram).unsqueeze(-1)
        image += torch.lerp(projection[below], projection[below + 1], share)
    image *= math.pi / len(beam.angles)
    return image.T.reshape(*sinogram.shape[:2], beam.size, beam.size)


def ramp_filter(sinogram: Tensor, spacing: float) -> Tensor:
    """Convolve projections with the band-limited ramp filter (Kak and Slaney 1988, eq. 3.61).

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
    generator: Generator,
    angles: int = 30,
    detectors: int = 183,
    simulated: int = 400,
    noise: float = 0.025,
) -> Tensor:
    """Project images, add noise, and reconstruct them.

    The projections are simulated on a finer grid than the reconstruction, since the same
    discretisation for both would make the problem too easy. Streaks come from the small number of
    angles.

    Args:
        clean: Images (count, 1, size, size).
        generator: Random generator of the noise.
        angles: Number of angles.
        detectors: Number of detector cells.
        simulated: Side to which images are enlarged bilinearly for the projection.
        noise: Standard deviation of the noise, relative to the mean of |sinogram| of an image.
    """
    fine = F.interpolate(clean, size=(simulated, simulated), mode="bilinear", align_corners=False)
    sinogram = ParallelBeam(simulated, angles, detectors).A(fine)
    level = noise * sinogram.abs().mean((-3, -2, -1), keepdim=True)
    white = torch.randn(
        sinogram.shape, generator=generator, device=generator.device, dtype=sinogram.dtype
    )
    noisy = sinogram + level * white.to(sinogram.device)
    return filtered_back_projection(noisy, ParallelBeam(clean.shape[-1], angles, detectors))


def noisy_phantoms(
    count: int, size: int = 128, seed: int = 0, **scan: Unpack[Scan]
) -> tuple[Tensor, Tensor]:
    """Return ellipse phantoms and their noisy reconstructions, (count, 1, size, size) each.

    The images are cached on disk.

    Args:
        count: Number of images.
        size: Side of the images.
        seed: Seed of phantoms and noise.
        scan: ``angles``, ``detectors``, ``simulated`` and ``noise`` of ``reconstruct_noisily``.
    """
    settings: Scan = {**cast(Scan, reconstruct_noisily.__kwdefaults__), **scan}
    settings["noise"] = float(settings["noise"])  # 0 and 0.0 get the same key

    def compute() -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        clean = ellipse_phantoms(count, size, generator=generator)
        chunks = torch.split(clean, _CHUNK)
        noisy = [reconstruct_noisily(chunk, generator=generator, **settings) for chunk in chunks]
        return {"clean": clean, "noisy": torch.cat(noisy)}

    images = remember(
        key_of("noisy phantoms", count=count, size=size, seed=seed, **settings), compute
    )
    return images["clean"], images["noisy"]
