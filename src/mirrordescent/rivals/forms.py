"""Problems in the standard forms that outside solvers need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mirrordescent.domains import Box, Domain, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.problems.base import Problem, in_double
from mirrordescent.problems.composite import Composite
from mirrordescent.problems.outside_operators import SparseMatrix
from mirrordescent.problems.programs import QP
from mirrordescent.problems.terms import L1
from mirrordescent.trees import Tree, batch_size

Array: TypeAlias = NDArray[np.float64]

LARGEST = 1000
"""Number of variables up to which a quadratic function is written as a matrix."""

MOST_ENTRIES = 10_000_000
"""Number of entries up to which a sparse matrix is written as a dense one."""

ALIKE = 1e-6
"""Relative difference up to which a gradient counts as affine."""


@dataclass(frozen=True)
class DenseProgram:
    """min ½⟨x, Px⟩ + ⟨q, x⟩ subject to l ≤ Ax ≤ u, for every problem of a batch.

    Args:
        P: Matrices, (n, n) if shared, else (batch, n, n).
        q: Linear terms, (batch, n).
        A: Matrix of the constraints, (m, n) if shared, else (batch, m, n).
        l: Lower bounds, (batch, m).
        u: Upper bounds, (batch, m).
        shape: Shape of a point of the problem.
        split: Whether x is the difference of the first and second half of the variables.
        cones: Sizes of second-order cones: the last rows satisfy Ax − l ∈ K.
    """

    P: Array
    q: Array
    A: Array
    l: Array  # noqa: E741
    u: Array
    shape: tuple[int, ...]
    split: bool = False
    cones: tuple[int, ...] = ()
    _sparse: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def count(self) -> int:
        """Number of problems."""
        return len(self.q)

    def P_of(self, i: int) -> Array:
        """Return P of problem i."""
        return self.P if self.P.ndim == 2 else cast(Array, self.P[i])

    def A_of(self, i: int) -> Array:
        """Return A of problem i."""
        return self.A if self.A.ndim == 2 else cast(Array, self.A[i])

    def sparse(self, name: Literal["P", "A"], i: int) -> Any:
        """Return P or A of problem i as a sparse matrix of SciPy; a shared one is made once."""
        import scipy.sparse as sp

        shared = self.P.ndim == 2 if name == "P" else self.A.ndim == 2
        if shared and name in self._sparse:
            return self._sparse[name]
        matrix = sp.csc_matrix(self.P_of(i) if name == "P" else self.A_of(i))
        if shared:
            self._sparse[name] = matrix
        return matrix

    def points(self, solutions: list[Any], like: Tensor) -> Tensor:
        """Return solutions as points of the problem."""
        x = torch.from_numpy(np.stack([np.asarray(each, dtype=float) for each in solutions]))
        if self.split:
            x = x[:, : x.shape[1] // 2] - x[:, x.shape[1] // 2 :]
        return x.reshape(len(x), *self.shape).to(like)


@torch.no_grad()
def quadratic_of(problem: Problem, x0: Tree) -> tuple[Array, Array] | None:
    """Return P and q of f(x) = ½⟨x, Px⟩ + ⟨q, x⟩ + c; None if f is not quadratic.

    P is read off the gradients at x₀ + eⱼ. f counts as quadratic if gradients at two other points
    agree. P is shared, (n, n), if it is the same for all problems.

    Args:
        problem: Batch of problems.
        x0: Starts, for the number of problems and the shape of points.
    """
    if not isinstance(x0, Tensor) or x0[0].numel() > LARGEST:
        return None
    precise, points = in_double(problem, x0)
    start = torch.zeros_like(cast(Tensor, points))
    n = start[0].numel()

    def gradient(x: Tensor) -> Tensor:
        return cast(Tensor, precise.grad(x.reshape(start.shape))).reshape(len(start), n)

    flat = start.reshape(len(start), n)
    try:
        q = gradient(flat)
        columns = []
        for j in range(n):
            moved = flat.clone()
            moved[:, j] += 1
            columns.append(gradient(moved) - q)
        P = torch.stack(columns, -1)
        generator = torch.Generator().manual_seed(0)
        for size in (0.3, 2.0):
            x = size * torch.randn(flat.shape, generator=generator, dtype=flat.dtype).to(flat)
            expected = torch.einsum("bij,bj->bi", P, x) + q
            error = (gradient(x) - expected).norm(dim=-1)
            scale = expected.norm(dim=-1) + q.norm(dim=-1) + 1e-300
            if not bool((error <= ALIKE * scale).all()):
                return None
    except (RuntimeError, ValueError, TypeError):
        return None
    P = (P + P.mT) / 2
    if len(P) > 1 and bool((P - P[:1]).abs().max() <= 1e-12 * P.abs().max()):
        P = P[0]
    return P.cpu().numpy(), q.cpu().numpy()


def program_of(problem: Problem, x0: Tree) -> DenseProgram | None:
    """Return a problem as a dense quadratic program; None if it has no such form.

    Accepted are a QP, unless it is large and sparse; a quadratic function, also of a user's class,
    on a simplex, a box, an orthant or Rⁿ; and such a function plus λ‖x‖₁, with twice as many
    variables.
    """
    if isinstance(problem, QP):
        return _of_program(problem, batch_size(x0))
    if isinstance(problem, Composite) and len(problem.parts):
        return _of_lasso(problem, x0)
    form = quadratic_of(problem, x0)
    if form is None:
        return None
    P, q = form
    rows = _rows_of(problem.domain, q.shape[1])
    if rows is None or not isinstance(x0, Tensor):
        return None
    A, lower, upper = rows
    return DenseProgram(
        P, q, A, _repeat(lower, len(q)), _repeat(upper, len(q)), tuple(x0.shape[1:])
    )


def _of_program(problem: QP, count: int) -> DenseProgram | None:
    P = problem.P
    A = problem.A
    n = problem.q.shape[-1]
    if problem.sparse and n * (n + problem.rows) > MOST_ENTRIES:
        return None
    q = problem.q.double().expand(count, -1).cpu().numpy()
    quadratic = np.zeros((n, n)) if P is None else _dense(P)
    lower = problem.l.double().expand(count, -1).cpu().numpy()
    upper = problem.u.double().expand(count, -1).cpu().numpy()
    return DenseProgram(quadratic, q, _dense(A), lower, upper, (n,), cones=problem.cones)


def _dense(matrix: Tensor | SparseMatrix) -> Array:
    if isinstance(matrix, Tensor):
        return cast(Array, matrix.double().cpu().numpy())
    dense = torch.zeros(matrix.size, dtype=torch.float64)
    rows = torch.repeat_interleave(torch.arange(matrix.size[0]), matrix.starts.diff().cpu())
    index = (rows, matrix.columns.cpu())
    dense.index_put_(index, matrix.entries.double().cpu(), accumulate=True)
    return cast(Array, dense.numpy())


def _of_lasso(problem: Composite, x0: Tree) -> DenseProgram | None:
    """Return f₀(a − b) + λΣ(a + b) with a, b ≥ 0 for f₀ + λ‖x‖₁ with a quadratic f₀."""
    terms = list(problem.parts)
    plain = len(terms) == 1 and type(terms[0]) is L1 and isinstance(problem.domain, WholeSpace)
    if not plain or not isinstance(x0, Tensor):
        return None
    term = cast(L1, terms[0])
    if term.operator is not None or term.coupled or term.offset is not None:
        return None
    form = quadratic_of(problem.smooth, x0)
    if form is None:
        return None
    P, q = form
    weight = torch.as_tensor(term.scaled_weight, dtype=torch.float64).cpu().numpy().reshape(-1, 1)
    doubled = np.concatenate([np.concatenate([P, -P], -1), np.concatenate([-P, P], -1)], -2)
    linear = np.concatenate([q + weight, -q + weight], -1)
    n = linear.shape[1]
    return DenseProgram(
        doubled,
        linear,
        np.eye(n),
        np.zeros(linear.shape),
        np.full(linear.shape, np.inf),
        tuple(x0.shape[1:]),
        split=True,
    )


def _rows_of(domain: Domain, n: int) -> tuple[Array, Array, Array] | None:
    """Return A, l and u of a set; None for sets that are not polyhedral."""
    if type(domain) is WholeSpace:
        return np.zeros((0, n)), np.zeros(0), np.zeros(0)
    if type(domain) is PositiveOrthant:
        return np.eye(n), np.zeros(n), np.full(n, np.inf)
    if type(domain) is Box:
        return np.eye(n), np.full(n, domain.lower), np.full(n, domain.upper)
    if type(domain) is Simplex:
        A = np.vstack([np.ones((1, n)), np.eye(n)])
        return A, np.append(1.0, np.zeros(n)), np.append(1.0, np.full(n, np.inf))
    return None


def _repeat(row: Array, count: int) -> Array:
    return np.repeat(row[None], count, 0)
