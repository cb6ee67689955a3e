"""Quadratic potentials ψ(x) = ½ xᵀP⁻¹x that couple entries.

P is a full matrix, a diagonal plus a low-rank matrix, or a Kronecker product. The parameters
describe P, so that a step x − tPg needs only products. Diagonals are stored as logarithms, so that
P stays positive definite for all parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mirrordescent._internal.checks import require_positive
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.parts import Config
from mirrordescent.trees import sum_per_sample


class _Quadratic(MirrorMap):
    """ψ(x) = ½⟨x, P⁻¹x⟩ on samples of one shape. A subclass writes the mappings and eigenvalues.

    Args:
        shape: Shape of a sample.
    """

    proven = linear = True

    shape: tuple[int, ...]

    def __init__(self, shape: int | Sequence[int]) -> None:
        super().__init__()
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if not self.shape or min(self.shape) < 1:
            raise ValueError(
                f"shape must be the shape of a sample, with sides of at least 1, got {shape}"
            )

    def config(self) -> Config:
        return {"shape": list(self.shape)}

    @property
    def strong_convexity(self) -> StrongConvexity:
        """1/‖P‖, in ℓ₂."""
        return StrongConvexity(1 / float(self.eigenvalues().max()), 2.0)

    @property
    def smoothness(self) -> float:
        """The largest eigenvalue of P⁻¹."""
        return 1 / float(self.eigenvalues().min())

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues of P, or bounds on the smallest and the largest."""
        raise NotImplementedError

    def _flat(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(
                f"{type(self).__name__} needs samples of shape {self.shape}, "
                f"got {tuple(x.shape[1:])}"
            )
        return x.flatten(1)

    def _potential(self, x: Tensor) -> Tensor:
        return 0.5 * sum_per_sample(x * self._to_dual(x))


class DenseQuadratic(_Quadratic):
    """ψ(x) = ½ xᵀP⁻¹x with a full matrix P:  ∇ψ(x) = P⁻¹x,  ∇ψ*(y) = Py.

    P = LLᵀ, with a lower triangular L whose diagonal is e^d. The learned parameters are L, that is
    n(n + 1)/2 numbers for samples with n entries.

    Mirror descent with this map is gradient descent preconditioned by P. For a quadratic f and
    P = (∇²f)⁻¹, one step with t = 1 reaches the minimum.

    Args:
        shape: Shape of a sample.
        scale: Initial P is this multiple of the identity.

    >>> import torch
    >>> mirror = DenseQuadratic.from_matrix(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> torch.allclose(mirror.to_primal(torch.tensor([[1.0, 0.0]])), torch.tensor([[2.0, 1.0]]))
    True
    """

    LARGEST = 4096
    """Largest number of entries of a sample."""

    def __init__(self, shape: int | Sequence[int], scale: float = 1.0) -> None:
        super().__init__(shape)
        require_positive(scale=scale)
        self.scale = float(scale)
        n = math.prod(self.shape)
        if n > self.LARGEST:
            raise ValueError(
                f"DenseQuadratic needs at most {self.LARGEST} entries per sample, got {n}: "
                "use LowRankQuadratic"
            )
        self.log_diagonal = nn.Parameter(torch.full((n,), 0.5 * math.log(scale)))
        self.below = nn.Parameter(torch.zeros(n, n))
        self._product: tuple[Tensor, Tensor, Tensor] | None = None

    def config(self) -> Config:
        return {**super().config(), "scale": self.scale}

    @classmethod
    def from_matrix(cls, P: Tensor, shape: int | Sequence[int] | None = None) -> DenseQuadratic:
        """Return the map of a symmetric positive definite P."""
        mirror = cls(len(P) if shape is None else shape).to(P)
        mirror.set_matrix(P)
        return mirror

    @torch.no_grad()
    def set_matrix(self, P: Tensor) -> None:
        """Set P to a symmetric positive definite matrix."""
        if P.shape != self.below.shape:
            raise ValueError(f"P must have shape {tuple(self.below.shape)}, got {tuple(P.shape)}")
        L, failed = torch.linalg.cholesky_ex(P)
        if bool(failed) or not torch.allclose(P, P.mT, rtol=1e-3):
            raise ValueError("P must be symmetric and positive definite")
        self.log_diagonal.copy_(L.diagonal().log())
        self.below.copy_(L.tril(-1))

    def factor(self) -> Tensor:
        """L."""
        return self.below.tril(-1) + self.log_diagonal.exp().diag()

    def eigenvalues(self) -> Tensor:
        return torch.linalg.svdvals(self.factor().detach()).square()

    def matrix(self) -> Tensor:
        """Return P = LLᵀ. If L is not being learned, P is cached until L changes."""
        if torch.is_grad_enabled() and self.below.requires_grad:
            return self.factor() @ self.factor().mT
        log_diagonal = self.log_diagonal.detach()
        below = self.below.detach()
        if self._product is not None:
            cached_diagonal, cached_below, product = self._product
            if _same(cached_diagonal, log_diagonal) and _same(cached_below, below):
                return product
        L = self.factor().detach()
        product = L @ L.mT
        self._product = (log_diagonal.clone(), below.clone(), product)
        return product

    def _to_primal(self, y: Tensor) -> Tensor:
        return (self._flat(y) @ self.matrix()).view_as(y)

    def _to_dual(self, x: Tensor) -> Tensor:
        return torch.cholesky_solve(self._flat(x).mT, self.factor()).mT.reshape(x.shape)


class LowRankQuadratic(_Quadratic):
    """ψ(x) = ½ xᵀP⁻¹x with P = D + UUᵀ, D = diag(e^d) and a thin U:  ∇ψ*(y) = e^d y + U(Uᵀy).

    This map is for samples that are too large for a full matrix. ∇ψ uses Woodbury's formula,
    P⁻¹ = D⁻¹ − D⁻¹U(I + UᵀD⁻¹U)⁻¹UᵀD⁻¹.

    Args:
        shape: Shape of a sample.
        rank: Number of columns of U.
        scale: Initial D is this multiple of the identity; the initial U is small.

    >>> import torch
    >>> LowRankQuadratic(3, rank=1).to_primal(torch.ones(1, 3)).shape
    torch.Size([1, 3])
    """

    def __init__(self, shape: int | Sequence[int], rank: int = 8, scale: float = 1.0) -> None:
        super().__init__(shape)
        require_positive(rank=rank, scale=scale)
        self.rank = int(rank)
        self.scale = float(scale)
        n = math.prod(self.shape)
        self.log_diagonal = nn.Parameter(torch.full((n,), math.log(scale)))
        # Distinct waves: columns that are 0 get no gradient, and equal columns get equal gradients.
        waves = torch.cos(
            math.pi * (torch.arange(n)[:, None] + 0.5) * torch.arange(1, self.rank + 1) / n
        )
        self.columns = nn.Parameter(0.03 * (scale / n) ** 0.5 * waves)

    def config(self) -> Config:
        return {**super().config(), "rank": self.rank, "scale": self.scale}

    def eigenvalues(self) -> Tensor:
        """Return bounds on the smallest and the largest: min e^d and max e^d + ‖U‖²."""
        d = self.log_diagonal.detach().exp()
        return torch.stack(
            [d.min(), d.max() + torch.linalg.matrix_norm(self.columns.detach(), 2).square()]
        )

    def _to_primal(self, y: Tensor) -> Tensor:
        flat = self._flat(y)
        return (self.log_diagonal.exp() * flat + (flat @ self.columns) @ self.columns.mT).view_as(y)

    def _to_dual(self, x: Tensor) -> Tensor:
        inverse = (-self.log_diagonal).exp()
        scaled = inverse * self._flat(x)
        thin = inverse[:, None] * self.columns
        inner = torch.eye(self.rank).to(thin) + self.columns.mT @ thin
        solved = torch.linalg.solve(inner, (scaled @ self.columns).mT).mT
        return (scaled - solved @ thin.mT).view_as(x)


class KroneckerQuadratic(_Quadratic):
    """ψ(X) = ½⟨X, P₁⁻¹XP₂⁻¹⟩ on matrices X:  ∇ψ*(Y) = P₁YP₂.

    P₁ and P₂ are full matrices. The geometry of an m×n matrix takes m² + n² numbers, as in Shampoo.
    Further leading axes of a sample are a batch of matrices.

    Args:
        shape: Shape of a sample, (…, m, n).
        scale: Initial map ∇ψ* is multiplication by this number.

    >>> import torch
    >>> KroneckerQuadratic((2, 3)).to_primal(torch.ones(1, 2, 3)).shape
    torch.Size([1, 2, 3])
    """

    def __init__(self, shape: Sequence[int], scale: float = 1.0) -> None:
        super().__init__(shape)
        if len(self.shape) < 2:
            raise ValueError(
                f"KroneckerQuadratic needs samples that are matrices, got shape {self.shape}"
            )
        self.scale = float(scale)
        rows, columns = self.shape[-2:]
        self.rows = DenseQuadratic(rows, scale**0.5)
        self.columns = DenseQuadratic(columns, scale**0.5)

    def config(self) -> Config:
        return {**super().config(), "scale": self.scale}

    def eigenvalues(self) -> Tensor:
        return torch.outer(self.rows.eigenvalues(), self.columns.eigenvalues()).flatten()

    def _to_primal(self, y: Tensor) -> Tensor:
        self._flat(y)
        return self.rows.matrix() @ y @ self.columns.matrix()

    def _to_dual(self, x: Tensor) -> Tensor:
        self._flat(x)
        left = torch.cholesky_solve(x, self.rows.factor().expand(*x.shape[:-2], -1, -1))
        return torch.cholesky_solve(left.mT, self.columns.factor().expand(*x.shape[:-2], -1, -1)).mT


def _same(first: Tensor, second: Tensor) -> bool:
    return (
        first.dtype == second.dtype and first.device == second.device and torch.equal(first, second)
    )
