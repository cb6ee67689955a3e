"""Holes in photographs whose known pixels are right as they are."""

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.conjugate_gradients import conjugate_gradients
from mirrordescent.problems.differences import add_adjoint, differences
from mirrordescent.trees import sum_per_sample

STEPS = 6  # on training photographs as good as any number for small holes, and better for deep ones


@torch.no_grad()
def smooth_holes(x: Tensor, mask: Tensor, steps: int = STEPS) -> Tensor:
    """Take a few steps of conjugate gradients on ½‖Δx‖² over the missing pixels, Δ = −DᵀD; the
    others stay.

    Total variation ends abruptly at the rim of a hole. After a few steps small holes have least
    curvature, as with biharmonic inpainting, while the inside of deep ones is still what total
    variation made of it.

    Args:
        x: images, (batch, channels, height, width).
        mask: 1 or True where pixels are known, which broadcasts to x.
        steps: how many.
    """
    hole = 1 - mask.to(x)

    def curved(image: Tensor) -> Tensor:
        return hole * _laplacian(_laplacian(image))

    return conjugate_gradients(curved, -curved(x), 0.0, max_iterations=steps, start=x).x


def _laplacian(x: Tensor) -> Tensor:
    return add_adjoint(torch.zeros_like(x), differences(x))


def pulled(y: Tensor, mask: Tensor) -> Tensor:
    """Fill holes of any depth with means of ever larger neighbourhoods, in time proportional to the
    pixels.
    """
    known = mask.to(y).expand_as(y)
    if bool(known.all()) or min(y.shape[-2:]) == 1:
        return torch.where(known.bool(), y, sum_per_sample(known * y).sum() / known.sum())
    weight = F.avg_pool2d(known, 2, ceil_mode=True)
    coarse = F.avg_pool2d(known * y, 2, ceil_mode=True) / weight.clamp(
        min=torch.finfo(y.dtype).tiny
    )
    below = pulled(coarse, weight > 0)
    above = F.interpolate(below, y.shape[-2:], mode="bilinear", align_corners=False)
    return torch.where(known.bool(), y, above)
