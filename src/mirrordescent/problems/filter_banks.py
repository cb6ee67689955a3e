"""Banks of convolution filters: responses, their adjoint, and proven bounds on norms."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

SAMPLES = 128
"""Number of frequencies in each direction at which symbols are sampled, for a bank of 7 × 7."""


def responses(x: Tensor, filters: Tensor) -> Tensor:
    """Return wₖ ∗ x at all positions where the filter lies inside the image.

    Args:
        x: Images, (batch, channels, height, width).
        filters: Filters, (count, channels, rows, columns). They are correlated with the image, as
            in ``torch.nn.functional.conv2d``.

    Returns:
        Responses, (batch, count, height − rows + 1, width − columns + 1).
    """
    if x.dtype == torch.float32 or filters.requires_grad or x.requires_grad:
        return F.conv2d(x, filters)
    # Direct convolution in double precision is several times slower than a matrix product.
    rows = x.shape[-2] - filters.shape[-2] + 1
    patches = F.unfold(x, tuple(filters.shape[-2:]))
    return (filters.flatten(1) @ patches).reshape(len(x), len(filters), rows, -1)


def responses_adjoint(u: Tensor, filters: Tensor) -> Tensor:
    """Return Σₖ of the responses uₖ spread over the image by their filters."""
    if filters.requires_grad or u.requires_grad:
        return F.conv_transpose2d(u, filters)
    (rows, columns) = filters.shape[-2:]
    size = (u.shape[-2] + rows - 1, u.shape[-1] + columns - 1)
    return F.fold(filters.flatten(1).mT @ u.flatten(2), size, (rows, columns))


def bank_bound(filters: Tensor, weights: Tensor | None = None, samples: int | None = None) -> float:
    """Return an upper bound on ‖Wᵀ diag(s) W‖ for every size of image, with weights s ≥ 0.

    W maps an image to the responses of all filters at the positions where they lie inside the
    image. Without weights the result bounds ‖W‖².

    **Border.** Let x be continued by 0 to all of Z². The responses of W are some of the responses
    of the convolution on Z², so ‖diag(s)^½Wx‖² is at most that of the convolution. By Parseval's
    identity it is at most sup_ω λ(ω)‖x‖², where λ(ω) is the largest eigenvalue of the symbol

    .. code-block:: none

        G(ω) = Σₖ sₖ ŵₖ(ω)ŵₖ(ω)ᴴ,        a channels × channels matrix

    The same holds for zero padding, which also keeps some responses of the convolution on Z².

    **Sampling.** For a fixed vector v, p(ω) = vᴴG(ω)v ≥ 0 is a real trigonometric polynomial of
    degree d = rows − 1 in ω₁ and columns − 1 in ω₂. For N > 2d equidistant points, a polynomial of
    one variable is at most 1/cos(πd/N) times its largest sample in absolute value (Ehlich and
    Zeller, Math. Z. 86, 1964), so one of two variables at most c = 1/(cos(πd₁/N₁) cos(πd₂/N₂))
    times. Let m be the largest eigenvalue of all samples of G. Then |p − m/2| ≤ m/2 at the samples,
    hence p ≤ m/2 + cm/2 everywhere. The supremum over v and ω gives λ(ω) ≤ (1 + c)m/2.

    **Rounding.** The coefficients of G are sums of rows · columns · count products, of total size
    at most t = Σₖ sₖ(Σ|wₖ|)². Their errors, those of the transform and of the eigenvalues are
    at most a multiple of eps · t, which is added.

    Args:
        filters: Filters, (count, channels, rows, columns).
        weights: Weights s ≥ 0, (count,); 1 by default.
        samples: Number N of samples in each direction.

    >>> import torch
    >>> difference = torch.tensor([[[[-1.0, 1.0, 0.0]]]])
    >>> 4 <= bank_bound(difference) < 4.01
    True
    """
    w = filters.detach().double().cpu().contiguous()
    count, _, rows, columns = w.shape
    s = torch.ones(count, dtype=w.dtype) if weights is None else weights.to(w).contiguous()
    if not bool((s >= 0).all()):
        raise ValueError("weights must be at least 0")
    number = samples or max(SAMPLES, 18 * max(rows, columns))
    if number <= 2 * (max(rows, columns) - 1):
        raise ValueError(
            f"samples must exceed {2 * (max(rows, columns) - 1)} for filters of "
            f"{rows} × {columns}, got {number}"
        )
    return _bound_of_numbers(w.numpy().tobytes(), tuple(w.shape), s.numpy().tobytes(), number)


@lru_cache(maxsize=128)
def _bound_of_numbers(bank: bytes, shape: tuple[int, ...], weights: bytes, number: int) -> float:
    """Return the bound of :func:`bank_bound`. Problems of one prior share it."""
    w = torch.frombuffer(bytearray(bank), dtype=torch.float64).reshape(shape)
    s = torch.frombuffer(bytearray(weights), dtype=torch.float64)
    count, channels, rows, columns = shape
    correlations = _correlations(w, s)
    padding = (0, number - 2 * columns + 1, 0, number - 2 * rows + 1)
    periodic = F.pad(correlations, padding).roll((1 - rows, 1 - columns), (-2, -1))
    symbol = torch.fft.rfft2(periodic).permute(2, 3, 0, 1)
    symbol = (symbol + symbol.mH) / 2
    largest = float(torch.linalg.eigvalsh(symbol)[..., -1].max())
    size = float((s * w.abs().sum((1, 2, 3)).square()).sum())
    terms = count * rows * columns + 16 * math.ceil(math.log2(number)) + 64 * channels
    largest = max(largest, 0.0) + 4 * terms * torch.finfo(torch.float64).eps * size
    factor = 1.0
    for side in (rows, columns):
        factor = factor / math.cos(math.pi * (side - 1) / number)
    return largest * (1 + factor) / 2 * (1 + 1e-14)


def absolute_norm(filters: Tensor) -> float:
    """Return a bound on the norm of the bank with |wₖ| in place of wₖ, for rounding errors.

    The symbol of non-negative filters is largest at ω = 0, entry by entry.
    """
    sums = filters.detach().double().abs().sum((-2, -1))
    return float(torch.linalg.matrix_norm(sums, 2)) * (1 + 1e-12)


def _correlations(w: Tensor, s: Tensor) -> Tensor:
    """Return Σₖ sₖ Σᵢ wₖc(i) wₖd(i + δ) for all pairs of channels and shifts δ.

    Returns:
        Tensor (channels, channels, 2·rows − 1, 2·columns − 1) with δ = 0 in the centre.
    """
    count, channels, rows, columns = w.shape
    flat = w.reshape(count, -1)
    gram = (s.unsqueeze(-1) * flat).mT @ flat
    gram = gram.reshape(channels, rows * columns, channels, rows * columns)
    gram = gram.permute(0, 2, 1, 3).reshape(channels, channels, -1)
    row = torch.arange(rows, device=w.device).repeat_interleave(columns)
    column = torch.arange(columns, device=w.device).repeat(rows)
    down = (row.unsqueeze(0) - row.unsqueeze(1)) + rows - 1
    along = (column.unsqueeze(0) - column.unsqueeze(1)) + columns - 1
    shift = (down * (2 * columns - 1) + along).flatten()
    sums = gram.new_zeros(channels, channels, (2 * rows - 1) * (2 * columns - 1))
    sums = sums.index_add(-1, shift, gram)
    return sums.reshape(channels, channels, 2 * rows - 1, 2 * columns - 1)
