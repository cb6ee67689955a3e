"""Functions of singular values by a few inverses, where those are cheap: on processors.

With the singular value decomposition X = U diag(σ) Vᵀ, resolvents of the Gram matrix act on singular values:

.. code-block:: none

    w_0 X + Σ_j w_j (XXᵀ + c_j I)⁻¹ X = U diag(h(σ)) Vᵀ,    h(σ) = w_0 σ + Σ_j w_j σ/(σ² + c_j)

Every power is a mixture of such functions with positive weights,

.. code-block:: none

    σᵖ = (2/π) cos(pπ/2) ∫ τᵖ σ/(σ² + τ²) dτ,    −1 < p < 1,  τ from 0 to ∞,

the sign (p = 0) among them, and few τ² = c_j are enough: the error of the best rational sign falls geometrically with
their number (Zolotarev). With three inverses the largest error is 1.4 %, with the four Newton–Schulz steps in whose
place they are 7 % (:mod:`~mirrordescent.mirrors.products`). Those are 13 products of matrices as large, and an inverse
of a symmetric matrix is about as much arithmetic as one of them. Functions with kinks are met less well by both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrordescent.mirrors.products import SIGN, mixed, normalised, stacked

SHIFTS: dict[int, tuple[float, ...]] = {
    3: (1.22e-3, 8.87e-2),
    4: (9.33e-5, 4.32e-3, 0.148),
    5: (1.35e-5, 1.14e-3, 7.56e-2),
}
"""c_j by the number of Newton–Schulz steps in whose place they are, with a small max |1 − h(σ)| over [floor, 1]."""


class Resolvents(NamedTuple):
    """h(σ) = w_0 σ + Σ_j w_j σ/(σ² + c_j), w ≥ 0, c > 0."""

    weights: tuple[float, ...]
    shifts: tuple[float, ...]

    def __call__(self, s: Tensor) -> Tensor:
        """Return h(s)."""
        return sum((w * f for w, f in zip(self.weights, terms(s, self.shifts), strict=True)), torch.zeros_like(s))


def terms(s: Tensor, shifts: Sequence[float]) -> Tensor:
    """Return s and s/(s² + c_j) for every shift: (poles + 1, …)."""
    return torch.stack([s, *(s / (s.square() + c) for c in shifts)])


def fitted(h: Callable[[Tensor], Tensor], steps: int) -> Resolvents:
    """Return the resolvents in the place of so many Newton–Schulz steps, fitted to h as those are.

    >>> import torch
    >>> root = fitted(lambda s: s.sqrt(), steps=5)
    >>> abs(float(root(torch.tensor(0.04))) - 0.2) < 0.02
    True
    """
    return Resolvents(tuple(mixed(h, lambda s: terms(s, SHIFTS[steps]), SIGN[steps][0])), SHIFTS[steps])


def combined(matrices: Sequence[Tensor], functions: Sequence[Resolvents]) -> list[Tensor]:
    """Return U diag(h(σ)) Vᵀ for matrices X (batch, rows, columns), each divided by ‖XXᵀ‖_F^½ ≥ σ₁ first; 0 for X = 0.

    Gram matrices of one size are inverted together.
    """
    flat = [X if X.shape[-2] <= X.shape[-1] else X.mT for X in matrices]
    found = list(flat)
    groups: dict[Any, list[int]] = {}
    for i, (X, h) in enumerate(zip(flat, functions, strict=True)):
        if X.numel():
            groups.setdefault((X.shape[-2], h.shifts, X.dtype, X.device), []).append(i)
    for (_, shifts, *_), together in groups.items():
        some = [flat[i] for i in together]
        size, G = normalised(torch.cat([X @ X.mT for X in some]))
        w = stacked(tuple((functions[i].weights, len(flat[i])) for i in together)).to(G)
        eye = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
        total = w[0] * eye
        for j, c in enumerate(shifts, 1):
            total = total + w[j] * torch.cholesky_inverse(torch.linalg.cholesky_ex(G + c * eye)[0])
        for i, Q in zip(together, torch.split(total / size.sqrt(), [len(X) for X in some]), strict=True):
            found[i] = Q @ flat[i]
    return [Y if X.shape[-2] <= X.shape[-1] else Y.mT for Y, X in zip(found, matrices, strict=True)]
