"""Features of total-variation problems: a few dimensionless numbers per image."""

import math
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent import kernels
from mirrordescent.problems.differences import differences
from mirrordescent.problems.operators import LinearOperator
from mirrordescent.trees import sum_per_sample

ORIGIN = {"weight": 0.6, "rough": 0.4}
"""Values of λ/c and of mean |Dx⁰|/c, with contrast c, at which the features are 0."""

BENDS = (-2.0, 1.0)
"""Values of the feature ``weight`` below which λ is faint, and above which it is strong."""

MAX_DEPTH = 64
"""Depth in pixels at which holes are cut off; deeper holes are treated as this deep."""


def image_features(
    y: Tensor,
    mask: Tensor | None,
    weight: float | Tensor,
    scale: float,
    x0: Tensor,
    operator: LinearOperator | None = None,
    norm: float = 1.0,
) -> dict[str, Tensor]:
    """Return the logarithms of the quantities below, (batch,) each.

    The contrast c is the standard deviation of the observed pixels of an image.

    .. code-block:: none

        unit       2s‖A‖², the curvature of the data term, the unit of curvatures and 1/steps
        weight     λ/c
        faint      max(BENDS[0] − weight, 0), positive where λ is very small
        light      max(−weight, 0), positive where λ is small
        strong     max(weight − BENDS[1], 0), positive where λ is large
        observed   share of observed pixels
        depth      mean distance in pixels from a missing pixel to an observed one, at least 1
        rough      mean |Dx⁰|/c, large for noise, texture and starts with black holes
        noisy      max(rough, 0)
        passed     ‖An‖²/(‖A‖²‖n‖²) for white noise n: 0 without an operator, negative for a blur

    Features are clipped to the range of the problems that methods were learned on. All but the
    first are invariant under y → a·y + b with λ → a·λ, under transposition, reflection, and
    permutation of the channels.

    Args:
        y: Observed images.
        mask: Mask of the observed pixels; None means all.
        weight: Weight λ, a number or (batch,).
        scale: Scale s.
        x0: Start x⁰.
        operator: Operator A; None means the identity.
        norm: ‖A‖.
    """
    # After the sums, a few numbers per sample remain, for which NumPy is faster than torch.
    count, first, second, variation = _sums(y, mask, x0.detach()).cpu().numpy().T
    tiny = float(torch.finfo(y.dtype).tiny) ** 0.5  # avoids division by 0 for constant images
    contrast = np.sqrt(np.maximum(second / count - np.square(first / count), tiny**2))
    *_, height, width = x0.shape
    pairs = max(1, x0.shape[1] * ((height - 1) * width + height * (width - 1)))
    weights = weight.detach().double().cpu().numpy() if isinstance(weight, Tensor) else weight
    relative = np.log(np.clip(weights / contrast / ORIGIN["weight"], 1e-3, 300))
    rough = np.log(np.clip(variation / pairs / contrast / ORIGIN["rough"], 1e-2, 1e2))
    features = {
        "unit": np.full(len(y), math.log(2 * scale * norm**2)),
        "weight": relative,
        "faint": np.maximum(BENDS[0] - relative, 0),
        "light": np.maximum(-relative, 0),
        "strong": np.maximum(relative - BENDS[1], 0),
        "observed": np.log(np.maximum(count / math.prod(y.shape[1:]), 0.05)),
        "depth": np.log(np.minimum(_depth(mask, len(y), *y.shape[-2:]), 10)),
        "rough": rough,
        "noisy": np.maximum(rough, 0),
        "passed": np.zeros(len(y)) if operator is None else _passed(operator, norm, x0),
    }
    values = torch.from_numpy(np.stack(list(features.values()))).to(y.device)
    return dict(zip(features, values.unbind(), strict=True))


def _sums(y: Tensor, mask: Tensor | None, x: Tensor) -> Tensor:
    """Return the number of observed pixels, Σ(y − r), Σ(y − r)² and Σ|Dx|: (batch, 4).

    The sums over y are over observed pixels. The reference r is one of them, which keeps the digits
    of images with a large mean.
    """
    if y.shape == x.shape and kernels.supports(y) and y.dtype == x.dtype and kernels.available():
        return kernels.image_sums(y, mask, x)
    observed = torch.ones_like(y) if mask is None else mask.expand_as(y)
    index = observed.flatten(1).argmax(1, keepdim=True)
    reference = y.flatten(1).gather(1, index).reshape(-1, 1, 1, 1)
    shifted = observed * (y - reference)
    variation = sum(sum_per_sample(d.abs().double()) for d in differences(x).values())
    sums = [sum_per_sample(each.double()) for each in (observed, shifted, shifted.square())]
    return torch.stack([*sums, cast(Tensor, variation)], -1)


def _passed(operator: LinearOperator, norm: float, x0: Tensor) -> np.ndarray:
    """Return log ‖An‖²/(‖A‖²‖n‖²), with the same noise n at every call."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(x0.shape[1:], generator=generator).to(x0).expand_as(x0)
    energy = norm**2 * sum_per_sample(noise.square())
    share = sum_per_sample(operator.A(noise).square()) / energy
    return share.clamp(min=1e-4).log().detach().double().cpu().numpy()


def _depth(mask: Tensor | None, batch: int, height: int, width: int) -> np.ndarray:
    """Return the mean distance of missing pixels from observed ones, in dilations by 3 × 3."""
    if mask is None:
        return np.ones(batch)
    missing, rounds = _depths(mask.expand(*mask.shape[:2], height, width)).cpu().numpy().sum(1).T
    return np.broadcast_to(np.maximum(rounds / np.maximum(missing, 1), 1), batch)


def _depths(mask: Tensor) -> Tensor:
    """Return the number of missing pixels and the sum of their depths: (…, channels, 2)."""
    if kernels.supports(mask) and kernels.available():
        return kernels.hole_depths(mask, MAX_DEPTH)
    missing = (1 - mask).double().sum((-2, -1))
    rounds = missing
    for _ in range(MAX_DEPTH):
        if bool(mask.all()):
            break
        mask = F.max_pool2d(mask, 3, stride=1, padding=1)
        rounds = rounds + (1 - mask).double().sum((-2, -1))
    return torch.stack([missing, rounds], -1)
