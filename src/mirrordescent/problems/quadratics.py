"""Quadratic functions and least squares."""

import torch
from torch import Tensor

from mirrordescent.domains import Domain, PositiveOrthant, WholeSpace
from mirrordescent.problems.base import Problem


class Quadratic(Problem):
    """f(x) = ½ (x−c)ᵀ A (x−c), with minimum 0 at c if A is positive semidefinite.

    Args:
        A: Symmetric matrix, (n, n) or (batch, n, n); or (n,), the diagonal of a diagonal matrix.
        centre: Minimiser c, (n,) or (batch, n).
    """

    never_below = 0.0

    A: Tensor
    centre: Tensor

    def __init__(self, A: Tensor, centre: Tensor) -> None:
        n = A.shape[-1]
        super().__init__(_batch(A, centre, n, "centre"), (n,), A=A, centre=centre)
        if A.ndim not in (1, 2, 3) or (A.ndim > 1 and A.shape[-2] != n):
            raise ValueError(f"A must be (n,), (n, n) or (batch, n, n), got {tuple(A.shape)}")
        if A.ndim > 1 and not torch.allclose(A, A.mT):
            raise ValueError("A must be symmetric")

    def value(self, x: Tensor) -> Tensor:
        """½ ⟨x − c, A(x − c)⟩."""
        residual = x - self.centre
        return 0.5 * (residual * self._times_A(residual)).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        """A(x − c)."""
        return self._times_A(x - self.centre)

    def smoothness(self) -> float:
        return float(self._eigenvalues().max()) + self._uncertainty()

    def strong_convexity(self) -> float:
        return max(float(self._eigenvalues().min()) - self._uncertainty(), 0.0)

    @property
    def convex(self) -> bool:  # type: ignore[override]
        """Whether A is positive semidefinite, up to rounding."""
        return float(self._eigenvalues().min()) >= -(torch.finfo(self.A.dtype).eps ** 0.5)

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """Return c and the value 0, if f is convex."""
        if not self.convex:
            return None
        centre = self.centre.expand(self.batch or 1, -1)
        return centre, centre.new_zeros(len(centre))

    def _eigenvalues(self) -> Tensor:
        """Return the eigenvalues of A in double precision."""
        return self.A.double() if self.A.ndim == 1 else torch.linalg.eigvalsh(self.A.double())

    def _uncertainty(self) -> float:
        """Return a bound on the error of computed eigenvalues; 0 for a diagonal matrix."""
        if self.A.ndim == 1:
            return 0.0
        unit = self.A.shape[-1] * torch.finfo(torch.float64).eps
        return unit * float(self._eigenvalues().abs().max())

    def _times_A(self, v: Tensor) -> Tensor:
        return self.A * v if self.A.ndim == 1 else matvec(self.A, v)


class LeastSquares(Problem):
    """f(x) = ½‖Ax − b‖², on all of Rⁿ or on a set. The rows are the terms of a finite sum.

    Args:
        A: Matrix, (m, n) or (batch, m, n).
        b: Right-hand side, (m,) or (batch, m).
        domain: Set, such as ``Simplex()``; all of Rⁿ by default.
    """

    convex = True
    never_below = 0.0

    A: Tensor
    b: Tensor

    def __init__(self, A: Tensor, b: Tensor, domain: Domain | None = None) -> None:
        if A.ndim not in (2, 3):
            raise ValueError(f"A must be (m, n) or (batch, m, n), got {tuple(A.shape)}")
        super().__init__(_batch(A, b, A.shape[-2], "b"), (A.shape[-1],), A=A, b=b)
        self.domain = domain or self.domain

    def value(self, x: Tensor) -> Tensor:
        """½‖Ax − b‖²."""
        return 0.5 * (matvec(self.A, x) - self.b).square().sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        """Aᵀ(Ax − b)."""
        return matvec(self.A.mT, matvec(self.A, x) - self.b)

    @property
    def terms(self) -> int:
        return self.A.shape[-2]

    def grad_of_terms(self, x: Tensor, subset: Tensor) -> Tensor:
        """Return the gradient over a subset of rows, scaled to the whole sum."""
        rows = self.A[..., subset, :]
        b = self.b[..., subset]
        return (self.terms / len(subset)) * matvec(rows.mT, matvec(rows, x) - b)

    def smoothness(self) -> float:
        """‖A‖²."""
        return spectral_norm(self.A) ** 2

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """Return the solution of least norm, if there are no constraints.

        For every u with Aᵀu = 0, f(x) ≥ ⟨b, u⟩ − ½‖u‖². The bound uses the residual of the
        solution, made orthogonal to the columns of A.
        """
        if not isinstance(self.domain, WholeSpace):
            return None
        inverse = torch.linalg.pinv(self.A)
        x = matvec(inverse, self.b)
        x = x if x.ndim == 2 else x.unsqueeze(0)
        r = self.b - matvec(self.A, x)
        u = r - matvec(self.A, matvec(inverse, r))
        dual = (self.b * u).sum(-1) - 0.5 * u.square().sum(-1)
        return x, dual - 8 * torch.finfo(dual.dtype).eps * self.b.square().sum(-1)

    def bound_at(self, x: Tensor, convexity: float | None = None) -> Tensor | None:
        """Return the general bound; on x ≥ 0, the better of it and ⟨b, u⟩ − ½‖u‖².

        There u = b − Ax − cA1 with the smallest c ≥ 0 such that Aᵀu ≤ 0.
        """
        bound = super().bound_at(x, convexity)
        if not isinstance(self.domain, PositiveOrthant):
            return bound
        ones = matvec(self.A, torch.ones_like(x))
        r = self.b - matvec(self.A, x)
        up = matvec(self.A.mT, ones)
        slope = matvec(self.A.mT, r)
        without_up = torch.where(slope > 0, torch.inf, 0.0)
        c = torch.where(up > 0, slope / up, without_up).amax(-1, keepdim=True).clamp(min=0)
        u = r - c.nan_to_num(posinf=0.0) * ones * (1 + 8 * torch.finfo(x.dtype).eps)
        dual = (self.b * u).sum(-1) - 0.5 * u.square().sum(-1)
        dual = dual - 8 * torch.finfo(x.dtype).eps * (self.b.square().sum(-1) + u.square().sum(-1))
        dual = torch.where(c.squeeze(-1).isfinite(), dual, -torch.inf)
        return dual if bound is None else torch.maximum(bound, dual)

    def strong_convexity(self) -> float:
        """The square of the smallest singular value; 0 if A has fewer rows than columns."""
        rows, columns = self.A.shape[-2:]
        if rows < columns:
            return 0.0
        error = rows * torch.finfo(torch.float64).eps * spectral_norm(self.A)
        return max(float(torch.linalg.svdvals(self.A.double()).min()) - error, 0.0) ** 2


def matvec(A: Tensor, x: Tensor) -> Tensor:
    """Return Ax for a batch of vectors x, with one matrix for all or one per sample."""
    return x @ A.mT if A.ndim == 2 else torch.einsum("bij,bj->bi", A, x)


def spectral_norm(A: Tensor) -> float:
    """Return ‖A‖, rounded up; for a batch of matrices, the largest."""
    norm = float(torch.linalg.matrix_norm(A.double(), 2).max())
    return norm * (1 + max(A.shape[-2:]) * torch.finfo(torch.float64).eps)


def _batch(A: Tensor, b: Tensor, length: int, name: str) -> int | None:
    """Return the number of problems; raise an error if b does not fit A.

    Args:
        A: Matrices, (…, n) or (batch, m, n).
        b: Vectors, (length,) or (batch, length).
        length: Required length of the vectors.
        name: Name of b in the error message.
    """
    batch = None
    if A.ndim == 3:
        batch = A.shape[0]
    elif b.ndim == 2:
        batch = b.shape[0]
    if b.shape not in {(length,), (batch, length)}:
        raise ValueError(
            f"{name} has shape {tuple(b.shape)}, which does not fit A of shape {tuple(A.shape)}"
        )
    return batch
