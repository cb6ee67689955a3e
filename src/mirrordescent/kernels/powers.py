"""Directions of powers, of many tensors in one call."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from mirrordescent.kernels.call import addresses, function, supports


def has_powers(tensors: Sequence[Tensor]) -> bool:
    """Tell whether :func:`powers` takes these tensors: of one precision, and where no derivatives
    are wanted.
    """
    wanted = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    return not wanted and all(supports(each) and each.dtype == tensors[0].dtype for each in tensors)


def powers(tensors: Sequence[Tensor], exponent: float) -> list[Tensor]:
    """Return s·sign(x)|x|^exponent for every tensor x, with an s that makes the mean square of its
    entries 1.
    """
    x = [each.contiguous() for each in tensors]
    y = [torch.empty_like(each) for each in x]
    function("powers", x[0].dtype)(
        count=len(x),
        sizes=array("l", map(Tensor.numel, x)),
        x=addresses(x),
        y=addresses(y),
        exponent=exponent,
    )
    return y
