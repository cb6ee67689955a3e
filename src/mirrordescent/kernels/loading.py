"""The compiled library: loading, and the choice of its level for the processor of this machine.

The library is compiled when the package is built or installed. Nothing is compiled here.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from mirrordescent.kernels.sources import failure_path, library_path, source_hash

LEVELS = ("avx512", "avx2", "baseline")
"""Levels that may be compiled, the fastest first. The baseline of 64-bit ARM includes NEON."""

LEVEL_VARIABLE = "MIRRORDESCENT_KERNEL_LEVEL"
"""Environment variable with the level to use instead of the fastest."""

_DISABLED = ContextVar("disabled", default=False)


class KernelsUnavailable(OSError):
    """The compiled kernels are missing, cannot be loaded, or do not match their sources."""


@cache
def library() -> ctypes.CDLL:
    """Return the compiled kernels.

    Raises:
        KernelsUnavailable: If the library is missing, cannot be loaded, or was compiled from other
            C sources than those of this package.
    """
    return _load(library_path())


def _load(path: Path) -> ctypes.CDLL:
    """Load a library and check that it was compiled from the C sources of this package."""
    if not path.exists():
        raise KernelsUnavailable(_explain_missing(path))
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.kernel_sources.restype = ctypes.c_char_p
        compiled_from = loaded.kernel_sources().decode()
    except (OSError, AttributeError) as error:
        raise KernelsUnavailable(
            f"{path} cannot be loaded ({error}): reinstall mirrordescent, run `make kernels` in a "
            f"clone, or use fused=False"
        ) from error
    if compiled_from != source_hash():
        raise KernelsUnavailable(
            f"{path} was compiled from other C sources than those next to it: run `make kernels` "
            f"in a clone, or reinstall mirrordescent"
        )
    return loaded


def _explain_missing(path: Path) -> str:
    """Return why there is no library, and how to get one."""
    reason = ""
    if failure_path().exists():
        reason = f" When it was installed, {failure_path().read_text(encoding='utf-8').strip()}"
    return (
        f"this installation of mirrordescent has no compiled kernels ({path} is missing). Install "
        f"a wheel for this platform, or install gcc or clang and reinstall mirrordescent. In a "
        f"clone, run `make kernels`. To run without kernels, use fused=False.{reason}"
    )


@cache
def level() -> str:
    """Return the level of the kernels that are used, the fastest that the processor supports.

    The environment variable ``MIRRORDESCENT_KERNEL_LEVEL`` overrides the choice. It is read once.
    """
    supported = supported_levels()
    chosen = os.environ.get(LEVEL_VARIABLE)
    if not chosen:
        return supported[0]
    if chosen not in supported:
        raise KernelsUnavailable(
            f"{LEVEL_VARIABLE} must be one of {', '.join(supported)} on this machine, got {chosen}"
        )
    return chosen


@cache
def supported_levels() -> tuple[str, ...]:
    """Return the compiled levels that the processor supports, the fastest first."""
    compiled = library()
    return tuple(
        name
        for name in LEVELS
        if hasattr(compiled, f"image_sums_float_{name}")
        and compiled.kernel_level_supported(name.encode())
    )


@contextmanager
def disabled() -> Iterator[None]:
    """Disable the C kernels inside this context."""
    token = _DISABLED.set(True)
    try:
        yield
    finally:
        _DISABLED.reset(token)


def available() -> bool:
    """Return whether the kernels are enabled and compiled, and load them if they are.

    If there is a library that cannot be used, such as one that was compiled from older sources, a
    warning says so once.
    """
    return not _DISABLED.get() and _loads()


@cache
def _loads() -> bool:
    """Return whether the library can be loaded. The result is cached."""
    try:
        library()
        level()
    except KernelsUnavailable as error:
        if library_path().exists():
            warnings.warn(f"C kernels are not used: {error}", RuntimeWarning, stacklevel=3)
        return False
    return True
