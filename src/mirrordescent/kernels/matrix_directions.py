"""Functions of singular values, of many matrices in one call."""

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mirrordescent.kernels.call import addresses, function, supports

LARGEST = 512  # smaller sides up to which all that is needed stays near the processor


def has_directions(y: Tensor, parts: int = 1) -> bool:
    """Tell whether :func:`directions` takes a tensor, as so many blocks of rows; derivatives do not
    go through it.
    """
    _, rows, columns = _shape(y, parts)
    return (
        supports(y)
        and min(rows, columns) <= LARGEST
        and not (torch.is_grad_enabled() and y.requires_grad)
    )


def directions(
    tensors: Sequence[Tensor], functions: Sequence[Any], parts: Sequence[int] | None = None
) -> list[Tensor]:
    """D/rms(D) with D = U diag(h(σ)) Vᵀ for every block X of every tensor; 0 for zeros.

    Tensors are matrices of their first axis against all others, with so many blocks of rows, one by
    default. Each has its own h, the :class:`~mirrordescent.mirrors.resolvents.Resolvents` of
    singular values divided by ‖XXᵀ‖_F^½, all with as many shifts. The mean square is over all
    blocks.
    """
    x = [tensor.contiguous() for tensor in tensors]
    y = [torch.empty_like(each) for each in x]
    shapes = zip(*map(_shape, x, parts or [1] * len(x)), strict=True)
    function("directions", x[0].dtype)(
        count=len(x),
        x=addresses(x),
        y=addresses(y),
        poles=len(functions[0].shifts),
        **{
            name: array("l", sizes)
            for name, sizes in zip(("blocks", "rows", "columns"), shapes, strict=True)
        },
        weights=array("d", [w for each in functions for w in each.weights]),
        shifts=array("d", [c for each in functions for c in each.shifts]),
    )
    return y


def _shape(y: Tensor, parts: int) -> tuple[int, int, int]:
    """Return the number of blocks, and the rows and columns of each."""
    rows = y.shape[0] if y.ndim else 1
    if rows % parts:
        raise ValueError(f"{rows} rows cannot be divided into {parts} blocks")
    return parts, rows // parts, y.numel() // max(rows, 1)
