"""Functions of singular values by matrix products alone, without a decomposition.

Products are batched and run on any device.

With the singular value decomposition X = U diag(σ) Vᵀ, an odd polynomial acts on singular values:

.. code-block:: none

    π(X) = aX + b(XXᵀ)X + c(XXᵀ)²X = U diag(aσ + bσ³ + cσ⁵) Vᵀ

A composition of such π_j that pushes σ ∈ [floor, 1] towards 1 computes the polar factor UVᵀ
(Newton–Schulz; with coefficients that minimise the largest error, Polar Express: Amsel et al.
2025). After k of K steps the singular values are about min(s_k σ, 1) with slopes s_0 = 1 < s_1 < …,
ramps that saturate at different sizes. So a combination of the iterates with weights w ≥ 0,

.. code-block:: none

    Σ_k w_k X_k = U diag(Σ_k w_k ρ_k(σ)) Vᵀ,    ρ_k = π_k ∘ … ∘ π_1,

approximates any concave, increasing function of the singular values with no more products than the
polar factor needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Coefficients = tuple[float, float, float]

SIGN: dict[int, tuple[float, tuple[Coefficients, ...]]] = {
    3: (
        0.03,
        ((4.35236, -9.45732, 6.2475), (3.58493, -5.3222, 2.42238), (2.54142, -2.58127, 0.98695)),
    ),
    4: (
        0.01,
        (
            (4.38784, -9.61521, 6.37235),
            (3.55482, -5.24608, 2.37248),
            (3.636, -5.49823, 2.54598),
            (2.31496, -2.0752, 0.73464),
        ),
    ),
    5: (
        0.003,
        (
            (3.94703, -8.30632, 5.41912),
            (3.91672, -6.87261, 3.68186),
            (3.58198, -5.29442, 2.40051),
            (3.59359, -5.33786, 2.434),
            (2.26333, -1.96954, 0.68586),
        ),
    ),
}
"""The floor and the coefficients (a, b, c), by the number of steps K.

They make max |1 − ρ_K(σ)| over [floor, 1.01] small, under the condition that saturated ramps stay
between 0.7 and 1.2. Without this condition the error would be smaller, but the intermediate ρ_k
would not be ramps.
"""


def ramps(s: Tensor, steps: int) -> Tensor:
    """Return ρ_0(s), …, ρ_K(s): (K + 1, …)."""
    iterates = [s]
    for a, b, c in SIGN[steps][1]:
        square = s.square()
        s = s * (a + square * (b + square * c))
        iterates.append(s)
    return torch.stack(iterates)


def fitted(h: Callable[[Tensor], Tensor], steps: int) -> tuple[float, ...]:
    """Return the weights w of the iterates that approximate h best; see :func:`fit_mixture`.

    Args:
        h: Function of singular values in [0, 1].
        steps: Number K of polynomials.

    >>> weights = fitted(lambda s: s.sqrt(), steps=4)
    >>> min(weights) >= 0
    True
    """
    return tuple(fit_mixture(h, lambda s: ramps(s, steps), SIGN[steps][0]))


def fit_mixture(
    h: Callable[[Tensor], Tensor], basis: Callable[[Tensor], Tensor], floor: float
) -> list[float]:
    """Return the weights w ≥ 0 that minimise Σ_s (Σ_k w_k b_k(s)/h(s) − 1)², for floor ≤ s ≤ 1.

    The points s are equally spaced in log s. The solver is cyclic coordinate descent.

    Args:
        h: Function to approximate.
        basis: Function that returns all b_k(s), (count, …).
        floor: Smallest s.
    """
    grid = torch.logspace(math.log10(floor), 0, 200, dtype=torch.float64)
    relative = basis(grid) / h(grid)
    gram = (relative @ relative.T).tolist()
    right = relative.sum(1).tolist()
    w = [0.0] * len(right)
    for _ in range(500):
        for k, row in enumerate(gram):
            product = sum(entry * weight for entry, weight in zip(row, w, strict=True))
            w[k] = max(0.0, (right[k] - product + row[k] * w[k]) / row[k])
    return w


def combined(matrices: Sequence[Tensor], weights: Sequence[tuple[float, ...]]) -> list[Tensor]:
    """Return Σ_k w_k X_k for matrices X, each divided by ‖XXᵀ‖_F^½ ≥ σ₁ first; 0 for X = 0.

    Args:
        matrices: Matrices X, (batch, rows, columns).
        weights: Weights w of each batch of matrices.
    """
    return map_by_grams(matrices, weights, len, _factor)


def _factor(G: Tensor, weights: list[tuple[float, ...]]) -> Tensor:
    """Return the symmetric Q with Σ_k w_k X_k = QX, by iterating on the Gram matrix G."""
    w = stacked(weights, G)
    steps = SIGN[len(weights[0]) - 1][1]
    Q = None
    total = w[0] * torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
    for k, (a, b, c) in enumerate(steps, 1):
        q = (G @ G).mul_(c).add_(G, alpha=b)
        q.diagonal(dim1=-2, dim2=-1).add_(a)
        Q = q if Q is None else Q @ q
        total = torch.addcmul(total, w[k], Q)
        if k < len(steps):
            G = q @ (q @ G)
    return total


def map_by_grams(
    matrices: Sequence[Tensor],
    functions: Sequence[Any],
    kind: Callable[[Any], Any],
    factor: Callable[[Tensor, list[Any]], Tensor],
) -> list[Tensor]:
    """Return s^−½ Q X for matrices X, with s = ‖XXᵀ‖_F and Q = factor(XXᵀ/s, functions).

    s^½ = ‖X‖₄ (Schatten) is a bound on σ₁ that needs no further computation. Tall matrices are
    transposed, so that Gram matrices are small. Gram matrices of one size are stacked, if their
    functions are of one kind.

    Args:
        matrices: Matrices X, (batch, rows, columns).
        functions: Function of singular values of each batch of matrices.
        kind: Function that returns a key; functions with equal keys can be evaluated together.
        factor: Function that maps Gram matrices (batch, n, n) and one function per matrix to Q.
    """
    wide = [_as_wide(X) for X in matrices]
    results = list(wide)
    groups = dict[Any, list[int]]()
    for i, (X, function) in enumerate(zip(wide, functions, strict=True)):
        if X.numel():
            groups.setdefault((X.shape[-2], kind(function), X.dtype, X.device), []).append(i)
    for indices in groups.values():
        size, G = normalised(torch.cat([wide[i] @ wide[i].mT for i in indices]))
        lengths = [len(wide[i]) for i in indices]
        repeated = []
        for i, length in zip(indices, lengths, strict=True):
            repeated += [functions[i]] * length
        Q = factor(G, repeated) / size.sqrt()
        for i, part in zip(indices, torch.split(Q, lengths), strict=True):
            results[i] = part @ wide[i]
    pairs = zip(results, matrices, strict=True)
    return [Y if _is_wide(X) else Y.mT for Y, X in pairs]


def _is_wide(X: Tensor) -> bool:
    return X.shape[-2] <= X.shape[-1]


def _as_wide(X: Tensor) -> Tensor:
    return X if _is_wide(X) else X.mT


def stacked(weights: list[tuple[float, ...]], like: Tensor) -> Tensor:
    """Return the weights of every matrix of a batch: (K + 1, batch, 1, 1)."""
    return torch.tensor(weights, dtype=like.dtype, device=like.device).T[..., None, None]


def normalised(G: Tensor) -> tuple[Tensor, Tensor]:
    """Return ‖G‖_F, or the smallest positive number if it is 0, and G divided by it.

    The norm is computed in double precision, because squares of entries may overflow.
    """
    norm = torch.linalg.vector_norm(G, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    size = norm.to(G.dtype).clamp(min=torch.finfo(G.dtype).tiny)
    return size, G / size
