"""Errors of data files: missing and damaged files."""

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    SyntaxError,
    RuntimeError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
)


class DataMissing(FileNotFoundError):
    """A file is missing and could not be fetched."""


class DataDamaged(ValueError):
    """A file exists, but its content is not valid."""


@contextmanager
def reading(fault: str, *others: type[Exception]) -> Iterator[None]:
    """Turn every error of reading a file in this context into ``DataDamaged``.

    Args:
        fault: Beginning of the error message.
        others: Further classes of errors.
    """
    unreadable: tuple[type[Exception], ...] = (*UNREADABLE, *others)
    try:
        yield
    except DataDamaged:
        raise
    except unreadable as error:
        raise DataDamaged(f"{fault}: {error}") from error
