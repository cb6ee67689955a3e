"""Quadratic functions and least squares."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from mirrordescent.domains import Domain
from mirrordescent.problems.base import Problem, require_finite, require_same_kind
from mirrordescent.trees import Tree


class Quadratic(Problem):
    """f(x) = ½ (x−c)ᵀ A (x−c), with minimum 0 at c, for A symmetric positive semidefinite.

    ``A`` is (n,) for a diagonal matrix, (n, n), or (batch, n, n); ``centre`` is (n,) or (batch, n).
    """

    A: Tensor
    centre: Tensor

    def __init__(self, A: Tensor, centre: Tensor) -> None:
        n = A.shape[-1]
        batch = A.shape[0] if A.ndim == 3 else centre.shape[0] if centre.ndim == 2 else None
        super().__init__(batch, (n,))
        require_finite(A, "A")
        require_finite(centre, "centre")
        require_same_kind(A, centre, "A and centre")
        if A.ndim not in (1, 2, 3) or (A.ndim > 1 and A.shape[-2] != n):
            raise ValueError(f"A must be (n,), (n, n) or (batch, n, n), got {tuple(A.shape)}")
        if centre.shape not in {(n,), (batch, n)}:
            raise ValueError(f"centre has shape {tuple(centre.shape)}, which does not fit A of shape {tuple(A.shape)}")
        if A.ndim > 1 and not torch.allclose(A, A.mT):
            raise ValueError("A must be symmetric")
        self.register_buffer("A", A)
        self.register_buffer("centre", centre)

    def value(self, x: Tree) -> Tensor:
        """½ ⟨x − c, A(x − c)⟩."""
        residual = cast(Tensor, x) - self.centre
        return 0.5 * (residual * self._times_A(residual)).sum(-1)

    def grad(self, x: Tree) -> Tensor:
        """A(x − c)."""
        return self._times_A(cast(Tensor, x) - self.centre)

    def smoothness(self) -> float:
        """Return the largest eigenvalue of A."""
        return float(self._eigenvalues().max())

    def strong_convexity(self) -> float:
        """Return the smallest eigenvalue of A."""
        return max(float(self._eigenvalues().min()), 0.0)

    @property
    def convex(self) -> bool:  # type: ignore[override]
        """Whether A is positive semidefinite, up to rounding."""
        return float(self._eigenvalues().min()) >= -torch.finfo(self.A.dtype).eps ** 0.5

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """c, with value 0, if f is convex."""
        if not self.convex:
            return None
        centre = self.centre.expand(self.batch or 1, -1)
        return centre, centre.new_zeros(len(centre))

    def _eigenvalues(self) -> Tensor:
        return self.A if self.A.ndim == 1 else torch.linalg.eigvalsh(self.A)

    def _times_A(self, v: Tensor) -> Tensor:
        return self.A * v if self.A.ndim == 1 else matvec(self.A, v)


class LeastSquares(Problem):
    """f(x) = ½‖Ax − b‖², on all of Rⁿ or on a given set.

    ``A`` is (m, n) or (batch, m, n); ``b`` is (m,) or (batch, m). The terms of the sum are the rows.
    """

    convex = True

    A: Tensor
    b: Tensor

    def __init__(self, A: Tensor, b: Tensor, domain: Domain | None = None) -> None:
        if A.ndim not in (2, 3):
            raise ValueError(f"A must be (m, n) or (batch, m, n), got {tuple(A.shape)}")
        batch = A.shape[0] if A.ndim == 3 else b.shape[0] if b.ndim == 2 else None
        super().__init__(batch, (A.shape[-1],))
        require_finite(A, "A")
        require_finite(b, "b")
        require_same_kind(A, b, "A and b")
        if b.shape not in {(A.shape[-2],), (batch, A.shape[-2])}:
            raise ValueError(f"b has shape {tuple(b.shape)}, which does not fit A of shape {tuple(A.shape)}")
        self.domain = domain or self.domain
        self.register_buffer("A", A)
        self.register_buffer("b", b)

    def value(self, x: Tree) -> Tensor:
        """½‖Ax − b‖²."""
        return 0.5 * self._residual(x, self.A, self.b).square().sum(-1)

    def grad(self, x: Tree) -> Tensor:
        """Aᵀ(Ax − b)."""
        return matvec(self.A.mT, self._residual(x, self.A, self.b))

    @property
    def terms(self) -> int:
        """The number of rows."""
        return self.A.shape[-2]

    def grad_of_terms(self, x: Tree, subset: Tensor) -> Tensor:
        """Return the gradient over a subset of rows, scaled to the whole."""
        rows, b = self.A[..., subset, :], self.b[..., subset]
        return (self.terms / len(subset)) * matvec(rows.mT, self._residual(x, rows, b))

    def smoothness(self) -> float:
        """‖A‖²."""
        return float(torch.linalg.matrix_norm(self.A, 2).max()) ** 2

    def strong_convexity(self) -> float:
        """The square of the smallest singular value of A, or 0 if it has fewer rows than columns."""
        flat = self.A.shape[-2] < self.A.shape[-1]
        return 0.0 if flat else float(torch.linalg.svdvals(self.A).min()) ** 2

    @staticmethod
    def _residual(x: Tree, A: Tensor, b: Tensor) -> Tensor:
        return matvec(A, cast(Tensor, x)) - b


def matvec(A: Tensor, x: Tensor) -> Tensor:
    """Apply one matrix, or one per sample, to a batch of vectors."""
    return x @ A.mT if A.ndim == 2 else torch.einsum("bij,bj->bi", A, x)
