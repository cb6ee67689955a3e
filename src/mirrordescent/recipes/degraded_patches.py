"""Degraded patches for the learning of priors: noise, missing pixels and blur.

The data term of every kind is a quadratic function, so that its gradient is Hx − b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from mirrordescent.problems.prior_problems import ANCHOR, FILLING_LEVEL
from mirrordescent.problems.tv import fill_holes
from mirrordescent.trees import per_sample

Degrade = Literal["noise", "holes", "blur"]
MARGIN = 3
"""Width of the border of a patch that does not count, because few filters fit there."""
BLUR_LEVELS = (0.008, 0.04)
"""Smallest and largest noise of blurred patches."""
BLUR_SIDE = 13
"""Side of the kernels of blurred patches."""


class DegradedPatches(NamedTuple):
    """Patches, and the data term ½⟨x, Hx⟩ − ⟨b, x⟩ of their restoration.

    Attributes:
        clean: Patches before the degradation, (batch, channels, height, width).
        normal: The map x ↦ Hx, with norm at most 1 + ANCHOR.
        right: The vector b.
        start: First point of the restoration.
        sigma: Noise levels of the prior, (batch,).
        counted: 1 at pixels whose error counts, (batch, 1, height, width).
        typical: Mean squared error of a typical restoration, (batch,).
    """

    clean: Tensor
    normal: Callable[[Tensor], Tensor]
    right: Tensor
    start: Tensor
    sigma: Tensor
    counted: Tensor
    typical: Tensor


def noisy_patches(clean: Tensor, generator: Generator) -> DegradedPatches:
    """Add noise of random levels between 0.003 and 0.2."""
    share = torch.rand(len(clean), generator=generator)
    sigma = 0.01 * torch.exp(share * math.log(20.0))
    low = torch.rand(len(clean), generator=generator) < 0.15
    sigma = torch.where(low, 0.003 * torch.exp(share * math.log(7.0)), sigma)
    noise = torch.randn(clean.shape, generator=generator)
    return denoising_patches(clean, clean + per_sample(sigma, clean) * noise, sigma)


def denoising_patches(clean: Tensor, noisy: Tensor, sigma: Tensor) -> DegradedPatches:
    """Return noisy patches with the data term ½‖x − y‖²."""
    counted = _inner(clean, MARGIN)
    typical = 0.028 * sigma.pow(1.5)
    return DegradedPatches(clean, lambda x: x, noisy, noisy, sigma, counted, typical)


def holey_patches(clean: Tensor, generator: Generator) -> DegradedPatches:
    """Remove pixels, lines, strokes or blocks. The data term is ½‖Z(x − y)‖² + (ρ/2)‖x − c‖².

    There is no noise, and the noise level of the prior is :data:`FILLING_LEVEL`.
    """
    masks = [random_mask(clean.shape[-1], generator) for _ in range(len(clean))]
    mask = torch.stack(masks).to(clean).unsqueeze(1)
    centre = fill_holes(clean, mask)
    sigma = clean.new_full((len(clean),), FILLING_LEVEL)
    counted = (1 - mask) * _inner(clean, MARGIN)
    right = mask * clean + ANCHOR * centre
    typical = torch.full_like(sigma, 1e-3)
    return DegradedPatches(
        clean, lambda x: (mask + ANCHOR) * x, right, centre, sigma, counted, typical
    )


def blurred_patches(clean: Tensor, generator: Generator) -> DegradedPatches:
    """Blur patches and add noise. The data term is ½‖Ax − y‖² + (ρ/2)‖x − c‖².

    A computes the blurred pixels whose kernel lies inside the patch, with a Gaussian or a motion
    kernel of its own for every patch.
    """
    batch, channels, height, width = clean.shape
    kernels = torch.stack([random_kernel(generator) for _ in range(batch)])
    bank = kernels.repeat_interleave(channels, 0).unsqueeze(1)

    def blur(x: Tensor) -> Tensor:
        return F.conv2d(x.reshape(1, -1, height, width), bank, groups=batch * channels)

    def adjoint(y: Tensor) -> Tensor:
        spread = F.conv_transpose2d(y, bank, groups=batch * channels)
        return spread.reshape(batch, channels, height, width)

    sigma = log_uniform(BLUR_LEVELS, batch, generator)
    blurred = blur(clean)
    noise = torch.randn(blurred.shape, generator=generator)
    y = blurred + sigma.repeat_interleave(channels).reshape(1, -1, 1, 1) * noise
    border = BLUR_SIDE // 2
    known = y.reshape(batch, channels, *y.shape[-2:])
    centre = F.pad(known, (border,) * 4, mode="replicate")
    right = adjoint(y) + ANCHOR * centre
    counted = _inner(clean, border + MARGIN)
    typical = 0.03 * sigma.sqrt() / 10
    return DegradedPatches(
        clean, lambda x: adjoint(blur(x)) + ANCHOR * x, right, centre, sigma, counted, typical
    )


DEGRADATIONS: dict[Degrade, Callable[[Tensor, Generator], DegradedPatches]] = {
    "noise": noisy_patches,
    "holes": holey_patches,
    "blur": blurred_patches,
}


def _inner(like: Tensor, margin: int) -> Tensor:
    """Return 1 at pixels away from the border, (batch, 1, height, width)."""
    inner = like.new_zeros(len(like), 1, *like.shape[-2:])
    inner[..., margin:-margin, margin:-margin] = 1
    return inner


def log_uniform(limits: Sequence[float], count: int, generator: Generator) -> Tensor:
    """Return random numbers whose logarithms are uniform."""
    low, high = limits
    return low * torch.exp(torch.rand(count, generator=generator) * math.log(high / low))


def random_mask(side: int, generator: Generator) -> Tensor:
    """Return a mask of known pixels, (side, side)."""
    kind, *numbers = torch.rand(4, generator=generator).tolist()
    if kind < 0.4:
        return torch.rand(side, side, generator=generator) > 0.1 + 0.6 * numbers[0]
    row = torch.arange(side).reshape(-1, 1)
    column = torch.arange(side).reshape(1, -1)
    missing = torch.zeros(side, side, dtype=torch.bool)
    for _ in range(3 + int(6 * numbers[0])):
        down, across, angle, length, breadth = torch.rand(5, generator=generator).tolist()
        down = side * down
        across = side * across
        if kind < 0.6:
            extent = 4 + 5 * breadth
            block = (row - down).abs() < extent / 2
            missing |= block & ((column - across).abs() < extent / 2)
            continue
        cosine = math.cos(math.pi * angle)
        sine = math.sin(math.pi * angle)
        along = (row - down) * cosine + (column - across) * sine
        beside = (column - across) * cosine - (row - down) * sine
        stroke = beside.abs() < 0.5 + 1.5 * breadth
        missing |= stroke if length < 0.3 else stroke & (along.abs() < 4 + 10 * length)
    missing[:: side // 2, :: side // 3] = True  # a mask without holes has no error that counts
    return ~missing


def random_kernel(generator: Generator) -> Tensor:
    """Return a Gaussian or a motion kernel with sum 1."""
    kind, size, angle = torch.rand(3, generator=generator).tolist()
    offsets = torch.arange(BLUR_SIDE) - BLUR_SIDE // 2
    if kind < 0.5:
        line = torch.exp(-offsets.square() / (2 * (0.7 + 1.5 * size) ** 2))
        kernel = line.reshape(-1, 1) * line
    else:
        half = 2 + 4 * size
        cosine = math.cos(math.pi * angle)
        sine = math.sin(math.pi * angle)
        along = offsets.reshape(-1, 1) * sine + offsets * cosine
        beside = offsets.reshape(-1, 1) * cosine - offsets * sine
        inside = (half + 0.5 - along.abs()).clamp(0, 1)
        kernel = inside * (1 - beside.abs()).clamp(min=0)
    return kernel / kernel.sum()
