"""Programs without their equalities, in the form that ADMM iterates on.

All points with Ex = b are x = x̄ + Nv, where the columns of N are an orthonormal basis of the null
space of E. The program in v has only inequalities. If problems share P and A, they share N and all
matrices of the reduced program, which are computed once for the class.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrordescent._internal.arrays import csr_tensor
from mirrordescent._internal.extras import requires_extra
from mirrordescent.problems.quadratics import matvec
from mirrordescent.problems.second_order_cones import Cones

RIDGE = 1e-10
"""Multiple of the identity, relative to the other matrices, that makes systems regular."""

SHORT_RUN = 200
"""Steps of the run that estimates multipliers."""


class Schur(NamedTuple):
    """The matrix S = CH⁻¹Cᵀ, and the image c = −CH⁻¹g of the minimiser without inequalities."""

    S: Tensor
    centre: Tensor


class ProgramMatrices:
    """The matrices of programs without their equalities, which a class of programs can share.

    With an orthonormal basis N of the null space of the equalities, H = NᵀPN, and C = DA_rN for the
    rows A_r of the inequalities, where D makes the rows of C have norm 1. All are in float64.

    Args:
        P: Matrix of the objective; None for a linear program.
        A: Matrix of the constraints.
        equal: Rows that are equalities, (m,) bool.
        free: Rows without finite bounds, (m,) bool.
        cones: Second-order cones of the last rows. All rows of a cone have the same scale.
    """

    def __init__(
        self, P: Tensor | None, A: Tensor, equal: Tensor, free: Tensor, cones: Cones
    ) -> None:
        self._made_of = (P, A)
        self._versions = (_version(P), _version(A))
        self.equal = equal
        self.free = free
        A = A.double()
        n = A.shape[-1]
        self.E = A[..., equal, :]
        self.N, self.inverse, self.rank = _null_space(self.E)
        sizes = torch.linalg.vector_norm(A @ self.N, dim=-1)
        moves = sizes > 1e-12 * torch.linalg.vector_norm(A, dim=-1).clamp(min=1e-300)
        if moves.ndim == 2:
            moves = moves.any(0)
        moves[cones.first :] = True
        self.fixed = ~equal & ~free & ~moves
        self.fixed_rows = A[..., self.fixed, :]
        self.kept = ~equal & ~free & moves
        self.equal_index = equal.nonzero().flatten()
        self.kept_index = self.kept.nonzero().flatten()
        self.cones = cones.kept_rows(self.kept[: cones.first])
        self.A_rows = A[..., self.kept, :]
        self.P = A.new_zeros(n, n) if P is None else P.double()
        self.H = self.N.mT @ self.P @ self.N
        C = self.A_rows @ self.N
        norms = torch.linalg.vector_norm(C, dim=-1)
        norms = self.cones.largest_of_cones(norms)
        self.scale = torch.where(norms > 1e-12, 1 / norms.clamp(min=1e-12), 1.0)
        self.C = self.scale.unsqueeze(-1) * C
        # Parts of g and of the bounds of Cv that depend on the right-hand sides of equalities.
        self.curvature_of_start = self.N.mT @ self.P @ self.inverse
        self.image_of_start = self.scale.unsqueeze(-1) * (self.A_rows @ self.inverse)
        self.unit: float | None = None

    def fits(self, P: Tensor | None, A: Tensor) -> bool:
        """Return whether these are the reduced matrices of P and A."""
        same = P is self._made_of[0] and A is self._made_of[1]
        return same and (_version(P), _version(A)) == self._versions

    @property
    def rows(self) -> int:
        """Number of inequalities."""
        return self.C.shape[-2]

    @cached_property
    def strongly_convex(self) -> bool:
        """Whether H is positive definite."""
        if not self.H.shape[-1]:
            return False
        eigenvalues = torch.linalg.eigvalsh(self.H)
        least = 1e-10 * eigenvalues[..., -1].clamp(min=1e-300)
        return bool((eigenvalues[..., 0] > least).all())

    @cached_property
    def images(self) -> Tensor:
        """CH⁻¹, if H is positive definite."""
        return self.C @ torch.linalg.inv(self.H)

    @cached_property
    def S(self) -> Tensor:
        """S = CH⁻¹Cᵀ, if H is positive definite."""
        return self.images @ self.C.mT

    def factor(self, rho: Tensor) -> tuple[Tensor, Tensor]:
        """Return K = (H + CᵀRC)⁻¹ and CKCᵀ for penalties ρ of all rows, in double precision."""
        weighted = self.C.mT @ (rho.unsqueeze(-1) * self.C) if self.rows else 0.0
        system = self.H + weighted
        k = system.shape[-1]
        if not k:
            return system, self.C @ self.C.mT
        size = torch.diagonal(system, dim1=-2, dim2=-1).mean(-1).clamp(min=1e-300)
        identity = torch.eye(k, dtype=system.dtype, device=system.device)
        K = torch.linalg.inv(system + RIDGE * size[..., None, None] * identity)
        return K, self.C @ K @ self.C.mT


class ReducedProgram:
    """min ½⟨v, Hv⟩ + ⟨g, v⟩ subject to low ≤ Cv ≤ high, with rows of C of norm 1, in float64.

    The last rows may belong to second-order cones: Cv − low ∈ K.

    Args:
        matrices: The matrices, which other programs may share.
        q: Linear term.
        l: Lower bounds.
        u: Upper bounds.
    """

    def __init__(
        self,
        matrices: ProgramMatrices,
        q: Tensor,
        l: Tensor,  # noqa: E741
        u: Tensor,
    ) -> None:
        self.matrices = matrices
        self.q = q.double()
        lower = l.double()
        upper = u.double()
        self.batch = max([1, *(len(each) for each in (q, lower, upper) if each.ndim == 2)])
        for matrix in (matrices.C, matrices.H):
            if matrix.ndim == 3:
                self.batch = max(self.batch, len(matrix))
        self.cones = matrices.cones
        self._bounds = (lower, upper)
        self.b = lower.index_select(-1, matrices.equal_index).expand(self.batch, -1)
        self._right = _Vectors(self.b)
        pull = self._right.times(matrices.curvature_of_start)
        self.g = (matvec(matrices.N.mT, self.q) + pull).expand(self.batch, -1)
        self.offset = self._right.times(matrices.image_of_start)
        scale = matrices.scale
        kept = matrices.kept_index
        self.low = (scale * lower.index_select(-1, kept) - self.offset).expand(self.batch, -1)
        self.high = (scale * upper.index_select(-1, kept) - self.offset).expand(self.batch, -1)
        if matrices.unit is None:
            matrices.unit = self._unit()
        self.unit = matrices.unit

    @cached_property
    def start(self) -> Tensor:
        """The point x̄ of least norm that satisfies the equalities, if there is one."""
        return self._right.times(self.matrices.inverse)

    @cached_property
    def mismatch(self) -> Tensor:
        """Violations that no v changes: of equalities, and of inequalities that they fix."""
        violations = matvec(self.matrices.E, self.start) - self.b
        fixed = self.matrices.fixed
        if not bool(fixed.any()):
            return violations
        lower, upper = self._bounds
        image = matvec(self.matrices.fixed_rows, self.start)
        over = torch.maximum(image - upper[..., fixed], lower[..., fixed] - image)
        return torch.cat([violations, over.clamp(min=0)], -1)

    def _unit(self) -> float:
        """Return the scale of ADMM's penalties.

        If H is positive definite, 1/√(λ₁λᵣ) for the extreme positive eigenvalues of S = CH⁻¹Cᵀ is
        best for equalities (Ghadimi et al., IEEE Trans. Automat. Control 60, 2015). Otherwise it is
        the ratio of the sizes of H and CᵀC, or of y and z for a linear program.
        """
        matrices = self.matrices
        if not self.rows or not matrices.strongly_convex:
            return _unit_of_penalties(matrices.H, matrices.C, self.g, self.low, self.high)
        sizes = torch.linalg.eigvalsh(matrices.S)
        positive = torch.where(sizes > 1e-9 * sizes[..., -1:], sizes, torch.inf)
        products = positive.amin(-1) * sizes[..., -1]
        return float(products.rsqrt().median())

    @property
    def rows(self) -> int:
        """Number of inequalities."""
        return self.matrices.rows

    @cached_property
    def schur(self) -> Schur | None:
        """S = CH⁻¹Cᵀ and c = −CH⁻¹g; None if H is not positive definite, or if there are cones."""
        if self.cones or not self.matrices.strongly_convex:
            return None
        return Schur(self.matrices.S, -matvec(self.matrices.images, self.g))

    def image_of(self, x: Tensor) -> Tensor:
        """Return DA_r(x − x̄), which is Cv if x = x̄ + Nv."""
        if not bool(x.any()):
            return -self.offset
        return self.matrices.scale * matvec(self.matrices.A_rows, x) - self.offset

    def point(self, K: Tensor, w: Tensor) -> Tensor:
        """Return x = x̄ + N K(Cᵀw − g), the minimiser of the augmented Lagrangian for w = Rz − y."""
        pull = matvec(self.matrices.C.mT, w) - self.g
        return self.start + matvec(self.matrices.N, matvec(K, pull))

    def multipliers(self, x: Tensor, y: Tensor) -> Tensor:
        """Return multipliers of all rows of A, given those of the inequalities in C.

        Multipliers of equalities minimise ‖Px + q + Aᵀy‖.
        """
        matrices = self.matrices
        inequalities = matrices.scale * y
        pull = matvec(matrices.P, x) + self.q + matvec(matrices.A_rows.mT, inequalities)
        equalities = -matvec(matrices.inverse.mT, pull)
        out = y.new_zeros(len(y), len(matrices.equal))
        out[:, matrices.equal] = equalities
        out[:, matrices.kept] = inequalities
        return out


class SparseProgram:
    """A program with sparse matrices, in the same form: N = I, and equalities are rows of C.

    Systems are solved by SciPy's sparse LU decomposition, which is shared by all problems.
    """

    def __init__(
        self,
        cones: Cones,
        q: Tensor,
        l: Tensor,  # noqa: E741
        u: Tensor,
        P_starts: Tensor,
        P_columns: Tensor,
        P_entries: Tensor,
        A_starts: Tensor,
        A_columns: Tensor,
        A_entries: Tensor,
    ) -> None:
        n = q.shape[-1]
        m = len(A_starts) - 1
        self.P = csr_tensor(P_starts, P_columns, P_entries.double(), (n, n))
        sizes = torch.zeros(m, dtype=torch.float64, device=q.device)
        index = torch.repeat_interleave(torch.arange(m, device=q.device), A_starts.diff())
        sizes.index_add_(0, index, A_entries.double().square())
        self.cones = cones
        self.scale = 1 / cones.largest_of_cones(sizes.sqrt()).clamp(min=1e-12)
        self.C = csr_tensor(A_starts, A_columns, A_entries.double() * self.scale[index], (m, n))
        self.batch = max([1, *(len(each) for each in (q, l, u) if each.ndim == 2)])
        self.g = q.double().expand(self.batch, -1)
        self.low = (self.scale * l.double()).expand(self.batch, -1)
        self.high = (self.scale * u.double()).expand(self.batch, -1)
        self.equal_rows = (self.low == self.high).all(0)
        self.mismatch = q.new_zeros(self.batch, 0).double()
        size = float(P_entries.double().abs().mean()) if len(P_entries) else 0.0
        span = _span(self.low, self.high)
        self.unit = size or float(self.g.square().mean().sqrt()) / span

    @property
    def rows(self) -> int:
        """Number of rows of A."""
        return self.C.shape[0]

    def factor(self, rho: Tensor) -> Any:
        """Return the decomposition of [P + σI, Cᵀ; C, −1/ρ]."""
        with requires_extra("rivals", "Solving sparse programs", "SciPy"):
            import scipy.sparse as sp
            from scipy.sparse.linalg import splu

        weights = torch.where(self.equal_rows, 1e3 * rho, rho)
        P = _scipy(self.P)
        C = _scipy(self.C)
        sigma = 1e-6 * self.unit
        system = sp.bmat(
            [
                [P + sigma * sp.eye(P.shape[0]), C.T],
                [C, -sp.diags(1 / weights.cpu().numpy())],
            ],
            format="csc",
        )
        return splu(system), weights, sigma


class _Vectors:
    """Vectors of a batch, most of whose entries may be equal for all samples.

    Args:
        vectors: The vectors, (batch, n).
    """

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        n = vectors.shape[-1]
        self.first = vectors[0]
        self.varying = (vectors != self.first).any(0).nonzero().flatten() if n else None
        self.few = self.varying is not None and 2 * len(self.varying) <= n
        if self.few:
            self.moves = vectors[:, self.varying] - self.first[self.varying]

    def times(self, matrix: Tensor) -> Tensor:
        """Return the products with a matrix, or with one matrix for each vector."""
        if matrix.ndim == 3 or not self.few:
            return matvec(matrix, self.vectors)
        return torch.addmm(matrix @ self.first, self.moves, matrix[:, self.varying].mT)


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version


def _scipy(matrix: Tensor) -> Any:
    import scipy.sparse as sp

    parts = (matrix.values(), matrix.col_indices(), matrix.crow_indices())
    return sp.csr_matrix(tuple(each.cpu().numpy() for each in parts), shape=tuple(matrix.shape))


def _null_space(E: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return an orthonormal basis of the null space of E, the pseudo-inverse, and the rank."""
    n = E.shape[-1]
    if not E.shape[-2]:
        identity = torch.eye(n, dtype=E.dtype, device=E.device)
        return identity.expand(*E.shape[:-2], n, n), E.mT, 0
    U, sizes, Vh = torch.linalg.svd(E, full_matrices=True)
    cut = sizes.amax(-1, keepdim=True) * max(E.shape[-2:]) * torch.finfo(E.dtype).eps
    ranks = (sizes > cut).sum(-1)
    rank = int(ranks.max())
    if int(ranks.min()) != rank:
        raise ValueError("the equalities of all problems of a batch must have the same rank")
    V = Vh.mT
    inverse = (V[..., :rank] / sizes[..., None, :rank]) @ U[..., :rank].mT
    return V[..., rank:], inverse, rank


def _unit_of_penalties(H: Tensor, C: Tensor, g: Tensor, low: Tensor, high: Tensor) -> float:
    """Return ‖H‖/‖CᵀC‖, or the size of y/z for a linear program."""
    if not C.shape[-2]:
        return 1.0
    curvature = float(torch.linalg.matrix_norm(H).max()) if H.numel() else 0.0
    if curvature > 0:
        return curvature / max(float(torch.linalg.matrix_norm(C.mT @ C).max()), 1e-12)
    return max(float(g.square().mean().sqrt()) / _span(low, high), 1e-12)


def _span(low: Tensor, high: Tensor) -> float:
    """Return the typical size of finite bounds."""
    finite = torch.cat([low[low.isfinite()], high[high.isfinite()]])
    return max(float(finite.square().mean().sqrt()), 1e-6) if len(finite) else 1.0


@torch.no_grad()
def multipliers(program: ReducedProgram | SparseProgram, steps: int = SHORT_RUN) -> Tensor:
    """Return multipliers (batch, rows of A) after a short run of ADMM in double precision."""
    if isinstance(program, SparseProgram):
        return _sparse_multipliers(program, steps)
    rho = torch.full((program.rows,), program.unit, dtype=torch.float64, device=program.g.device)
    K, M = program.matrices.factor(rho)
    bias = -matvec(program.matrices.C, matvec(K, program.g))
    z = torch.zeros_like(program.low)
    y = torch.zeros_like(z)
    for _ in range(steps if program.rows else 0):
        v = 1.6 * (bias + matvec(M, rho * z - y)) - 0.6 * z
        z = program.cones.project(v + y / rho, program.low, program.high)
        y = y + rho * (v - z)
    x = program.point(K, rho * z - y)
    return program.multipliers(x, y)


def _sparse_multipliers(program: SparseProgram, steps: int) -> Tensor:
    rho = torch.full((program.rows,), program.unit, dtype=torch.float64)
    solver, weights, sigma = program.factor(rho)
    z = torch.zeros_like(program.low)
    y = torch.zeros_like(z)
    x = torch.zeros_like(program.g)
    for _ in range(steps):
        x, z, y = sparse_step(program, solver, weights, sigma, x, z, y, 1.6)
    return program.scale * y


def sparse_step(
    program: SparseProgram,
    solver: Any,
    rho: Tensor,
    sigma: float,
    x: Tensor,
    z: Tensor,
    y: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, z and y after a step of OSQP with over-relaxation α."""
    right = torch.cat([sigma * x - program.g.to(x), z - y / rho.to(y)], -1)
    solved = torch.from_numpy(solver.solve(right.double().mT.cpu().numpy())).mT.to(x)
    n = x.shape[-1]
    ahead = solved[..., :n]
    weights = rho.to(y)
    z_ahead = z + (solved[..., n:] - y) / weights
    x_new = alpha * ahead + (1 - alpha) * x
    v = alpha * z_ahead + (1 - alpha) * z
    z_new = program.cones.project(v + y / weights, program.low.to(z), program.high.to(z))
    return x_new, z_new, y + weights * (v - z_new)
