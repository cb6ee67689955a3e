"""Problems given by a matrix: quadratic functions, least squares, and matrix games on the
simplex.
"""

import torch
from torch import Tensor

from mirrordescent.domains import Domain, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.problems.base import Problem
from mirrordescent.problems.saddle import SaddlePoint


class Quadratic(Problem):
    """f(x) = ½ (x−c)ᵀ A (x−c), with minimum 0 at c, for A symmetric positive semidefinite.

    ``A`` is (n,) for a diagonal matrix, (n, n), or (batch, n, n); ``centre`` is (n,) or (batch, n).
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

    ``A`` is (m, n) or (batch, m, n); ``b`` is (m,) or (batch, m). The terms of the sum are the
    rows.
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
        """Return the gradient over a subset of rows, scaled to the whole."""
        rows = self.A[..., subset, :]
        b = self.b[..., subset]
        return (self.terms / len(subset)) * matvec(rows.mT, matvec(rows, x) - b)

    def smoothness(self) -> float:
        """‖A‖²."""
        return spectral_norm(self.A) ** 2

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """The solution of least norm, without constraints; its residual r, made orthogonal to A,
        proves ½‖r‖².
        """
        if not isinstance(self.domain, WholeSpace):
            return None
        inverse = torch.linalg.pinv(self.A)
        x = matvec(inverse, self.b)
        x = x if x.ndim == 2 else x.unsqueeze(0)
        r = self.b - matvec(self.A, x)
        u = r - matvec(self.A, matvec(inverse, r))  # f(x) ≥ ⟨b, u⟩ − ½‖u‖² for every u with Aᵀu = 0
        dual = (self.b * u).sum(-1) - 0.5 * u.square().sum(-1)
        return x, dual - 8 * torch.finfo(dual.dtype).eps * self.b.square().sum(-1)

    def bound_at(self, x: Tensor, convexity: float | None = None) -> Tensor | None:
        """On x ≥ 0 also ⟨b, u⟩ − ½‖u‖² for the u = b − Ax − cA1 nearest to the residual with Aᵀu ≤
        0, if AᵀA1 > 0.
        """
        bound = super().bound_at(x, convexity)
        if not isinstance(self.domain, PositiveOrthant):
            return bound
        ones = matvec(self.A, torch.ones_like(x))
        r = self.b - matvec(self.A, x)
        up = matvec(self.A.mT, ones)
        slope = matvec(self.A.mT, r)
        c = (
            torch.where(up > 0, slope / up, torch.where(slope > 0, torch.inf, 0.0))
            .amax(-1, keepdim=True)
            .clamp(min=0)
        )
        u = r - c.nan_to_num(posinf=0.0) * ones * (1 + 8 * torch.finfo(x.dtype).eps)
        dual = (self.b * u).sum(-1) - 0.5 * u.square().sum(-1)
        dual = dual - 8 * torch.finfo(x.dtype).eps * (self.b.square().sum(-1) + u.square().sum(-1))
        dual = torch.where(c.squeeze(-1).isfinite(), dual, -torch.inf)
        return dual if bound is None else torch.maximum(bound, dual)

    def strong_convexity(self) -> float:
        """The square of the smallest singular value of A, or 0 if it has fewer rows than
        columns.
        """
        flat = self.A.shape[-2] < self.A.shape[-1]
        if flat:
            return 0.0
        lost = self.A.shape[-2] * torch.finfo(torch.float64).eps * spectral_norm(self.A)
        return max(float(torch.linalg.svdvals(self.A.double()).min()) - lost, 0.0) ** 2


class MatrixGame(Problem, SaddlePoint):
    """f(x) = maxᵢ (Ax)ᵢ on the simplex: the loss of a mixed strategy x against the best reply.

    As a saddle point it is ⟨Ax, u⟩ with u, the reply, on a simplex too.

    Nonsmooth, with subgradients bounded by max|A| in ℓ_∞: the classical example where entropic
    mirror descent beats the projected subgradient method by √(n/log n). ``A`` is (m, n) or (batch,
    m, n).
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

    @property
    def K_norm(self) -> float:
        """‖A‖."""
        return float(torch.linalg.matrix_norm(self.A, 2).max())

    @property
    def ratio(self) -> float:
        """1: both players are alike."""
        return 1.0

    def K(self, x: Tensor) -> Tensor:
        return matvec(self.A, x)

    def K_adjoint(self, u: Tensor) -> Tensor:
        return matvec(self.A.mT, u)

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        return self.domain._project(x)

    def prox_G_conjugate(self, u: Tensor, sigma: float | Tensor) -> Tensor:
        return self.domain._project(u)

    def lower_bound(self, u: Tensor) -> Tensor:
        """minⱼ (Aᵀu)ⱼ: what a mixed reply u is sure of."""
        reply = self.domain._project(u)
        reply = reply / reply.sum(-1, keepdim=True)
        payoff = matvec(self.A.mT, reply).amin(-1)
        return payoff - 8 * torch.finfo(payoff.dtype).eps * self.A.abs().amax((-2, -1))


def matvec(A: Tensor, x: Tensor) -> Tensor:
    """Apply one matrix, or one per sample, to a batch of vectors."""
    return x @ A.mT if A.ndim == 2 else torch.einsum("bij,bj->bi", A, x)


def spectral_norm(A: Tensor) -> float:
    """Return an upper bound on ‖A‖, or on the largest of a batch: in double precision, and rounded
    up.
    """
    norm = float(torch.linalg.matrix_norm(A.double(), 2).max())
    return norm * (1 + max(A.shape[-2:]) * torch.finfo(torch.float64).eps)


def _batch(A: Tensor, b: Tensor, length: int, name: str) -> int | None:
    """Return how many problems there are, or raise unless b consists of vectors of this length, as
    many as A.
    """
    batch = A.shape[0] if A.ndim == 3 else b.shape[0] if b.ndim == 2 else None
    if b.shape not in {(length,), (batch, length)}:
        raise ValueError(
            f"{name} has shape {tuple(b.shape)}, which does not fit A of shape {tuple(A.shape)}"
        )
    return batch
