"""Problems on the simplex. Smooth ones: ``LeastSquares(A, b, domain=Simplex())``."""

from __future__ import annotations

import math
from typing import cast

from torch import Tensor

from mirrordescent.domains import Simplex
from mirrordescent.problems.base import Problem, require_finite
from mirrordescent.problems.quadratic import matvec
from mirrordescent.trees import Tree


class MatrixGame(Problem):
    """f(x) = maxᵢ (Ax)ᵢ on the simplex: the loss of a mixed strategy x against the best reply.

    Nonsmooth, with subgradients bounded by max|A| in ℓ_∞: the classical ground on which entropic
    mirror descent beats the projected subgradient method by √(n/log n). ``A`` is (m, n) or (batch, m, n).
    """

    convex = True
    domain = Simplex()

    A: Tensor

    def __init__(self, A: Tensor) -> None:
        if A.ndim not in (2, 3) or 0 in A.shape[-2:]:
            raise ValueError(f"A must be (m, n) or (batch, m, n), not empty, got {tuple(A.shape)}")
        super().__init__(A.shape[0] if A.ndim == 3 else None, (A.shape[-1],))
        require_finite(A, "A")
        self.register_buffer("A", A)

    def value(self, x: Tree) -> Tensor:
        """Return the value of the best reply."""
        return matvec(self.A, cast(Tensor, x)).amax(-1)

    def grad(self, x: Tree) -> Tensor:
        """Return the row of A that is the best reply."""
        reply = matvec(self.A, cast(Tensor, x)).argmax(-1)
        if self.A.ndim == 2:
            return self.A[reply]
        return self.A.gather(1, reply[:, None, None].expand(-1, 1, self.A.shape[-1])).squeeze(1)

    def smoothness(self) -> float:
        """f has kinks."""
        return math.inf

    def smoothed_grad(self, x: Tree, width: float | Tensor) -> Tensor:
        """Return the gradient of width · log Σ exp((Ax)ᵢ / width)."""
        replies = (matvec(self.A, cast(Tensor, x)) / width).softmax(-1)
        return matvec(self.A.mT, replies)
