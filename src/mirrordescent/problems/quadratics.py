"""Quadratic functions and least squares."""

from collections.abc import Sequence
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor

from mirrordescent._internal.arrays import as_tensor
from mirrordescent._internal.derived import Derived
from mirrordescent._internal.rounding import rounded_down, sum_error, unit
from mirrordescent.domains import Domain, PositiveOrthant, WholeSpace
from mirrordescent.problems.base import Problem
from mirrordescent.trees import norm

EXACT_SIZE = 24
"""Largest matrix whose definiteness is decided in rational arithmetic, if rounding leaves it open.
"""

CUT_OFFS = (0.0, 1e-15, 1e-13, 1e-10)
"""Relative sizes below which singular values are ignored by trial solutions of least squares."""


class Quadratic(Problem):
    """f(x) = ½ (x−c)ᵀ A (x−c), with minimum 0 at c if A is positive semidefinite.

    For a function ½⟨x, Px⟩ + ⟨q, x⟩ with a linear term, use :class:`~mirrordescent.QP` without
    constraints.

    Args:
        A: Symmetric matrix, (n, n) or (batch, n, n); or (n,), the diagonal of a diagonal matrix.
        centre: Minimiser c, (n,) or (batch, n).
    """

    A: Tensor
    centre: Tensor

    def __init__(self, A: Tensor, centre: Tensor) -> None:
        A = as_tensor(A, "A")
        centre = as_tensor(centre, "centre")
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
        return _known_curvature(self, self.A)

    def strong_convexity(self) -> float:
        """The smallest eigenvalue, rounded down, or 0."""
        eigenvalues, error = symmetric_eigenvalues(self.A)
        return max(float((eigenvalues.amin(-1) - error).min()), 0.0)

    @property
    def convex(self) -> bool | None:  # type: ignore[override]
        """Whether A is positive semidefinite; None if rounding leaves this open.

        If the sign of the smallest eigenvalue is smaller than the error of computed eigenvalues, it
        is decided in rational arithmetic, for matrices of up to 24 rows.
        """
        eigenvalues, error = symmetric_eigenvalues(self.A)
        smallest = eigenvalues.amin(-1)
        if bool((smallest < -error).any()):
            return False
        undecided = smallest < error
        if not bool(undecided.any()):
            return True
        if self.A.shape[-1] > EXACT_SIZE:
            return None
        n = self.A.shape[-1]
        matrices = self.A.double().reshape(-1, n, n)[undecided.reshape(-1)]
        return all(is_positive_semidefinite(matrix.tolist()) for matrix in matrices)

    @property
    def never_below(self) -> float | None:  # type: ignore[override]
        """0 if f is convex; a quadratic function that is not has no lower bound."""
        return 0.0 if self.convex else None

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """Return c and the value 0, if f is convex.

        Then f ≥ 0 = f(c), without rounding.
        """
        if not self.convex:
            return None
        centre = self.centre.expand(self.batch or 1, -1)
        return centre, centre.new_zeros(len(centre))

    def bound_at(self, x: Tensor, convexity: float | None = None) -> Tensor | None:
        """Return the minimum 0 if f is convex, else None."""
        return x.new_zeros(len(x)) if self.convex else None

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the error of f by a multiple of ⟨|x − c|, |A||x − c|⟩."""
        residual = (x - self.centre).abs()
        A = self.A.abs()
        product = A * residual if A.ndim == 1 else matvec(A, residual)
        return sum_error((residual * product).sum(-1), 2 * x.shape[-1])

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
        A = as_tensor(A, "A")
        b = as_tensor(b, "b")
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
        return known_norm(self, self.A) ** 2

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """Return least-squares solutions and the bounds of ``bound_at`` there, without a set.

        Small singular values are cut off at several thresholds, and the solution with the best
        bound is kept. A threshold only chooses the point: it does not enter the bound.
        """
        if not isinstance(self.domain, WholeSpace):
            return None
        A = self.A.double()
        b = self.b.double()
        U, sizes, Vh = torch.linalg.svd(A, full_matrices=False)
        best_x: Tensor | None = None
        for threshold in CUT_OFFS:
            inverse = torch.where(
                sizes > threshold * sizes.amax(-1, keepdim=True), 1 / sizes, 0.0
            ).nan_to_num(posinf=0.0)
            solve = partial(_solve, U, inverse, Vh)
            x = solve(b)
            x = x if x.ndim == 2 else x.unsqueeze(0)
            x = x + solve(b - matvec(A, x))
            x = x.to(self.A.dtype)
            value = self.value(x)
            if best_x is None:
                best_x, best_value = x, value
            better = value < best_value
            best_x = torch.where(better.unsqueeze(-1), x, best_x)
            best_value = torch.where(better, value, best_value)
        assert best_x is not None
        return best_x, self.bound_at(best_x)

    def bound_at(self, x: Tensor, convexity: float | None = None) -> Tensor:
        """Return the best of 0, the general bound and, on x ≥ 0, ⟨b, u⟩ − ½‖u‖² for a dual u.

        The general bound f(x) − ‖∇f(x)‖²/(2μ) and its forms on sets use a lower bound μ on
        σ_min(A)² of each sample. Where μ = 0, the minimum may be 0. The last bound holds for every
        u with Aᵀu ≤ 0, because f(x) ≥ ⟨u, b − Ax⟩ − ½‖u‖².
        """
        # ``convexity`` says that A has not changed; the constants of single samples are larger.
        known = convexity is not None
        mu = _KNOWN_CONVEXITIES(self, self.A) if known else convexities(self.A)
        if self.domain.bounded or bool((mu > 0).any()):
            bound = self._bound_by_linearisation(x, mu).clamp(min=0)
        else:
            bound = x.new_zeros(len(x))
        if isinstance(self.domain, PositiveOrthant):
            bound = torch.maximum(bound, rounded_down(self._dual_bound(x.double()), x.dtype))
        return bound

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the error of ½‖r‖², r = Ax − b: an error s of r adds ⟨|r|, s⟩ + ½‖s‖²."""
        rows = self.A.shape[-2]
        r = (matvec(self.A.to(x), x) - self.b.to(x)).abs()
        s = self._residual_error(x)
        return (r * s + s.square() / 2).sum(-1) * (1 + unit(rows, x.dtype)) + sum_error(value, rows)

    def gradient_error(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Bound the error of Aᵀr, r = Ax − b: an error s of r adds |A|ᵀs."""
        A = self.A.to(x).abs()
        rows, columns = A.shape[-2:]
        r = (matvec(self.A.to(x), x) - self.b.to(x)).abs()
        adjoint = matvec(A.mT, self._residual_error(x)) * (1 + unit(rows, x.dtype))
        error = norm(adjoint + sum_error(matvec(A.mT, r), rows))
        return error * (1 + unit(columns, x.dtype))

    def _residual_error(self, x: Tensor) -> Tensor:
        """γ(|A||x| + |b|), a bound on the rounding error of every entry of Ax − b."""
        A = self.A.to(x).abs()
        return sum_error(matvec(A, x.abs()) + self.b.to(x).abs(), A.shape[-1])

    def _dual_bound(self, x: Tensor) -> Tensor:
        """Return the best of ⟨b, u⟩ − ½‖u‖² for u = b − Ax − cd with Aᵀu ≤ 0; else −∞.

        The directions d are A1 and the least-squares solution of Aᵀd = 1. c is the smallest number
        for which Aᵀu ≤ 0 on columns with Aᵀd > 0. Then Aᵀu ≤ 0 is checked on all columns, with the
        rounding error of Aᵀu. u is also scaled by the best factor ⟨b, u⟩/‖u‖² ≥ 0.
        """
        A = self.A.double()
        b = self.b.double()
        rows = A.shape[-2]
        r = b - matvec(A, x)
        flat = matvec(A, torch.ones_like(x))
        solved = torch.linalg.lstsq(A.mT, A.new_ones(*A.shape[:-2], A.shape[-1], 1), driver="gelsd")
        tilted = solved.solution.squeeze(-1).expand_as(flat)
        best = x.new_full((len(x),), -torch.inf)
        for direction in (torch.zeros_like(flat), flat, tilted):
            up = matvec(A.mT, direction)
            slope = matvec(A.mT, r)
            margin = sum_error(matvec(A.abs().mT, r.abs()), rows)
            needed = torch.where(slope + margin > 0, (slope + 2 * margin) / up, 0.0)
            c = torch.where(up > 0, needed, 0.0).amax(-1, keepdim=True)
            # A few attempts, because the rounding error grows with u.
            for factor in (1.0, 1 + 1e-12, 1 + 1e-6):
                u = r - factor * c * direction
                least = matvec(A.mT, u) + sum_error(matvec(A.abs().mT, u.abs()), rows)
                feasible = (least <= 0).all(-1) & u.isfinite().all(-1)
                linear = (b * u).sum(-1)
                square = u.square().sum(-1)
                scale = (linear / square).nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
                size = scale * (b * u).abs().sum(-1) + scale.square() * square
                value = scale * linear - scale.square() * square / 2 - sum_error(size, rows)
                best = torch.where(feasible, torch.maximum(best, value), best)
        return best

    def strong_convexity(self) -> float:
        """The square of the smallest singular value, rounded down; 0 for a wide matrix."""
        return float(_KNOWN_CONVEXITIES.computed_again(self, self.A).min())


def symmetric_eigenvalues(A: Tensor) -> tuple[Tensor, Tensor | float]:
    """Return the eigenvalues of (A + Aᵀ)/2 in double precision, and a bound on their errors.

    With computed eigenvectors V and eigenvalues Λ, Weyl's inequality gives
    |λᵢ − Λᵢ| ≤ ‖VᵀAV − Λ‖ + ‖A‖‖VᵀV − I‖ to first order. The second order is far below the
    factor of 2, and the rounding errors of both products are added.
    """
    A = A.double()
    if A.ndim == 1:
        return A, 0.0
    A = (A + A.mT) / 2
    n = A.shape[-1]
    eigenvalues, V = torch.linalg.eigh(A)
    size = torch.linalg.matrix_norm(A)
    off_diagonal = torch.linalg.matrix_norm(V.mT @ A @ V - torch.diag_embed(eigenvalues))
    identity = torch.eye(n, dtype=A.dtype, device=A.device)
    skew = torch.linalg.matrix_norm(V.mT @ V - identity)
    return eigenvalues, 2 * (off_diagonal + size * skew + unit(2 * n) * n * size)


def _curvature(A: Tensor) -> float:
    """Return ‖A‖ for a symmetric A, rounded up; for a batch of matrices, the largest."""
    if A.ndim == 1:
        return float(A.double().abs().max())
    eigenvalues, error = symmetric_eigenvalues(A)
    return float((eigenvalues.abs().amax(-1) + error).max())


_known_curvature = Derived(_curvature)


def convexities(A: Tensor) -> Tensor:
    """Return lower bounds on σ_min(A)² in double precision: (batch,), or a single number.

    With any V, B = AV, D = diag(‖bⱼ‖) and Q = BD⁻¹,

        σ_min(A)‖V‖ ≥ σ_min(B) ≥ (1 − ‖QᵀQ − I‖)^½ minⱼ ‖bⱼ‖ − ‖computed B − B‖

    V are computed right singular vectors, which makes the bound tight. The rounding errors of
    all three products are subtracted.
    """
    A = A.double()
    rows, columns = A.shape[-2:]
    if rows < columns:
        return A.new_zeros(A.shape[:-2])
    V = torch.linalg.svd(A, full_matrices=False).Vh.mT
    B = A @ V
    lengths = torch.linalg.vector_norm(B, dim=-2)
    Q = B / lengths.unsqueeze(-2)
    identity = torch.eye(columns, dtype=A.dtype, device=A.device)
    units = unit(rows + columns)
    skew = torch.linalg.matrix_norm(Q.mT @ Q - identity) + columns * units
    tilt = torch.linalg.matrix_norm(V.mT @ V - identity) + columns * units
    product_error = sum_error(torch.linalg.matrix_norm(A) * torch.linalg.matrix_norm(V), columns)
    least = (1 - skew).clamp(min=0).sqrt() * lengths.amin(-1) * (1 - units) - product_error
    least = least.nan_to_num(0.0).clamp(min=0) / (1 + tilt).sqrt()
    return least.square() * (1 - units)


_KNOWN_CONVEXITIES = Derived(convexities)


def is_positive_semidefinite(matrix: Sequence[Sequence[float]]) -> bool:
    """Decide in rational arithmetic whether (A + Aᵀ)/2 is positive semidefinite.

    Symmetric elimination: every pivot must be ≥ 0, and a row with pivot 0 must be 0.

    >>> is_positive_semidefinite([[1.0, 1.0], [1.0, 1.0]])
    True
    """
    n = len(matrix)
    rows = [[Fraction(matrix[i][j]) + Fraction(matrix[j][i]) for j in range(n)] for i in range(n)]
    for k in range(n):
        pivot = rows[k][k]
        if pivot < 0 or (pivot == 0 and any(rows[k][k:])):
            return False
        if pivot == 0:
            continue
        for i in range(k + 1, n):
            factor = rows[i][k] / pivot
            if factor:
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return True


def _solve(U: Tensor, inverse: Tensor, Vh: Tensor, b: Tensor) -> Tensor:
    """Return V diag(inverse) Uᵀb."""
    return matvec(Vh.mT, inverse * matvec(U.mT, b.expand(*U.shape[:-2], -1) if b.ndim < 2 else b))


def matvec(A: Tensor, x: Tensor) -> Tensor:
    """Return Ax for a batch of vectors x, with one matrix for all or one per sample."""
    return x @ A.mT if A.ndim == 2 else torch.einsum("bij,bj->bi", A, x)


def spectral_norm(A: Tensor) -> float:
    """Return ‖A‖, rounded up; for a batch of matrices, the largest."""
    norm = float(torch.linalg.matrix_norm(A.double(), 2).max())
    return norm * (1 + max(A.shape[-2:]) * torch.finfo(torch.float64).eps)


known_norm = Derived(spectral_norm)
"""‖A‖ of the matrix of a problem or operator, computed once, because every step may need it."""


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
