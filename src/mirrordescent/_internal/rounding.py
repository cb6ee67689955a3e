"""Directed rounding: bounds remain bounds in a type with lower precision."""

import torch
from torch import Tensor


def rounded_down(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the largest number of a type that is at most the bound.

    >>> third = torch.tensor(1 / 3, dtype=torch.float64)
    >>> bool(rounded_down(third, torch.float32) < third < rounded_up(third, torch.float32))
    True
    """
    nearest = bound.to(dtype)
    above = nearest.detach().double() > bound.detach()
    next_below = nearest.detach().nextafter(nearest.new_tensor(-torch.inf))
    down = torch.where(above, next_below, nearest.detach())
    if not nearest.requires_grad:
        return down
    return nearest + (down - nearest).detach()


def rounded_up(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the smallest number of a type that is at least the bound."""
    return -rounded_down(-bound, dtype)
