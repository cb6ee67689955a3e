"""The files of the data sets: check them, fetch them, or say where to get them."""

from __future__ import annotations

import functools
from enum import Enum
from pathlib import Path

from mirrordescent._internal.suggestions import require_known
from mirrordescent.data import download
from mirrordescent.data.catalogue import DATASETS, DataFile, Dataset
from mirrordescent.data.directory import VARIABLE, data_directory
from mirrordescent.data.errors import DataDamaged, DataMissing

# Larger files, in bytes, are not hashed when they are used: it takes seconds, and the size alone
# reveals an incomplete file.
HASHED_ON_USE = 1 << 28


class FileStatus(Enum):
    """State of a file on disk."""

    OK = "ok"
    MISSING = "missing"
    DAMAGED = "damaged"


def names() -> list[str]:
    """Return the names of the known data sets.

    >>> names()
    ['mnist', 'fashion-mnist', 'omniglot', 'stl10', 'bsds500']
    """
    return list(DATASETS)


def dataset(name: str) -> Dataset:
    """Return the record of a data set."""
    require_known(name, DATASETS, "dataset")
    return DATASETS[name]


def describe(name: str) -> str:
    """Return the title, terms, citation and files of a data set as text."""
    record = dataset(name)
    lines = [
        f"{record.name}: {record.title}",
        f"terms: {record.terms}",
        f"cite: {record.citation}",
        f"from: {record.source}",
        f"files in {record.name}/:",
    ]
    lines += [f"  {file.path}  {_bytes(file.size)}  {file.checksum}" for file in record.files]
    return "\n".join(lines)


def verify(name: str, directory: str | Path | None = None) -> dict[str, FileStatus]:
    """Check the size and the checksum of every file of a data set.

    Some files are alternatives to each other, so that not all of them need to exist.
    """
    folder = data_directory(directory) / name
    statuses = {}
    for file in dataset(name).files:
        path = folder / file.path
        if not path.is_file():
            statuses[file.path] = FileStatus.MISSING
        elif _fault(path, file, hashed=True):
            statuses[file.path] = FileStatus.DAMAGED
        else:
            statuses[file.path] = FileStatus.OK
    return statuses


def require(name: str, file: str, directory: str | Path | None = None) -> Path:
    """Return the path of an intact file of a data set.

    If the file is absent and has a public address, it is downloaded first.

    Args:
        name: Name of the data set.
        file: Path of the file inside the folder of the data set.
        directory: Folder of all data sets; see :func:`data_directory`.

    Raises:
        DataMissing: The file is absent. The message says where to get it and where to put it.
        DataDamaged: The file exists, but is not the published one.
    """
    record = dataset(name)
    files = {each.path: each for each in record.files}
    require_known(file, files, f"file of {name}")
    path = data_directory(directory) / name / file
    if not path.is_file():
        _fetch(record, files[file], path)
    hashed = (files[file].size or 0) <= HASHED_ON_USE
    if fault := _fault(path, files[file], hashed):
        raise DataDamaged(
            f"{path} is damaged: {fault}. Remove it and get it again from {record.source}"
        )
    return path


def require_any(name: str, files: tuple[str, ...], directory: str | Path | None = None) -> Path:
    """Return the first of several equivalent files that exists, or else ``require`` the last."""
    folder = data_directory(directory) / name
    for file in files:
        if (folder / file).is_file():
            return require(name, file, directory)
    return require(name, files[-1], directory)


def _fault(path: Path, file: DataFile, hashed: bool) -> str | None:
    """Return a description of the fault of a file, or None if it is intact."""
    try:
        status = path.stat()
        if file.size is not None and status.st_size != file.size:
            return f"it has {status.st_size} bytes instead of {file.size}"
        algorithm, expected = file.checksum.split(":")
        if hashed and _digest(path, algorithm, status.st_size, status.st_mtime_ns) != expected:
            return f"its {algorithm} checksum is not {expected}"
    except OSError as error:
        return f"it cannot be read ({error})"
    return None


@functools.lru_cache(maxsize=64)
def _digest(path: Path, algorithm: str, size: int, modified: int) -> str:
    """Hash a file once per process, and again if its size or modification time has changed."""
    return download.file_hash(path, algorithm)


def _fetch(record: Dataset, file: DataFile, path: Path) -> None:
    """Download a file, or raise an error that says where to get it and where to put it."""
    reason = ""
    if file.url is not None:
        try:
            download.download(file.url, path, file.checksum)
        except OSError as error:
            reason = f"; fetching it from {file.url} failed ({type(error).__name__}: {error})"
        else:
            return
    raise DataMissing(
        f"{record.name} needs {path}, which is missing{reason}. Put {file.path} "
        f"({_bytes(file.size)}) into the folder {record.name}/ of the data directory, and name "
        f"that directory by the argument `directory` or the variable {VARIABLE}. It is available "
        f"from {record.source}. Terms: {record.terms}."
    )


def _bytes(size: int | None) -> str:
    if size is None:
        return "size not recorded"
    return f"{size} bytes"
