"""Steps of preconditioned methods on many tensors, each by one call of a kernel."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from mirrordescent.kernels.call import addresses, function, supports

BlockShape: TypeAlias = tuple[int, int, int]
"""The number of matrices in a tensor, and the rows and columns of each."""

_dtype = attrgetter("dtype")
_device = attrgetter("device")
_shape = attrgetter("shape")


def has_moments(*lists: Sequence[Tensor]) -> bool:
    """Return whether :func:`momenta` and :func:`adaptive_step` support these lists of tensors.

    All tensors must have one precision and be contiguous, and all lists must have the same shapes.
    """
    first = lists[0][0]
    if not supports(first):
        return False
    shapes = list(map(_shape, lists[0]))
    for tensors in lists:
        if (
            set(map(_dtype, tensors)) != {first.dtype}
            or set(map(_device, tensors)) != {first.device}
            or list(map(_shape, tensors)) != shapes
            or not all(map(Tensor.is_contiguous, tensors))
        ):
            return False
    return True


def momenta(m: Sequence[Tensor], g: Sequence[Tensor], beta: float) -> list[Tensor]:
    """Set m ← βm + (1 − β)g in place, and return βm + (1 − β)g with the new m."""
    v = list(map(torch.empty_like, m))
    function("momenta", m[0].dtype)(
        count=len(m), sizes=_sizes(m), m=addresses(m), g=addresses(g), v=addresses(v), beta=beta
    )
    increment_version(m)  # autograd graphs that saved the old values must not be used any more
    return v


def adaptive_step(
    x: Sequence[Tensor],
    n: Sequence[Tensor],
    w: Sequence[Tensor],
    u: Sequence[Tensor],
    steps: Sequence[float],
    second: float,
    keep: float,
    tiny: float,
) -> None:
    """n ← β₂n + (1 − β₂)u²,  w ← β₂w + 1 − β₂,  x ← keep·x − step·√w·u/(√n + tiny), in place.

    Args:
        x: Points.
        n: Second moments.
        w: Sum of the weights of each second moment, a number.
        u: Directions.
        steps: Step size of each tensor.
        second: β₂.
        keep: Factor of the weight decay.
        tiny: Number that is added to √n.
    """
    function("adapted", x[0].dtype)(
        count=len(x),
        sizes=_sizes(x),
        x=addresses(x),
        n=addresses(n),
        w=addresses(w),
        u=addresses(u),
        steps=array("d", steps),
        second=second,
        keep=keep,
        tiny=tiny,
    )
    increment_version([*x, *n, *w])


def has_powers(tensors: Sequence[Tensor]) -> bool:
    """Return whether :func:`powers` supports these tensors: one precision, no derivatives."""
    first = tensors[0]
    if not supports(first) or set(map(_dtype, tensors)) != {first.dtype}:
        return False
    if set(map(_device, tensors)) != {first.device}:
        return False
    return not (torch.is_grad_enabled() and any(y.requires_grad for y in tensors))


def powers(tensors: Sequence[Tensor], exponent: float) -> list[Tensor]:
    """Return s·sign(x)|x|^exponent for every tensor x.

    The factor s makes the mean square of the entries 1.
    """
    x = list(map(Tensor.contiguous, tensors))
    y = list(map(torch.empty_like, x))
    function("powers", x[0].dtype)(
        count=len(x), sizes=_sizes(x), x=addresses(x), y=addresses(y), exponent=exponent
    )
    return y


def has_directions(y: Tensor) -> bool:
    """Return whether :func:`directions` supports a tensor. Derivatives are not supported."""
    return supports(y) and not (torch.is_grad_enabled() and y.requires_grad)


def directions(
    tensors: Sequence[Tensor],
    functions: Sequence[Any],
    shapes: Sequence[BlockShape] | None = None,
) -> list[Tensor]:
    """Return D/rms(D) with D = U diag(h(σ)) Vᵀ for every block X of every tensor; 0 for zeros.

    The mean square is over all blocks of a tensor.

    Args:
        tensors: Tensors.
        functions: h of each tensor, a :class:`~mirrordescent.mirrors.resolvents.Resolvents` of the
            singular values divided by ‖XXᵀ‖_F^½. All have the same number of shifts.
        shapes: Number of blocks of each tensor, and the rows and columns of a block. By default
            every tensor is one matrix, its first axis against all others.
    """
    x = list(map(Tensor.contiguous, tensors))
    y = list(map(torch.empty_like, x))
    blocks = array("q")
    rows = array("q")
    columns = array("q")
    weights = array("d")
    shifts = array("d")
    if shapes is None:
        shapes = [_one_matrix(tensor) for tensor in x]
    for h, shape in zip(functions, shapes, strict=True):
        blocks.append(shape[0])
        rows.append(shape[1])
        columns.append(shape[2])
        weights.extend(h.weights)
        shifts.extend(h.shifts)
    function("directions", x[0].dtype)(
        count=len(x),
        x=addresses(x),
        y=addresses(y),
        poles=len(functions[0].shifts),
        blocks=blocks,
        rows=rows,
        columns=columns,
        weights=weights,
        shifts=shifts,
    )
    return y


def _one_matrix(y: Tensor) -> BlockShape:
    """Return the shape of a tensor as one matrix, its first axis against all others."""
    rows = y.shape[0] if y.ndim else 1
    return 1, rows, y.numel() // max(rows, 1)


def _sizes(tensors: Sequence[Tensor]) -> array[int]:
    return array("q", map(Tensor.numel, tensors))
