"""Arrays of other libraries as tensors."""

import warnings
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_tensor(data: Any, name: str = "data") -> Tensor:
    """Return a tensor with the numbers of a NumPy array; a tensor is returned as it is.

    Args:
        data: Tensor or NumPy array. Arrays of whole numbers become double precision.
        name: Name of the data in the error message.

    >>> as_tensor(np.ones(2, dtype=np.float32))
    tensor([1., 1.])
    """
    if isinstance(data, Tensor):
        return data
    if isinstance(data, np.ndarray):
        if data.dtype.kind in "iub":
            data = data.astype(np.float64)
        if data.dtype.kind not in "fc" or data.dtype.itemsize > 16:
            raise TypeError(f"{name} must hold real numbers, got a NumPy array of {data.dtype}")
        # Torch supports neither negative strides nor arrays that must not be written to.
        return torch.from_numpy(np.array(data))
    if is_sparse(data):
        raise TypeError(
            f"{name} is a SciPy sparse matrix, which only operators accept: pass "
            f"problems.as_operator({name}), or {name}.toarray() for a dense matrix"
        )
    raise TypeError(
        f"{name} must be a tensor or a NumPy array, got {type(data).__name__}: "
        "convert it with torch.as_tensor"
    )


def is_sparse(data: Any) -> bool:
    """Tell whether an object is a sparse matrix or array of SciPy, without importing SciPy."""
    module = type(data).__module__
    return module.startswith("scipy.sparse") and hasattr(data, "tocsr")


def csr_parts(matrix: Any) -> tuple[Tensor, Tensor, Tensor, tuple[int, int]]:
    """Return row starts, columns, entries and shape of a sparse matrix of SciPy or torch."""
    if isinstance(matrix, Tensor):
        _warn_about_csr()
        csr = matrix if matrix.layout == torch.sparse_csr else matrix.to_sparse_csr()
        shape = (int(csr.shape[0]), int(csr.shape[1]))
        return csr.crow_indices().long(), csr.col_indices().long(), csr.values(), shape
    rows = matrix.tocsr()
    return (
        torch.from_numpy(rows.indptr.astype(np.int64)),
        torch.from_numpy(rows.indices.astype(np.int64)),
        as_tensor(np.asarray(rows.data), "matrix"),
        (int(rows.shape[0]), int(rows.shape[1])),
    )


def csr_tensor(starts: Tensor, columns: Tensor, entries: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a sparse tensor in CSR layout, without torch's warning that the layout is new."""
    _warn_about_csr()
    return torch.sparse_csr_tensor(starts, columns.long(), entries, shape, check_invariants=False)


@cache
def _warn_about_csr() -> None:
    """Make torch warn about CSR tensors where nobody sees it; it does so once per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.eye(1).to_sparse_csr()
