"""Running means of gradients and of squares, and the steps they lead to, in C."""

from array import array
from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from mirrordescent.kernels.call import addresses, function, suits

_dtype, _device = attrgetter("dtype"), attrgetter("device")


def has_moments(*lists: Sequence[Tensor]) -> bool:
    """Tell whether :func:`momenta` and :func:`adapted` take these tensors: of one precision, each without gaps."""
    first = lists[0][0]
    if not suits(first):
        return False
    every = [each for some in lists for each in some]
    kinds = set(map(_dtype, every)) == {first.dtype} and set(map(_device, every)) == {first.device}
    return kinds and all(map(Tensor.is_contiguous, every))


def momenta(m: Sequence[Tensor], g: Sequence[Tensor], beta: float) -> list[Tensor]:
    """m ← βm + (1 − β)g in place, and return βm + (1 − β)g with the new m."""
    v = [torch.empty_like(each) for each in m]
    function("momenta", m[0].dtype)(
        count=len(m), sizes=_sizes(m), m=addresses(m), g=addresses(g), v=addresses(v), beta=beta
    )
    return v


def adapted(
    x: Sequence[Tensor], n: Sequence[Tensor], u: Sequence[Tensor], steps: Sequence[float], second: float, keep: float,
    tiny: float,
) -> None:  # fmt: skip
    """n ← β₂n + (1 − β₂)u²,  x ← keep·x − step·u/(√n + tiny), in place."""
    function("adapted", x[0].dtype)(
        count=len(x), sizes=_sizes(x), x=addresses(x), n=addresses(n), u=addresses(u), steps=array("d", steps),
        second=second, keep=keep, tiny=tiny,
    )  # fmt: skip


def _sizes(tensors: Sequence[Tensor]) -> "array[int]":
    return array("l", map(Tensor.numel, tensors))
