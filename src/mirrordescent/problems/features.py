"""What a total-variation problem tells of itself: a few numbers without units."""

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent import kernels
from mirrordescent.problems.differences import differences
from mirrordescent.problems.operators import LinearOperator
from mirrordescent.trees import sum_per_sample

ORIGIN = {"weight": 0.6, "rough": 0.4}
"""λ over the contrast, and mean |Dx⁰| over the contrast, of the problem at which these features are 0."""


BENDS = (-2.0, 1.0)
"""log(λ/c), relative to its origin, below which λ is faint and above which it is strong."""

DEEPEST = 64
"""A hole in which a pixel is farther than this from what is known counts as that deep; the search ends there."""


def image_features(
    y: Tensor, mask: Tensor | None, weight: float | Tensor, scale: float, x0: Tensor,
    operator: LinearOperator | None = None, norm: float = 1.0,
) -> dict[str, Tensor]:  # fmt: skip
    """Return logarithms, (batch,) each. The contrast c is the standard deviation of the observed pixels of an image.

    .. code-block:: none

        unit       2s‖A‖², the curvature of the data term, which is the unit of curvatures and 1/steps
        weight     λ/c
        faint      how far log(λ/c) is below the first of BENDS, else 0, so that schedules may bend where λ is small
        strong     how far it is above the second, else 0, where it is large
        observed   the share of pixels that were observed
        depth      how many pixels on average from a missing one to the nearest observed one, at least 1
        rough      mean |Dx⁰|/c, which tells noise, texture, and whether holes begin black
        passed     how much of white noise A lets through, ‖An‖²/(‖A‖²‖n‖²): 0 without an operator, far below for a blur

    All but the first stay as they are under y → a·y + b with λ → a·λ, under transposition, flips, and permutations of
    the channels.
    """
    count, first, second, variation = _sums(y, mask, x0.detach()).to(y).unbind(-1)
    contrast = (second / count - (first / count).square()).clamp(min=0).sqrt()
    contrast = contrast.clamp(min=torch.finfo(y.dtype).tiny ** 0.5)  # of images that show nothing
    *_, height, width = x0.shape
    pairs = max(1, x0.shape[1] * ((height - 1) * width + height * (width - 1)))
    rough = variation / pairs
    weight = torch.as_tensor(weight, dtype=y.dtype, device=y.device)
    relative = (weight / contrast / ORIGIN["weight"]).clamp(1e-4, 1e4).log()
    return {
        "unit": torch.full_like(contrast, 2 * scale * norm**2).log(),
        "weight": relative,
        "faint": (BENDS[0] - relative).clamp(min=0),
        "strong": (relative - BENDS[1]).clamp(min=0),
        "observed": (count / y[0].numel()).log(),
        "depth": _depth(mask, y).log(),
        "rough": (rough / contrast / ORIGIN["rough"]).clamp(1e-2, 1e2).log(),
        "passed": torch.zeros_like(contrast) if operator is None else _passed(operator, norm, x0),
    }


def _sums(y: Tensor, mask: Tensor | None, x: Tensor) -> Tensor:
    """Return per sample the number of observed pixels, Σ(y − c) and Σ(y − c)² over them, c one of them, and Σ|Dx|."""
    if y.shape == x.shape and kernels.suits(y) and y.dtype == x.dtype and kernels.ready():
        return kernels.image_sums(y, mask, x)
    seen = torch.ones_like(y) if mask is None else mask.expand_as(y)
    at = seen.flatten(1).argmax(1, keepdim=True)
    moved = seen * (y - y.flatten(1).gather(1, at).reshape(-1, 1, 1, 1))
    variation = sum(sum_per_sample(d.abs().double()) for d in differences(x).values())
    sums = [sum_per_sample(each.double()) for each in (seen, moved, moved.square())]
    return torch.stack([*sums, cast(Tensor, variation)], -1)


def _passed(operator: LinearOperator, norm: float, x0: Tensor) -> Tensor:
    """Measure it with the same noise at every call."""
    noise = torch.randn(x0.shape[1:], generator=torch.Generator().manual_seed(0)).to(x0).expand_as(x0)
    left = sum_per_sample(operator.A(noise).square()) / (norm**2 * sum_per_sample(noise.square()))
    return left.clamp(min=1e-4).log()


def _depth(mask: Tensor | None, y: Tensor) -> Tensor:
    """Return the mean distance of missing pixels from observed ones, by rounds of growth in 3×3 neighbourhoods."""
    if mask is None:
        return y.new_ones(len(y))
    known = mask.expand(*mask.shape[:2], *y.shape[-2:])
    missing = rounds = sum_per_sample(1 - known)
    for _ in range(DEEPEST):
        if bool(known.all()):
            break
        known = F.max_pool2d(known, 3, stride=1, padding=1)
        rounds = rounds + sum_per_sample(1 - known)
    return (rounds / missing.clamp(min=1)).clamp(min=1).expand(len(y))
