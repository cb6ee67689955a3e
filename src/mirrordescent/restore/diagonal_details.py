"""Estimation of the noise of a grey image from the diagonal Haar details of smooth regions."""

import torch
from torch import Tensor
from torch.nn import functional as F

SIDE = 16  # of regions, in pixels
FEWEST = 12  # complete squares of 2×2 pixels in a region
SMOOTHEST = 0.2  # share of the regions


def level_of_light(light: Tensor, known: Tensor | None) -> float:
    """Return the standard deviation of the noise of a grey image.

    The diagonal detail (a − b − c + d)/2 of four neighbouring pixels has the variance σ² where the
    image is smooth. Smooth regions are those in which the means (a + b + c + d)/4 vary least. The
    means of white noise are independent of its details, so this choice has no bias.

    Args:
        light: Image (height, width) in [0, 1].
        known: 1 or True at known pixels, (height, width). Squares with a missing pixel do not
            count.

    Returns:
        σ, or 0 if too few pixels are known.
    """
    if min(light.shape) <= SIDE:
        return 0.0
    a = light[:-1, :-1]
    b = light[:-1, 1:]
    c = light[1:, :-1]
    d = light[1:, 1:]
    weight = torch.ones_like(a)
    if known is not None:
        seen = known.to(light)
        weight = seen[:-1, :-1] * seen[:-1, 1:] * seen[1:, :-1] * seen[1:, 1:]
    means = (a + b + c + d) / 4
    quantities = [weight, weight * means, weight * means**2, weight * ((a - b - c + d) / 2) ** 2]
    sums = F.avg_pool2d(torch.stack(quantities), SIDE, stride=SIDE // 2, divisor_override=1)
    count, first, second, details = sums.flatten(1)
    enough = count >= FEWEST
    if not bool(enough.any()):
        return 0.0
    count, first, second, details = sums.flatten(1)[:, enough]
    variation = second / count - (first / count) ** 2
    smooth = variation.topk(max(1, int(SMOOTHEST * len(count))), largest=False).indices
    return float(details[smooth].sum() / count[smooth].sum()) ** 0.5
