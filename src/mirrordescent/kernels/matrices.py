"""Functions of singular values, of many matrices in one call."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from mirrordescent.kernels.call import addresses, function, suits

LARGEST = 256  # smaller sides up to which all that is needed stays in the nearer caches


def has_directions(X: Tensor) -> bool:
    """Tell whether :func:`directions` takes a tensor (blocks, rows, columns); derivatives do not go through it."""
    return suits(X) and min(X.shape[1:]) <= LARGEST and not (torch.is_grad_enabled() and X.requires_grad)


def directions(
    tensors: Sequence[Tensor], weights: Sequence[Sequence[float]], coefficients: Sequence[Sequence[float]]
) -> list[Tensor]:
    """D/rms(D) with D = Σ_k w_k X_k of every block X of every tensor (blocks, rows, columns); 0 for zeros.

    X_k are Newton–Schulz steps with these coefficients, from X/‖XXᵀ‖_F^½ on, and the mean square is over all blocks.
    """
    x = [tensor.contiguous() for tensor in tensors]
    y = [torch.empty_like(each) for each in x]
    shapes = list(zip(*(each.shape for each in x), strict=True))
    function("directions", x[0].dtype)(
        count=len(x), x=addresses(x), y=addresses(y), steps=len(coefficients),
        **{name: array("l", sizes) for name, sizes in zip(("blocks", "rows", "columns"), shapes, strict=True)},
        weights=array("d", [w for each in weights for w in each]),
        coefficients=array("d", [c for each in coefficients for c in each]),
    )  # fmt: skip
    return y
