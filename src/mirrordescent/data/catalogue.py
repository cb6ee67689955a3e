"""The known data sets with their files, checksums, terms and origins, from ``catalogue.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class DataFile:
    """A file of a data set.

    Args:
        path: Path inside the folder of the data set.
        size: Number of bytes; None if it was not published.
        checksum: "algorithm:hex digits"; SHA-256, or MD5 if only that was published.
        url: Public address for downloads; None if there is none.
    """

    path: str
    size: int | None
    checksum: str
    url: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A data set.

    Args:
        name: Name of the data set and of its folder.
        title: Description in a line.
        files: Files of the data set. Some are alternatives to each other.
        terms: Terms of use.
        citation: Paper to cite.
        source: Address from which people can get it.
    """

    name: str
    title: str
    files: tuple[DataFile, ...]
    terms: str
    citation: str
    source: str


def _read_catalogue() -> dict[str, Dataset]:
    text = files("mirrordescent.data").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {name: _dataset(name, table) for name, table in tomllib.loads(text).items()}


def _dataset(name: str, table: dict[str, Any]) -> Dataset:
    data_files = tuple(DataFile(**{"size": None, **file}) for file in table.pop("files"))
    return Dataset(name=name, files=data_files, **table)


DATASETS = _read_catalogue()
