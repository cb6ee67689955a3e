"""Exact denoising of series by total variation, and trend filtering, in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from mirrordescent.kernels.call import function


def taut_strings(y: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and v = r-string distances of series (count, length): x = y − Dᵀv.

    Args:
        y: Series.
        radius: Radius of the tube of every series, (count,), in double precision.
    """
    y = y.contiguous()
    x = torch.empty_like(y)
    v = y.new_empty(len(y), y.shape[1] - 1)
    function("taut_strings", y.dtype)(
        count=len(y), length=y.shape[1], y=y, sizes=radius.contiguous(), x=x, u=v
    )
    return x, v


def trend_filters(y: Tensor, radius: Tensor, tolerance: float, steps: int) -> tuple[Tensor, Tensor]:
    """Return x and v of trend filtering of series (count, length): x = y − Dᵀv.

    Args:
        y: Series.
        radius: Largest |v| of every series, (count,), in double precision.
        tolerance: Relative duality gap.
        steps: Largest number of Newton steps.
    """
    y = y.contiguous()
    x = torch.empty_like(y)
    v = y.new_empty(len(y), max(0, y.shape[1] - 2))
    function("trend_filters", y.dtype)(
        count=len(y),
        length=y.shape[1],
        y=y,
        sizes=radius.contiguous(),
        tolerance=tolerance,
        steps=steps,
        x=x,
        u=v,
    )
    return x, v
