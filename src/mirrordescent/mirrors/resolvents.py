"""Functions of singular values by a few inverses, where those are cheap: on processors.

With the singular value decomposition X = U diag(σ) Vᵀ, resolvents of the Gram matrix act on
singular values:

.. code-block:: none

    w_0 X + Σ_j w_j (XXᵀ + c_j I)⁻¹ X = U diag(h(σ)) Vᵀ,    h(σ) = w_0 σ + Σ_j w_j σ/(σ² + c_j)

Every power is a mixture of such functions with positive weights,

.. code-block:: none

    σᵖ = (2/π) cos(pπ/2) ∫ τᵖ σ/(σ² + τ²) dτ,    −1 < p < 1,  τ from 0 to ∞,

the sign (p = 0) among them, and few τ² = c_j are enough: the error of the best rational sign falls
geometrically with their number (Zolotarev). With three inverses the largest error is 1.4 %, with
the four Newton–Schulz steps in whose place they are 7 % (:mod:`~mirrordescent.mirrors.products`).
Those are 13 products of matrices as large, and an inverse of a symmetric matrix is about as much
arithmetic as one of them. Functions with kinks are met less well by both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mirrordescent.mirrors.products import SIGN, by_grams, mixed, stacked

SHIFTS: dict[int, tuple[float, ...]] = {
    3: (1.22e-3, 8.87e-2),
    4: (9.33e-5, 4.32e-3, 0.148),
    5: (1.35e-5, 1.14e-3, 7.56e-2),
}
"""c_j by the number of Newton–Schulz steps in whose place they are, with a small max |1 − h(σ)|
over [floor, 1].
"""


class Resolvents(NamedTuple):
    """h(σ) = w_0 σ + Σ_j w_j σ/(σ² + c_j), w ≥ 0, c > 0."""

    weights: tuple[float, ...]
    shifts: tuple[float, ...]

    def __call__(self, s: Tensor) -> Tensor:
        """Return h(s)."""
        return sum(
            (w * f for w, f in zip(self.weights, terms(s, self.shifts), strict=True)),
            torch.zeros_like(s),
        )


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
    return Resolvents(
        tuple(mixed(h, lambda s: terms(s, SHIFTS[steps]), SIGN[steps][0])), SHIFTS[steps]
    )


def combined(matrices: Sequence[Tensor], functions: Sequence[Resolvents]) -> list[Tensor]:
    """Return U diag(h(σ)) Vᵀ for matrices X (batch, rows, columns), each divided by ‖XXᵀ‖_F^½
    first; 0 for X = 0.
    """
    return by_grams(matrices, functions, lambda h: h.shifts, _factor)


def _factor(G: Tensor, functions: list[Resolvents]) -> Tensor:
    """Return w_0 I + Σ_j w_j (G + c_j I)⁻¹."""
    w = stacked([h.weights for h in functions], G)
    eye = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
    inverses = (
        torch.cholesky_inverse(torch.linalg.cholesky_ex(G + c * eye)[0])
        for c in functions[0].shifts
    )
    return sum((w[j] * inverse for j, inverse in enumerate(inverses, 1)), w[0] * eye)
