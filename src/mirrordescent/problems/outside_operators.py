"""Operators of other libraries: SciPy sparse matrices, SciPy and PyLops operators, torch CSR."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mirrordescent._internal.arrays import as_tensor, csr_parts, csr_tensor, is_sparse
from mirrordescent.parts import Config, Part
from mirrordescent.problems.operators import LinearOperator, Matrix, norm_bound


class SparseMatrix(Part, nn.Module):
    """Ax for a sparse matrix A, on points of any shape with n entries.

    Products are those of torch for CSR tensors. The transposed matrix is stored too, because
    products with it are faster than transposed products.

    Args:
        matrix: Sparse matrix of SciPy, or sparse tensor, (m, n).
        shape: Shape of a point; (n,) by default.

    >>> import torch
    >>> operator = SparseMatrix(torch.eye(3).to_sparse())
    >>> operator.A(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """

    kind = "operator"

    starts: Tensor
    columns: Tensor
    entries: Tensor
    transposed_starts: Tensor
    transposed_columns: Tensor
    order: Tensor

    def __init__(self, matrix: Any, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        starts, columns, entries, size = csr_parts(matrix)
        if not bool(entries.isfinite().all()):
            raise ValueError("matrix has NaN or infinite entries")
        self.size = size
        self.shape = (size[1],) if shape is None else tuple(shape)
        if int(np.prod(self.shape)) != size[1]:
            raise ValueError(
                f"shape must have {size[1]} entries, one per column of the matrix, got {self.shape}"
            )
        self.register_buffer("starts", starts)
        self.register_buffer("columns", columns)
        self.register_buffer("entries", entries)
        rows = torch.repeat_interleave(torch.arange(size[0]), starts.diff())
        order = torch.argsort(columns * max(size[0], 1) + rows)
        counts = torch.bincount(columns, minlength=size[1])
        self.register_buffer("order", order)
        self.register_buffer("transposed_columns", rows[order])
        zero = counts.new_zeros(1)
        self.register_buffer("transposed_starts", torch.cat([zero, counts.cumsum(0)]))
        self._norm: float | None = None

    def config(self) -> Config:
        return {
            "starts": self.starts,
            "columns": self.columns,
            "entries": self.entries,
            "rows": self.size[0],
            "shape": list(self.shape),
        }

    @classmethod
    def from_config(
        cls, starts: Tensor, columns: Tensor, entries: Tensor, rows: int, shape: list[int]
    ) -> "SparseMatrix":
        """Return the operator with these arrays in CSR layout."""
        size = (rows, int(np.prod(shape)))
        return cls(csr_tensor(starts, columns, entries, size), tuple(shape))

    @property
    def norm(self) -> float:
        """An estimate of ‖A‖ by power iteration, 5 % too large as a rule; computed once."""
        if self._norm is None:
            like = self.entries.new_zeros(1, *self.shape)
            unnamed = _Plain(self)
            self._norm = norm_bound(unnamed, like) if len(self.entries) else 0.0
        return self._norm

    def matrix(self, like: Tensor) -> Tensor:
        """Return A as a CSR tensor in the type of another tensor."""
        return csr_tensor(self.starts, self.columns, self.entries.to(like), self.size)

    def A(self, x: Tensor) -> Tensor:
        """Ax, (batch, m)."""
        return torch.sparse.mm(self.matrix(x), x.flatten(1).mT).mT

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀy, in the shape of points."""
        entries = self.entries.to(y)[self.order]
        size = (self.size[1], self.size[0])
        transposed = csr_tensor(self.transposed_starts, self.transposed_columns, entries, size)
        return torch.sparse.mm(transposed, y.mT).mT.reshape(len(y), *self.shape)


class _Plain:
    """An operator without the attribute ``norm``, so that its norm is estimated."""

    def __init__(self, operator: SparseMatrix) -> None:
        self.operator = operator

    def A(self, x: Tensor) -> Tensor:
        return self.operator.A(x)

    def A_adjoint(self, y: Tensor) -> Tensor:
        return self.operator.A_adjoint(y)


class ArrayOperator:
    """A linear operator of SciPy or PyLops, which maps NumPy arrays by ``matmat`` and ``rmatmat``.

    Points are copied to NumPy arrays and back, so that derivatives do not pass through.

    Args:
        operator: Object with ``shape``, ``matmat`` and ``rmatmat``.
        shape: Shape of a point; (n,) by default.
    """

    def __init__(self, operator: Any, shape: tuple[int, ...] | None = None) -> None:
        self.operator = operator
        self.shape = (int(operator.shape[1]),) if shape is None else tuple(shape)

    def A(self, x: Tensor) -> Tensor:
        """Ax, (batch, m)."""
        return self._apply(self.operator.matmat, x)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀy, in the shape of points."""
        return self._apply(self.operator.rmatmat, y).reshape(len(y), *self.shape)

    def _apply(self, product: Any, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            raise TypeError(
                "derivatives do not pass through an operator of SciPy or PyLops: use a tensor, "
                "or problems.Linear with a function of torch"
            )
        columns = x.detach().flatten(1).mT.cpu().numpy()
        image = np.ascontiguousarray(np.asarray(product(columns)).T)
        return torch.from_numpy(image).to(x)


def as_operator(operator: Any, shape: tuple[int, ...] | None = None) -> LinearOperator:
    """Return an operator with ``A`` and ``A_adjoint`` for a matrix or operator of any kind.

    Accepted are objects with ``A`` and ``A_adjoint``, tensors and NumPy arrays, sparse tensors,
    SciPy sparse matrices, and linear operators of SciPy and PyLops.

    Args:
        operator: Matrix or operator.
        shape: Shape of a point, for matrices; (n,) by default.

    >>> import numpy as np
    >>> as_operator(np.eye(2)).A(torch.ones(1, 2))
    tensor([[1., 1.]])
    """
    if isinstance(operator, LinearOperator):
        return operator
    if is_sparse(operator) or (isinstance(operator, Tensor) and operator.layout != torch.strided):
        return SparseMatrix(operator, shape)
    if isinstance(operator, Tensor | np.ndarray):
        return Matrix(as_tensor(operator, "operator"), shape)
    if all(hasattr(operator, name) for name in ("shape", "matmat", "rmatmat")):
        return ArrayOperator(operator, shape)
    raise TypeError(
        "an operator must have the methods A and A_adjoint, or be a matrix, a SciPy sparse matrix "
        f"or a linear operator of SciPy or PyLops; got {type(operator).__name__}"
    )
