"""The datasets this project can read, as ``catalogue.toml`` lists them: their files, checksums,
terms and origin.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset.

    ``checksum`` is "algorithm:hex digits": SHA-256, except where only an MD5 sum was published.
    ``size`` counts bytes and is None where that was not published.
    """

    path: str
    size: int | None
    checksum: str
    url: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A dataset: ``name`` is also its folder, ``source`` says where to get it."""

    name: str
    title: str
    files: tuple[DataFile, ...]
    terms: str
    citation: str
    source: str


def _read() -> dict[str, Dataset]:
    tables = tomllib.loads(
        files("mirrordescent_lab.data").joinpath("catalogue.toml").read_text(encoding="utf-8")
    )
    listed = {
        name: tuple(DataFile(**{"size": None, **file}) for file in t.pop("files"))
        for name, t in tables.items()
    }
    return {name: Dataset(name=name, files=listed[name], **table) for name, table in tables.items()}


DATASETS = _read()
