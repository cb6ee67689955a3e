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

from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import Tensor

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


def fitted(h: Callable[[Tensor], Tensor], steps: int, count: int = 200) -> list[float]:
    """Return the weights w ≥ 0 with the least Σ (Σ_k w_k ρ_k(s)/h(s) − 1)² over s from the floor to 1.

    The s are evenly spaced in log s. Solved by descent along one coordinate after the other.

    >>> weights = fitted(lambda s: s.sqrt(), steps=4)
    >>> min(weights) >= 0
    True
    """
    grid = torch.logspace(float(torch.tensor(SIGN[steps][0]).log10()), 0, count, dtype=torch.float64)
    basis = ramps(grid, steps) / h(grid)
    gram, right = (basis @ basis.T).tolist(), basis.sum(1).tolist()
    w = [0.0] * len(right)
    for _ in range(500):
        for k, row in enumerate(gram):
            rest = right[k] - sum(r * each for r, each in zip(row, w, strict=True)) + row[k] * w[k]
            w[k] = max(0.0, rest / row[k])
    return w


def combined(matrices: Sequence[Tensor], weights: Sequence[Sequence[float]]) -> list[Tensor]:
    """Return Σ_k w_k X_k for matrices X (batch, rows, columns), each divided by ‖XXᵀ‖_F^½ ≥ σ₁ first; 0 for X = 0.

    That size is the Schatten norm ‖X‖₄, and the closest bound of σ₁ that XXᵀ gives for nothing. Wide and tall matrices
    are iterated on the Gram matrix of their smaller side, those of one size together.
    """
    flat = [X if X.shape[-2] <= X.shape[-1] else X.mT for X in matrices]
    found: list[Tensor | None] = [None] * len(flat)
    by_gram = [i for i, X in enumerate(flat) if X.shape[-1] >= WIDE * X.shape[-2]]
    for _, group in groupby(sorted(by_gram, key=lambda i: _bucket(flat[i])), key=lambda i: _bucket(flat[i])):
        together = list(group)
        for i, factor in zip(
            together, _factors([flat[i] for i in together], [weights[i] for i in together]), strict=True
        ):
            found[i] = factor @ flat[i]
    others = [i for i in range(len(flat)) if found[i] is None]
    for _, group in groupby(sorted(others, key=lambda i: _alike(flat[i])), key=lambda i: _alike(flat[i])):
        together = list(group)
        results = _square([flat[i] for i in together], [weights[i] for i in together])
        for i, result in zip(together, results, strict=True):
            found[i] = result
    pairs = zip(found, matrices, strict=True)
    return [Y if X.shape[-2] <= X.shape[-1] else Y.mT for Y, X in pairs if Y is not None]


def _bucket(X: Tensor) -> tuple[int, str]:
    rows = X.shape[-2]
    return next((size for size in SMALL if rows <= size), rows), f"{X.dtype} {X.device}"


def _alike(X: Tensor) -> tuple[int, int, str]:
    return X.shape[-2], X.shape[-1], f"{X.dtype} {X.device}"


def _factors(matrices: list[Tensor], weights: list[Sequence[float]]) -> list[Tensor]:
    """Return the symmetric Q with Σ_k w_k X_k = QX for each X, all iterated in one batch of Gram matrices."""
    sizes, rows = [len(X) for X in matrices], [X.shape[-2] for X in matrices]
    side = max(rows)
    if len(matrices) == 1:
        G = matrices[0] @ matrices[0].mT
    else:
        G = matrices[0].new_zeros(sum(sizes), side, side)
        for part, X, m in zip(G.split(sizes), matrices, rows, strict=True):
            part[:, :m, :m] = X @ X.mT
    size, G = _normalised(G)
    w = _per_matrix(weights, sizes, G)
    Q, total = None, w[0] * torch.eye(side, dtype=G.dtype, device=G.device)
    steps = SIGN[len(w) - 1][1]
    for k, (a, b, c) in enumerate(steps, 1):
        q = torch.baddbmm(G, G, G, beta=b, alpha=c)
        q.diagonal(dim1=-2, dim2=-1).add_(a)
        Q = q if Q is None else Q @ q
        total = torch.addcmul(total, w[k], Q)
        if k < len(steps):
            G = q @ (q @ G)
    total = total / size.sqrt()
    return [part[:, :m, :m] for part, m in zip(total.split(sizes), rows, strict=True)]


def _square(matrices: list[Tensor], weights: list[Sequence[float]]) -> list[Tensor]:
    """Return Σ_k w_k X_k for matrices of one shape, by the iteration itself."""
    sizes = [len(X) for X in matrices]
    X = matrices[0] if len(matrices) == 1 else torch.cat(matrices)
    w = _per_matrix(weights, sizes, X)
    G, total = X @ X.mT, None
    size, G = _normalised(G)
    X = X / size.sqrt()
    total = w[0] * X
    for k, (a, b, c) in enumerate(SIGN[len(w) - 1][1], 1):
        G = G if k == 1 else X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(G, G, G, beta=b, alpha=c), X, beta=a)
        total = torch.addcmul(total, w[k], X)
    return list(total.split(sizes))


def _normalised(G: Tensor) -> tuple[Tensor, Tensor]:
    """Return ‖G‖_F, or 1 where it is 0, and G divided by it: by its trace first, whose square may be out of range."""
    trace = G.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    trace = torch.where(trace > 0, trace, 1.0)
    G = G / trace
    size = torch.linalg.vector_norm(G, dim=(-2, -1), keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    return size * trace, G / size


def _per_matrix(weights: list[Sequence[float]], sizes: list[int], like: Tensor) -> Tensor:
    """Return the weights of every matrix of a batch: (K + 1, batch, 1, 1)."""
    rows = [list(each) for each, size in zip(weights, sizes, strict=True) for _ in range(size)]
    return torch.tensor(rows, dtype=like.dtype, device=like.device).T[:, :, None, None]
