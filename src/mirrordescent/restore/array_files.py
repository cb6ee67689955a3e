"""Files of arrays that are read and written by boxes: .npy, zarr, and TIFF files with pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from mirrordescent._internal.extras import requires_extra
from mirrordescent.restore.large_arrays import TiffPages

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def open_array(path: Path) -> Any:
    """Open a file of an array without reading it.

    Args:
        path: A file .npy, .tif or .tiff, or a folder .zarr with an array.
    """
    suffix = path.suffix.lower()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if suffix == ".npy":
        return np.load(path, mmap_mode="r", allow_pickle=False)
    if suffix in (".tif", ".tiff"):
        return TiffPages(path)
    if suffix == ".zarr":
        return _zarr().open_array(str(path), mode="r")
    raise ValueError(f"arrays are files .npy, .zarr, .tif or .tiff, got {path.name}")


def create_array(path: Path, shape: tuple[int, ...], like: Any) -> Any:
    """Create an array of 32-bit numbers to be written by boxes, or open the one that is there.

    Args:
        path: A file .npy or a folder .zarr.
        shape: Shape of the array.
        like: Array whose chunks are used for zarr.
    """
    if path.suffix == ".zarr":
        zarr = _zarr()
        if path.exists():
            found = zarr.open_array(str(path), mode="r+")
            if tuple(found.shape) == shape and found.dtype == np.float32:
                return found
        chunks = tuple(like.chunks)
        return zarr.create_array(
            str(path), shape=shape, dtype="float32", chunks=chunks, overwrite=True
        )
    if path.exists():
        stored = np.load(path, mmap_mode="r+", allow_pickle=False)
        if stored.shape == shape and stored.dtype == np.float32:
            return stored
    return np.lib.format.open_memmap(path, "w+", dtype=np.float32, shape=shape)


def bytes_of(text: str) -> int:
    """Return a number of bytes.

    >>> bytes_of("512MB"), bytes_of("2 GB"), bytes_of("1000")
    (512000000, 2000000000, 1000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", text.lower())
    if found is None:
        raise ValueError(f"memory must be a number of bytes such as 512MB or 2GB, got {text!r}")
    return int(float(found[1]) * UNITS[found[2]])


def _zarr() -> Any:
    with requires_extra("scale", "Reading zarr arrays", "zarr"):
        import zarr
    return zarr
