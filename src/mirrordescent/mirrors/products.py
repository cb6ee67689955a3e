"""Functions of singular values by matrix products alone: no decomposition, so they batch and run on any device.

With the singular value decomposition X = U diag(σ) Vᵀ, an odd polynomial acts on singular values:

.. code-block:: none

    π(X) = aX + b(XXᵀ)X + c(XXᵀ)²X = U diag(aσ + bσ³ + cσ⁵) Vᵀ

A composition of such π_j that pushes σ ∈ [floor, 1] towards 1 computes the polar factor UVᵀ (Newton–Schulz; with
coefficients that minimise the largest error, Polar Express: Amsel et al. 2025). After k of K steps the singular values
are about min(s_k σ, 1) with slopes s_0 = 1 < s_1 < …, ramps that saturate at different sizes. So a combination of the
iterates with weights w ≥ 0,

.. code-block:: none

    Σ_k w_k X_k = U diag(Σ_k w_k ρ_k(σ)) Vᵀ,    ρ_k = π_k ∘ … ∘ π_1,

takes any concave, increasing function of the singular values for no more products than the polar factor needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Coefficients = tuple[float, float, float]

SIGN: dict[int, tuple[float, tuple[Coefficients, ...]]] = {
    3: (0.03, ((4.35236, -9.45732, 6.2475), (3.58493, -5.3222, 2.42238), (2.54142, -2.58127, 0.98695))),
    4: (
        0.01,
        (
            (4.38784, -9.61521, 6.37235), (3.55482, -5.24608, 2.37248), (3.636, -5.49823, 2.54598),
            (2.31496, -2.0752, 0.73464),
        ),
    ),
    5: (
        0.003,
        (
            (3.94703, -8.30632, 5.41912), (3.91672, -6.87261, 3.68186), (3.58198, -5.29442, 2.40051),
            (3.59359, -5.33786, 2.434), (2.26333, -1.96954, 0.68586),
        ),
    ),
}  # fmt: skip
"""By the number of steps: the floor, and coefficients (a, b, c) with a small max |1 − ρ_K(σ)| over [floor, 1.01].

Among those whose ramps stay between 0.7 and 1.2 where they have saturated: without that condition the error would be
smaller still, but the ρ_k on the way would not be ramps.
"""

WIDE = 1.5  # from this ratio of the sides on, it pays to iterate on the Gram matrix of the smaller one
SMALL = (16, 32, 64)  # Gram matrices up to these sizes are filled up with zeros and multiplied together


def ramps(s: Tensor, steps: int) -> Tensor:
    """Return ρ_0(s), …, ρ_K(s): (K + 1, …)."""
    found = [s]
    for a, b, c in SIGN[steps][1]:
        square = s.square()
        s = s * (a + square * (b + square * c))
        found.append(s)
    return torch.stack(found)


def fitted(h: Callable[[Tensor], Tensor], steps: int) -> tuple[float, ...]:
    """Return the weights w of the iterates with which they are closest to h (:func:`mixed`).

    >>> weights = fitted(lambda s: s.sqrt(), steps=4)
    >>> min(weights) >= 0
    True
    """
    return tuple(mixed(h, lambda s: ramps(s, steps), SIGN[steps][0]))


def mixed(
    h: Callable[[Tensor], Tensor], basis: Callable[[Tensor], Tensor], floor: float, count: int = 200
) -> list[float]:
    """Return the weights w ≥ 0 with the least Σ (Σ_k w_k b_k(s)/h(s) − 1)² over s from the floor to 1.

    The s are evenly spaced in log s. Solved by descent along one coordinate after the other.
    """
    grid = torch.logspace(math.log10(floor), 0, count, dtype=torch.float64)
    relative = basis(grid) / h(grid)
    gram, right = (relative @ relative.T).tolist(), relative.sum(1).tolist()
    w = [0.0] * len(right)
    for _ in range(500):
        for k, row in enumerate(gram):
            rest = right[k] - sum(r * each for r, each in zip(row, w, strict=True)) + row[k] * w[k]
            w[k] = max(0.0, rest / row[k])
    return w


def combined(matrices: Sequence[Tensor], weights: Sequence[tuple[float, ...]]) -> list[Tensor]:
    """Return Σ_k w_k X_k for matrices X (batch, rows, columns), each divided by ‖XXᵀ‖_F^½ ≥ σ₁ first; 0 for X = 0.

    That size is the Schatten norm ‖X‖₄, and the closest bound of σ₁ that XXᵀ gives for nothing. Small, wide and tall
    matrices are iterated on the Gram matrix of their smaller side, those of about one size together; large and nearly
    square ones as they are, those of one shape together.
    """
    flat = [X if X.shape[-2] <= X.shape[-1] else X.mT for X in matrices]
    found = list(flat)
    for by_gram, together in _plan(tuple((*X.shape, X.dtype, X.device) for X in flat)):
        some, w = [flat[i] for i in together], stacked(tuple((weights[i], len(flat[i])) for i in together))
        w = w.to(some[0])
        results = _factors(some, w) if by_gram else _iterated(some, w)
        for i, result in zip(together, results, strict=True):
            found[i] = result @ flat[i] if by_gram else result
    return [Y if X.shape[-2] <= X.shape[-1] else Y.mT for Y, X in zip(found, matrices, strict=True)]


@lru_cache(maxsize=64)
def _plan(kinds: tuple[tuple[Any, ...], ...]) -> list[tuple[bool, list[int]]]:
    """Say which matrices (batch, rows, columns, dtype, device) are computed together, and whether by Gram matrices."""
    groups: dict[Any, list[int]] = {}
    for i, (_, rows, columns, *where) in enumerate(kinds):
        by_gram = columns >= WIDE * rows or rows <= SMALL[-1]
        size = next((size for size in SMALL if rows <= size), rows) if by_gram else (rows, columns)
        groups.setdefault((by_gram, size, *where), []).append(i)
    return [(key[0], together) for key, together in groups.items()]


@lru_cache(maxsize=64)
def stacked(weights: tuple[tuple[tuple[float, ...], int], ...]) -> Tensor:
    """Return the weights of every matrix of a batch: (K + 1, batch, 1, 1)."""
    return torch.tensor([each for each, size in weights for _ in range(size)], dtype=torch.float64).T[..., None, None]


def _factors(matrices: list[Tensor], w: Tensor) -> list[Tensor]:
    """Return the symmetric Q with Σ_k w_k X_k = QX for each X, all iterated in one batch of Gram matrices."""
    sizes, rows = [len(X) for X in matrices], [X.shape[-2] for X in matrices]
    if len(matrices) == 1:
        G = matrices[0] @ matrices[0].mT
    else:  # zeros beside a Gram matrix stay zeros
        grams, side = [X @ X.mT for X in matrices], max(rows)
        padded = (g if m == side else F.pad(g, (0, side - m, 0, side - m)) for g, m in zip(grams, rows, strict=True))
        G = torch.cat(list(padded))
    size, G = normalised(G)
    steps = SIGN[len(w) - 1][1]
    Q, total = None, None
    for k, (a, b, c) in enumerate(steps, 1):
        q = (G @ G).mul_(c).add_(G, alpha=b)
        q.diagonal(dim1=-2, dim2=-1).add_(a)
        Q = q if Q is None else Q @ q
        total = w[k] * Q if total is None else torch.addcmul(total, w[k], Q)
        if k < len(steps):
            G = q @ (q @ G)
    assert total is not None
    total.diagonal(dim1=-2, dim2=-1).add_(w[0, :, :, 0])
    total = total / size.sqrt()
    return [part[:, :m, :m] for part, m in zip(torch.split(total, sizes), rows, strict=True)]


def _iterated(matrices: list[Tensor], w: Tensor) -> list[Tensor]:
    """Return Σ_k w_k X_k for matrices of one shape, by the iteration itself."""
    X = matrices[0] if len(matrices) == 1 else torch.cat(matrices)
    size, G = normalised(X @ X.mT)
    X = X / size.sqrt()
    total = w[0] * X
    for k, (a, b, c) in enumerate(SIGN[len(w) - 1][1], 1):
        G = G if k == 1 else X @ X.mT
        X = torch.baddbmm(X, (G @ G).mul_(c).add_(G, alpha=b), X, beta=a)
        total = torch.addcmul(total, w[k], X)
    return list(torch.split(total, [len(X) for X in matrices]))


def normalised(G: Tensor) -> tuple[Tensor, Tensor]:
    """Return ‖G‖_F, or the least number where it is 0, and G divided by it; squares of entries may be out of range."""
    norm = torch.linalg.vector_norm(G, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    size = norm.to(G.dtype).clamp(min=torch.finfo(G.dtype).tiny)
    return size, G / size
