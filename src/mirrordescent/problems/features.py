"""What a total-variation problem tells of itself: a few numbers without units."""

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
"""λ over the contrast, and mean |Dx⁰| over the contrast, of the problem at which these features are
0.
"""


BENDS = (-2.0, 1.0)
"""log(λ/c), relative to its origin, below which λ is faint and above which it is strong."""

DEEPEST = 64
"""A hole in which a pixel is farther than this from what is known counts as that deep; the search
ends there.
"""


def image_features(
    y: Tensor,
    mask: Tensor | None,
    weight: float | Tensor,
    scale: float,
    x0: Tensor,
    operator: LinearOperator | None = None,
    norm: float = 1.0,
) -> dict[str, Tensor]:
    """Return logarithms, (batch,) each. The contrast c is the standard deviation of the observed
    pixels of an image.

    .. code-block:: none

        unit       2s‖A‖², the curvature of the data term, which is the unit of curvatures and 1/steps
        weight     λ/c
        faint      how far log(λ/c) is below the first of BENDS, else 0, so that schedules may bend where λ is small
        light      how far it is below 0, else 0
        strong     how far it is above the second of BENDS, else 0, where λ is large
        observed   the share of pixels that were observed
        depth      how many pixels on average from a missing one to the nearest observed one, at least 1
        rough      mean |Dx⁰|/c, which tells noise, texture, and whether holes begin black
        noisy      how far it is above 0, else 0
        passed     how much of white noise A lets through, ‖An‖²/(‖A‖²‖n‖²): 0 without an operator, far below for a blur

    They end where problems that anything was learned on end: beyond, what was learned is not
    carried on. All but the first stay as they are under y → a·y + b with λ → a·λ, under
    transposition, flips, and permutations of the channels.
    """
    # What is left after the sums is a few numbers for every sample, for which NumPy is quicker than
    # torch.
    count, first, second, variation = _sums(y, mask, x0.detach()).cpu().numpy().T
    tiny = float(torch.finfo(y.dtype).tiny) ** 0.5  # of images that show nothing
    contrast = np.sqrt(np.maximum(second / count - np.square(first / count), tiny**2))
    *_, height, width = x0.shape
    pairs = max(1, x0.shape[1] * ((height - 1) * width + height * (width - 1)))
    weights = weight.detach().double().cpu().numpy() if isinstance(weight, Tensor) else weight
    relative = np.log(np.clip(weights / contrast / ORIGIN["weight"], 1e-3, 300))
    rough = np.log(np.clip(variation / pairs / contrast / ORIGIN["rough"], 1e-2, 1e2))
    found = {
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
    return dict(
        zip(
            found,
            torch.from_numpy(np.stack(list(found.values()))).to(y.device).unbind(),
            strict=True,
        )
    )


def _sums(y: Tensor, mask: Tensor | None, x: Tensor) -> Tensor:
    """Return per sample the number of observed pixels, Σ(y − c) and Σ(y − c)² over them, c one of
    them, and Σ|Dx|.
    """
    if y.shape == x.shape and kernels.supports(y) and y.dtype == x.dtype and kernels.available():
        return kernels.image_sums(y, mask, x)
    seen = torch.ones_like(y) if mask is None else mask.expand_as(y)
    at = seen.flatten(1).argmax(1, keepdim=True)
    moved = seen * (y - y.flatten(1).gather(1, at).reshape(-1, 1, 1, 1))
    variation = sum(sum_per_sample(d.abs().double()) for d in differences(x).values())
    sums = [sum_per_sample(each.double()) for each in (seen, moved, moved.square())]
    return torch.stack([*sums, cast(Tensor, variation)], -1)


def _passed(operator: LinearOperator, norm: float, x0: Tensor) -> np.ndarray:
    """Measure it with the same noise at every call."""
    noise = (
        torch.randn(x0.shape[1:], generator=torch.Generator().manual_seed(0)).to(x0).expand_as(x0)
    )
    left = sum_per_sample(operator.A(noise).square()) / (norm**2 * sum_per_sample(noise.square()))
    return left.clamp(min=1e-4).log().detach().double().cpu().numpy()


def _depth(mask: Tensor | None, batch: int, height: int, width: int) -> np.ndarray:
    """Return the mean distance of missing pixels from observed ones, by rounds of growth in 3×3
    neighbourhoods.
    """
    if mask is None:
        return np.ones(batch)
    missing, rounds = _depths(mask.expand(*mask.shape[:2], height, width)).cpu().numpy().sum(1).T
    return np.broadcast_to(np.maximum(rounds / np.maximum(missing, 1), 1), batch)


def _depths(mask: Tensor) -> Tensor:
    """Return how many pixels of every plane are missing, and the sum of their depths: (…, channels,
    2).
    """
    if kernels.supports(mask) and kernels.available():
        return kernels.hole_depths(mask, DEEPEST)
    missing = rounds = (1 - mask).double().sum((-2, -1))
    for _ in range(DEEPEST):
        if bool(mask.all()):
            break
        mask = F.max_pool2d(mask, 3, stride=1, padding=1)
        rounds = rounds + (1 - mask).double().sum((-2, -1))
    return torch.stack([missing, rounds], -1)
