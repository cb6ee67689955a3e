"""Numbers that are to stay on one side of the true ones when they are stored in fewer digits."""

import torch
from torch import Tensor


def rounded_down(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the greatest number of a type that is not above the bound.

    >>> third = torch.tensor(1 / 3, dtype=torch.float64)
    >>> bool(rounded_down(third, torch.float32) < third < rounded_up(third, torch.float32))
    True
    """
    near = bound.to(dtype)
    above = near.detach().double() > bound.detach()
    down = torch.where(above, near.detach().nextafter(near.new_tensor(-torch.inf)), near.detach())
    return near + (down - near).detach() if near.requires_grad else down


def rounded_up(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the least number of a type that is not below the bound."""
    return -rounded_down(-bound, dtype)
