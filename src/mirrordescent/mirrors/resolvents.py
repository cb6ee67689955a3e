"""Functions of singular values by a few matrix inverses, which are cheap on CPUs.

With the singular value decomposition X = U diag(σ) Vᵀ, resolvents of the Gram matrix act on
singular values:

.. code-block:: none

    w_0 X + Σ_j w_j (XXᵀ + c_j I)⁻¹ X = U diag(h(σ)) Vᵀ,    h(σ) = w_0 σ + Σ_j w_j σ/(σ² + c_j)

Every power is a mixture of such functions with positive weights,

.. code-block:: none

    σᵖ = (2/π) cos(pπ/2) ∫ τᵖ σ/(σ² + τ²) dτ,    −1 < p < 1,  τ from 0 to ∞,

among them the sign (p = 0). A few τ² = c_j are enough, because the error of the best rational sign
falls geometrically with their number (Zolotarev). The largest error is 1.4 % with three inverses,
and 7 % with the four Newton–Schulz steps that they replace
(:mod:`~mirrordescent.mirrors.products`). Those steps take 13 matrix products, and inverting a
symmetric matrix costs about as much as one of them. Both approximations are less accurate for
functions with kinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mirrordescent.mirrors.products import SIGN, fit_mixture, map_by_grams, stacked

SHIFTS: dict[int, tuple[float, ...]] = {
    3: (1.22e-3, 8.87e-2),
    4: (9.33e-5, 4.32e-3, 0.148),
    5: (1.35e-5, 1.14e-3, 7.56e-2),
}
"""The shifts c_j, by the number of Newton–Schulz steps that they replace.

They make max |1 − h(σ)| over [floor, 1] small.
"""


class Resolvents(NamedTuple):
    """h(σ) = w_0 σ + Σ_j w_j σ/(σ² + c_j), w ≥ 0, c > 0.

    Singular values far below √c_j, of the least c_j, are multiplied by h'(0), which is the largest
    slope of h. Errors are therefore multiplied by at most h'(0):

    .. code-block:: none

        ‖U h(Σ) Vᵀ − U' h(Σ') V'ᵀ‖_F ≤ h'(0) ‖X − X'‖_F

    for X = UΣVᵀ and X' = U'Σ'V'ᵀ. A polar factor has no such bound.
    """

    weights: tuple[float, ...]
    shifts: tuple[float, ...]

    def __call__(self, s: Tensor) -> Tensor:
        """Return h(s)."""
        total = torch.zeros_like(s)
        for weight, term in zip(self.weights, terms(s, self.shifts), strict=True):
            total = total + weight * term
        return total

    @property
    def amplification(self) -> float:
        """h'(0) = w_0 + Σ_j w_j/c_j, the largest factor by which errors are multiplied."""
        others = zip(self.weights[1:], self.shifts, strict=True)
        return self.weights[0] + sum(weight / c for weight, c in others)


def terms(s: Tensor, shifts: Sequence[float]) -> Tensor:
    """Return s, and s/(s² + c_j) for every shift: (shifts + 1, …)."""
    return torch.stack([s, *(s / (s.square() + c) for c in shifts)])


def fitted(h: Callable[[Tensor], Tensor], steps: int) -> Resolvents:
    """Return the resolvents that approximate h best.

    Args:
        h: Function of singular values in [0, 1].
        steps: Number of Newton–Schulz steps that the resolvents replace.

    >>> import torch
    >>> root = fitted(lambda s: s.sqrt(), steps=5)
    >>> abs(float(root(torch.tensor(0.04))) - 0.2) < 0.02
    True
    """
    shifts = SHIFTS[steps]
    weights = fit_mixture(h, lambda s: terms(s, shifts), SIGN[steps][0])
    return Resolvents(tuple(weights), shifts)


def combined(matrices: Sequence[Tensor], functions: Sequence[Resolvents]) -> list[Tensor]:
    """Return U diag(h(σ)) Vᵀ for matrices X, each divided by ‖XXᵀ‖_F^½ first; 0 for X = 0.

    Args:
        matrices: Matrices X, (batch, rows, columns).
        functions: Function h of each batch of matrices.
    """
    return map_by_grams(matrices, functions, lambda h: h.shifts, _factor)


def _factor(G: Tensor, functions: list[Resolvents]) -> Tensor:
    """Return w_0 I + Σ_j w_j (G + c_j I)⁻¹."""
    w = stacked([h.weights for h in functions], G)
    eye = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
    total = w[0] * eye
    for j, c in enumerate(functions[0].shifts, 1):
        inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(G + c * eye)[0])
        total = total + w[j] * inverse
    return total
