"""Rounding: bounds on errors of sums, and bounds that remain bounds in a lower precision."""

import math

import torch
from torch import Tensor

GUARD = 16
"""Roundings of a summand that are charged beside those of the sum."""


def unit(terms: int, dtype: torch.dtype = torch.float64) -> float:
    """Return a bound on the rounding error of a sum of n terms, relative to Σ|terms|.

    Sums in any order, of products of rounded factors, have a relative error of at most
    (n + c)u/(1 − (n + c)u) with u = eps/2 and a small number c of roundings of each term
    (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1).
    (n + 16)·eps is nearly twice as much.

    >>> unit(100) < 3e-14
    True
    """
    return (terms + GUARD) * torch.finfo(dtype).eps


def sum_error(size: Tensor, terms: int) -> Tensor:
    """Return a bound on the rounding error of sums of n terms, in the type of ``size``.

    Args:
        size: Σ|terms|, of any shape.
        terms: Number n of terms.

    Products of tiny numbers underflow, which costs at most the smallest normal number a term. A sum
    of zeros is exact.
    """
    size = size.detach()
    error = unit(terms, size.dtype) * size + (terms + GUARD) * torch.finfo(size.dtype).tiny
    return torch.where(size == 0, 0.0, error)


def additions(terms: int) -> int:
    """Return the number of roundings that a term of a sum of n terms suffers in ``Tensor.sum``.

    On a CPU, PyTorch adds 4 streams of n/4 terms in a cascade of four levels. Each of the first
    three levels adds 2^p numbers, p = max(4, ⌊log₂(n/4)/4⌋), and the last one adds the rest. Adding
    streams and vector lanes takes at most 36 more roundings.

    >>> additions(16), additions(36_000_000)
    (85, 263)
    """
    stream = max(1, -(-terms // 4))
    levels = max(4, math.ceil(math.log2(stream)) // 4)
    return 3 * 2**levels + -(-stream // 2 ** (3 * levels)) + 36


def positive_sum_error(total: Tensor, terms: int) -> Tensor:
    """Return a bound on the rounding error of ``Tensor.sum`` over n terms ≥ 0, (batch,).

    Every term may have been rounded 16 times. The bound is proportional to the sum, apart from the
    underflow of tiny terms. On devices other than a CPU the order of the sum is unknown, and the
    bound is that of :func:`sum_error`.

    Args:
        total: Sums, as computed, (batch,).
        terms: Number n of terms.
    """
    total = total.detach()
    count = additions(terms) if total.device.type == "cpu" else terms
    numbers = torch.finfo(total.dtype)
    return (count + GUARD) * numbers.eps * total.abs() + terms * numbers.tiny


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
