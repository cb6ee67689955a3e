"""Where data live, and what can be wrong with them there."""

from __future__ import annotations

import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrordescent.cache import directory as cache_directory

VARIABLE = "MIRRORDESCENT_DATA"
UNREADABLE = (
    OSError, EOFError, ValueError, LookupError, SyntaxError, RuntimeError, zlib.error, tarfile.TarError,
    zipfile.BadZipFile,
)  # fmt: skip


class DataMissing(FileNotFoundError):
    """A file is not there and could not be fetched."""


class DataDamaged(ValueError):
    """A file is there but is not what it should be."""


@contextmanager
def reading(fault: str, *others: type[Exception]) -> Iterator[None]:
    """Raise ``DataDamaged`` with these words if a file cannot be read in this block, for whatever reason."""
    unreadable: tuple[type[Exception], ...] = (*UNREADABLE, *others)
    try:
        yield
    except DataDamaged:
        raise
    except unreadable as error:
        raise DataDamaged(f"{fault}: {error}") from error


def data_directory(chosen: str | Path | None = None) -> Path:
    """Return the folder that was chosen, else the one named by ``MIRRORDESCENT_DATA``, else a cache folder.

    It has one subfolder per dataset: ``mnist/``, ``fashion-mnist/``, ``omniglot/``, ``stl10/`` and ``bsds500/``.
    Nothing is created.

    >>> data_directory("somewhere").name
    'somewhere'
    """
    if chosen is None:
        chosen = os.environ.get(VARIABLE) or cache_directory() / "data"
    return Path(chosen).expanduser()
