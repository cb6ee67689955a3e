"""Arrays of NumPy, pandas and xarray as tensors, and tensors as arrays of the same kind."""

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class LabelledArray(Protocol):
    """A Series or DataFrame of pandas, or a DataArray of xarray."""

    def to_numpy(self) -> Any: ...


def as_tensor(data: Any, name: str = "data") -> Tensor:
    """Return a tensor with the numbers of an array; a tensor is returned as it is.

    Args:
        data: Tensor, NumPy array, Series or DataFrame of pandas, or DataArray of xarray. Whole
            numbers become double precision.
        name: Name of the data in the error message.

    >>> as_tensor(np.ones(2, dtype=np.float32))
    tensor([1., 1.])
    """
    if isinstance(data, Tensor):
        return data
    if is_labelled(data):
        data = data.to_numpy()
    if isinstance(data, np.ndarray):
        if data.dtype.kind in "iub":
            data = data.astype(np.float64)
        if data.dtype.kind not in "fc" or data.dtype.itemsize > 16:
            raise TypeError(f"{name} must hold real numbers, got an array of {data.dtype}")
        # Torch supports neither negative strides nor arrays that must not be written to.
        return torch.from_numpy(np.array(data))
    if is_sparse(data):
        raise TypeError(
            f"{name} is a SciPy sparse matrix, which only operators accept: pass "
            f"problems.as_operator({name}), or {name}.toarray() for a dense matrix"
        )
    raise TypeError(
        f"{name} must be a tensor or an array of NumPy, pandas or xarray, got "
        f"{type(data).__name__}: convert it with torch.as_tensor"
    )


def is_labelled(data: Any) -> bool:
    """Tell whether data are an array of pandas or xarray, without importing these packages."""
    package = type(data).__module__.partition(".")[0]
    return package in ("pandas", "xarray") and hasattr(data, "to_numpy")


def labelled_like(array: "np.ndarray[Any, Any]", data: Any) -> Any:
    """Return an array with the labels of an array of pandas or xarray.

    Labels of an axis are kept if its length is the same.

    Args:
        array: Numbers, with as many axes as data.
        data: Series, DataFrame or DataArray.
    """
    if hasattr(data, "dims"):  # of xarray
        lengths = dict(zip(data.dims, array.shape, strict=True))
        coordinates = {
            name: labels
            for name, labels in data.coords.items()
            if all(lengths[axis] == data.sizes[axis] for axis in labels.dims)
        }
        return type(data)(array, coordinates, data.dims, data.name, data.attrs)
    labels = [
        axis if len(axis) == length else None
        for axis, length in zip(data.axes, array.shape, strict=True)
    ]
    if array.ndim == 1:
        return type(data)(array, index=labels[0], name=data.name)
    return type(data)(array, index=labels[0], columns=labels[1])


def converter_like(data: Any) -> Callable[[Any], Any]:
    """Return a function that converts tensors to the kind of some data.

    It accepts a tensor or a dict of tensors, in the form of the data. Tensors stay as they are.

    Args:
        data: Tensor or array, or a dict of these.

    >>> converter_like(np.zeros(2))(torch.ones(2))
    array([1., 1.], dtype=float32)
    """
    if isinstance(data, Mapping):
        parts = {name: converter_like(part) for name, part in data.items()}
        return lambda tree: {name: parts[name](tensor) for name, tensor in tree.items()}
    if isinstance(data, np.ndarray):
        return lambda tensor: tensor.detach().cpu().numpy()
    if is_labelled(data):
        return lambda tensor: labelled_like(tensor.detach().cpu().numpy(), data)
    return lambda tensor: tensor


def tree_of(data: Any, name: str) -> Any:
    """Return a tensor, or a dict of tensors, with the numbers of an array or a dict of arrays."""
    if isinstance(data, Mapping):
        return {key: as_tensor(part, f"{name}[{key!r}]") for key, part in data.items()}
    if not isinstance(data, Tensor | np.ndarray) and not is_labelled(data):
        raise TypeError(
            f"{name} must be a tensor or a dict of tensors, or an array of NumPy, pandas or "
            f"xarray, got {type(data).__name__}"
        )
    return as_tensor(data, name)


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
