"""The files of every dataset: which are there, whether they are intact, and how to get them."""

from __future__ import annotations

import functools
from enum import Enum
from pathlib import Path

from mirrordescent._internal.suggestions import require_known
from mirrordescent.data.errors import DataDamaged, DataMissing
from mirrordescent_lab.data.catalogue import DATASETS, DataFile, Dataset
from mirrordescent_lab.data.directory import VARIABLE, data_directory

HASHED_ON_USE = (
    1 << 28
)  # bytes; beyond, hashing takes seconds, and a cut file shows in its size alone


class FileStatus(Enum):
    """What is known of a file on disk."""

    OK = "ok"
    MISSING = "missing"
    DAMAGED = "damaged"


def names() -> list[str]:
    """Return the names of the known datasets.

    >>> names()
    ['mnist', 'fashion-mnist', 'omniglot', 'stl10', 'bsds500']
    """
    return list(DATASETS)


def dataset(name: str) -> Dataset:
    """Return the record of one dataset."""
    require_known(name, DATASETS, "dataset")
    return DATASETS[name]


def describe(name: str) -> str:
    """Return what a dataset is, its terms and its files as text."""
    entry = dataset(name)
    head = f"{entry.name}: {entry.title}\nterms: {entry.terms}\ncite: {entry.citation}\nfrom: {entry.source}"
    files = (f"  {file.path}  {_bytes(file.size)}  {file.checksum}" for file in entry.files)
    return "\n".join([head, f"files in {entry.name}/:", *files])


def verify(name: str, directory: str | Path | None = None) -> dict[str, FileStatus]:
    """Check size and checksum of every file of a dataset. Some are alternatives: not all need be
    there.
    """
    folder = data_directory(directory) / name
    found = {}
    for file in dataset(name).files:
        fault = _fault(folder / file.path, file, thorough=True)
        there = FileStatus.DAMAGED if fault else FileStatus.OK
        found[file.path] = there if (folder / file.path).is_file() else FileStatus.MISSING
    return found


def require(name: str, file: str, directory: str | Path | None = None) -> Path:
    """Return the path of an intact file, downloaded first if it is absent and has a public address.

    Raises:
        DataMissing: with what to put where, and where to get it.
        DataDamaged: if the file is there but is not the published one.
    """
    entry = dataset(name)
    files = {each.path: each for each in entry.files}
    require_known(file, files, f"file of {name}")
    record = files[file]
    path = data_directory(directory) / name / file
    if not path.is_file():
        _fetch(entry, record, path)
    if fault := _fault(path, record, thorough=(record.size or 0) <= HASHED_ON_USE):
        raise DataDamaged(
            f"{path} is damaged: {fault}. Remove it and get it again from {entry.source}"
        )
    return path


def require_any(name: str, files: tuple[str, ...], directory: str | Path | None = None) -> Path:
    """Return the first of several equivalent files that is there, or else ``require`` the last."""
    folder = data_directory(directory) / name
    return require(
        name, next((file for file in files if (folder / file).is_file()), files[-1]), directory
    )


def _fault(path: Path, file: DataFile, thorough: bool) -> str | None:
    """Say what is wrong with a file, or return None."""
    try:
        found = path.stat()
        if file.size is not None and found.st_size != file.size:
            return f"it has {found.st_size} bytes instead of {file.size}"
        algorithm, expected = file.checksum.split(":")
        if thorough and _digest(path, algorithm, found.st_size, found.st_mtime_ns) != expected:
            return f"its {algorithm} checksum is not {expected}"
    except OSError as error:
        return f"it cannot be read ({error})"
    return None


@functools.lru_cache(maxsize=64)
def _digest(path: Path, algorithm: str, size: int, modified: int) -> str:
    """Hash a file once per process; one whose size or time of change differs is hashed again."""
    import pooch

    return str(pooch.file_hash(str(path), alg=algorithm))


def _fetch(entry: Dataset, file: DataFile, path: Path) -> None:
    """Fetch a file, or say what to put where."""
    import pooch

    reason = ""
    if file.url is not None:
        try:
            pooch.retrieve(file.url, known_hash=file.checksum, fname=path.name, path=path.parent)
        except OSError as error:
            reason = f"; fetching it from {file.url} failed ({type(error).__name__}: {error})"
        except ValueError as error:  # how pooch reports a checksum that differs
            raise DataDamaged(
                f"{file.url} does not serve the published {file.path}: {error}"
            ) from error
        else:
            return
    raise DataMissing(
        f"{entry.name} needs {path}, which is missing{reason}. Put {file.path} ({_bytes(file.size)}) into the folder "
        f"{entry.name}/ of the data directory, and name that directory by the argument `directory` or the variable "
        f"{VARIABLE}. It is available from {entry.source}. Terms: {entry.terms}."
    )


def _bytes(size: int | None) -> str:
    return "size not recorded" if size is None else f"{size} bytes"
