"""Filling of holes in photographs."""

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.conjugate_gradients import conjugate_gradients
from mirrordescent.problems.differences import add_adjoint, differences
from mirrordescent.trees import sum_per_sample

# On training photographs, more steps do not help for small holes and are worse for deep ones.
STEPS = 6
# Distance from known pixels, in pixels, beyond which a user is told that nothing is invented. It is
# a round number, not a measured one.
DEEP_HOLE = 8


@torch.no_grad()
def smooth_holes(x: Tensor, mask: Tensor, steps: int = STEPS) -> Tensor:
    """Take a few conjugate gradient steps on ½‖Δx‖² over the missing pixels, with Δ = −DᵀD.

    Known pixels stay as they are. Total variation ends abruptly at the rim of a hole. After a few
    steps, small holes are filled with least curvature, as by biharmonic inpainting, and the inside
    of deep holes is still filled as by total variation.

    Args:
        x: Images, (batch, channels, height, width).
        mask: 1 or True at known pixels, broadcastable to x.
        steps: Number of steps.
    """
    hole = 1 - mask.to(x)

    def gradient(image: Tensor) -> Tensor:
        return hole * _laplacian(_laplacian(image))

    return conjugate_gradients(gradient, -gradient(x), 0.0, max_iterations=steps, start=x).x


def _laplacian(x: Tensor) -> Tensor:
    return add_adjoint(torch.zeros_like(x), differences(x))


def fill_holes(y: Tensor, mask: Tensor) -> Tensor:
    """Fill holes of any depth with means of larger and larger neighbourhoods, in linear time.

    Args:
        y: Images, (batch, channels, height, width).
        mask: 1 or True at known pixels, broadcastable to y.
    """
    known = mask.to(y).expand_as(y)
    if bool(known.all()) or min(y.shape[-2:]) == 1:
        return torch.where(known.bool(), y, sum_per_sample(known * y).sum() / known.sum())
    weight = F.avg_pool2d(known, 2, ceil_mode=True)
    total = F.avg_pool2d(known * y, 2, ceil_mode=True)
    coarse = fill_holes(total / weight.clamp(min=torch.finfo(y.dtype).tiny), weight > 0)
    filled = F.interpolate(coarse, y.shape[-2:], mode="bilinear", align_corners=False)
    return torch.where(known.bool(), y, filled)


def has_deep_holes(mask: Tensor, depth: int = DEEP_HOLE) -> bool:
    """Return whether a missing pixel is farther than ``depth`` pixels from all known ones.

    Args:
        mask: True at known pixels, (height, width).
        depth: Distance, the larger one of rows and columns.
    """
    known = mask.float()[None, None]
    near = F.max_pool2d(known, 2 * depth + 1, stride=1, padding=depth)
    return not bool(near.all())
