"""Running means of gradients and of squares, and the steps they lead to, in C."""

from array import array
from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from mirrordescent.kernels.call import addresses, function, supports

_dtype = attrgetter("dtype")
_device = attrgetter("device")
_shape = attrgetter("shape")


def has_moments(*lists: Sequence[Tensor]) -> bool:
    """Tell whether :func:`momenta` and :func:`adapted` take these lists of tensors.

    They are to have one precision and no gaps, and the shapes of all lists are to be the same.
    """
    first = lists[0][0]
    if not supports(first):
        return False
    every = [each for some in lists for each in some]
    kinds = set(map(_dtype, every)) == {first.dtype} and set(map(_device, every)) == {first.device}
    shapes = [list(map(_shape, some)) for some in lists]
    return (
        kinds
        and all(each == shapes[0] for each in shapes)
        and all(map(Tensor.is_contiguous, every))
    )


def momenta(m: Sequence[Tensor], g: Sequence[Tensor], beta: float) -> list[Tensor]:
    """m ← βm + (1 − β)g in place, and return βm + (1 − β)g with the new m."""
    v = [torch.empty_like(each) for each in m]
    function("momenta", m[0].dtype)(
        count=len(m), sizes=_sizes(m), m=addresses(m), g=addresses(g), v=addresses(v), beta=beta
    )
    increment_version(m)  # graphs that have kept them must not be used any more
    return v


def adapted(
    x: Sequence[Tensor],
    n: Sequence[Tensor],
    w: Sequence[Tensor],
    u: Sequence[Tensor],
    steps: Sequence[float],
    second: float,
    keep: float,
    tiny: float,
) -> None:
    """n ← β₂n + (1 − β₂)u²,  w ← β₂w + 1 − β₂,  x ← keep·x − step·√w·u/(√n + tiny), in place; every
    w is a number.
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


def _sizes(tensors: Sequence[Tensor]) -> "array[int]":
    return array("l", map(Tensor.numel, tensors))
