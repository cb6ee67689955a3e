"""Imaging problems for contests: inpainting of photographs and denoising of ellipse phantoms."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from mirrordescent import data
from mirrordescent.contests.contest import Contest, recorded_iterations
from mirrordescent.problems import TVDenoising, TVInpainting
from mirrordescent.problems.operators import LinearOperator
from mirrordescent.references import certify


def inpainting(count: int, side: int, training: bool, directory: Path | None) -> TVInpainting:
    """Return tiles of photographs with a fifth of the pixels missing and noise 0.05.

    All tiles have the same mask. The noise is added to all channels after masking.
    """
    return damage(clean_tiles(count, side, training, directory), torch.Generator().manual_seed(7))


def clean_tiles(
    count: int, side: int, training: bool, directory: Path | None, test_source: str = "stl10"
) -> Tensor:
    """Return evenly spaced tiles of the training part of BSDS500, or of a test collection.

    If the collection is missing, the bundled photographs are used.
    """
    split: Literal["train", "test"] = "train" if training else "test"
    source = "bsds500" if training else test_source
    try:
        images = data.photographs(source, split, side, directory)
    except data.DataMissing:
        images = data.photographs("bundled", split, side)
    stride = max(1, len(images) // count)
    return images[stride // 2 :: stride][:count]


def damage(
    clean: Tensor,
    generator: torch.Generator,
    missing: float = 0.2,
    noise: float = 0.05,
    operator: LinearOperator | None = None,
) -> TVInpainting:
    """Return the problem to restore images with missing pixels and noise.

    Args:
        clean: Images before the damage.
        generator: Random generator of the mask and the noise.
        missing: Share of the pixels to remove, the same pixels in all images.
        noise: Standard deviation of the noise.
        operator: Blur that is applied first; none by default.
    """
    mask = torch.rand(clean.shape[-2:], generator=generator) >= missing
    blurred = clean if operator is None else operator.A(clean)
    noisy = mask * blurred + noise * torch.randn(blurred.shape, generator=generator)
    return TVInpainting(noisy, mask, operator=operator)


def denoising(count: int, side: int, training: bool, directory: Path | None) -> TVInpainting:
    """Return the problem to denoise tomographic reconstructions of random ellipses."""
    _, noisy = data.noisy_phantoms(count, side, seed=3 if training else 4)
    return TVDenoising(noisy)


def imaging_contest(problem: TVInpainting, fill: bool, iterations: int) -> Contest:
    """Return a contest that starts at the data y, with its holes filled if ``fill`` is true."""
    optimum = certify(problem)
    return Contest(
        problem,
        problem.start(fill=fill),
        optimum.lower,
        iterations,
        recorded_iterations(iterations),
        width=float((optimum.value - optimum.lower).mean()),
    )
