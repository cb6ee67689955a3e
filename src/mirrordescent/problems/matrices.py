"""Problems given by a matrix: quadratic functions, least squares, and matrix games on the simplex."""

import torch
from torch import Tensor

from mirrordescent.domains import Domain, Simplex
from mirrordescent.problems.base import Problem


class Quadratic(Problem):
    """f(x) = ½ (x−c)ᵀ A (x−c), with minimum 0 at c, for A symmetric positive semidefinite.

    ``A`` is (n,) for a diagonal matrix, (n, n), or (batch, n, n); ``centre`` is (n,) or (batch, n).
    """

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
        """c, with value 0, if f is convex."""
        if not self.convex:
            return None
        centre = self.centre.expand(self.batch or 1, -1)
        return centre, centre.new_zeros(len(centre))

    def _eigenvalues(self) -> Tensor:
        """Those of A, in double precision."""
        return self.A.double() if self.A.ndim == 1 else torch.linalg.eigvalsh(self.A.double())

    def _uncertainty(self) -> float:
        """By how much computed eigenvalues may be off; those of a diagonal matrix are not."""
        units = 0 if self.A.ndim == 1 else self.A.shape[-1] * torch.finfo(torch.float64).eps
        return units * float(self._eigenvalues().abs().max())

    def _times_A(self, v: Tensor) -> Tensor:
        return self.A * v if self.A.ndim == 1 else matvec(self.A, v)


class LeastSquares(Problem):
    """f(x) = ½‖Ax − b‖², on all of Rⁿ or on a given set, such as ``domain=Simplex()``.

    ``A`` is (m, n) or (batch, m, n); ``b`` is (m,) or (batch, m). The terms of the sum are the rows.
    """

    convex = True

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
        """Return the gradient over a subset of rows, scaled to the whole."""
        rows, b = self.A[..., subset, :], self.b[..., subset]
        return (self.terms / len(subset)) * matvec(rows.mT, matvec(rows, x) - b)

    def smoothness(self) -> float:
        """‖A‖²."""
        return spectral_norm(self.A) ** 2

    def strong_convexity(self) -> float:
        """The square of the smallest singular value of A, or 0 if it has fewer rows than columns."""
        flat = self.A.shape[-2] < self.A.shape[-1]
        if flat:
            return 0.0
        lost = self.A.shape[-2] * torch.finfo(torch.float64).eps * spectral_norm(self.A)
        return max(float(torch.linalg.svdvals(self.A.double()).min()) - lost, 0.0) ** 2


class MatrixGame(Problem):
    """f(x) = maxᵢ (Ax)ᵢ on the simplex: the loss of a mixed strategy x against the best reply.

    Nonsmooth, with subgradients bounded by max|A| in ℓ_∞: the classical example where entropic mirror descent beats the
    projected subgradient method by √(n/log n). ``A`` is (m, n) or (batch, m, n).
    """

    convex = True
    domain = Simplex()

    A: Tensor

    def __init__(self, A: Tensor) -> None:
        if A.ndim not in (2, 3) or 0 in A.shape[-2:]:
            raise ValueError(f"A must be (m, n) or (batch, m, n), not empty, got {tuple(A.shape)}")
        super().__init__(A.shape[0] if A.ndim == 3 else None, (A.shape[-1],), A=A)

    def value(self, x: Tensor) -> Tensor:
        return matvec(self.A, x).amax(-1)

    def grad(self, x: Tensor) -> Tensor:
        """Return the row of A that is the best reply."""
        reply = matvec(self.A, x).argmax(-1)
        if self.A.ndim == 2:
            return self.A[reply]
        return self.A.gather(1, reply[:, None, None].expand(-1, 1, self.A.shape[-1])).squeeze(1)

    def smoothed_grad(self, x: Tensor, width: float | Tensor) -> Tensor:
        """Return the gradient of width · log Σ exp((Ax)ᵢ / width)."""
        replies = (matvec(self.A, x) / width).softmax(-1)
        return matvec(self.A.mT, replies)


def matvec(A: Tensor, x: Tensor) -> Tensor:
    """Apply one matrix, or one per sample, to a batch of vectors."""
    return x @ A.mT if A.ndim == 2 else torch.einsum("bij,bj->bi", A, x)


def spectral_norm(A: Tensor) -> float:
    """Return an upper bound on ‖A‖, or on the largest of a batch: in double precision, and rounded up."""
    norm = float(torch.linalg.matrix_norm(A.double(), 2).max())
    return norm * (1 + max(A.shape[-2:]) * torch.finfo(torch.float64).eps)


def _batch(A: Tensor, b: Tensor, length: int, name: str) -> int | None:
    """Return how many problems there are, or raise unless b consists of vectors of this length, as many as A."""
    batch = A.shape[0] if A.ndim == 3 else b.shape[0] if b.ndim == 2 else None
    if b.shape not in {(length,), (batch, length)}:
        raise ValueError(f"{name} has shape {tuple(b.shape)}, which does not fit A of shape {tuple(A.shape)}")
    return batch
