"""What can be wrong with a file."""

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
    """A file is not there and could not be fetched."""


class DataDamaged(ValueError):
    """A file is there but is not what it should be."""


@contextmanager
def reading(fault: str, *others: type[Exception]) -> Iterator[None]:
    """Raise ``DataDamaged`` with these words if a file cannot be read in this block, for whatever
    reason.
    """
    unreadable: tuple[type[Exception], ...] = (*UNREADABLE, *others)
    try:
        yield
    except DataDamaged:
        raise
    except unreadable as error:
        raise DataDamaged(f"{fault}: {error}") from error
