"""Versions of entries: ``NAME@2`` is version 2 of the entry NAME.

In a folder, ``NAME@2.safetensors`` is version 2 of NAME. ``NAME.safetensors`` has the version that
its card states, or 1.
"""

import os
import re
from pathlib import Path

from mirrordescent.zoo.storage import read_card

SUFFIX = ".safetensors"
_VERSIONED = re.compile(r"(.+)@([1-9]\d{0,8})", re.DOTALL)


def split_version(name: str) -> tuple[str, int | None]:
    """Return the name of an entry without its version, and the version if the name has one.

    >>> split_version("network-spectral@2"), split_version("image-tv")
    (('network-spectral', 2), ('image-tv', None))
    """
    match = _VERSIONED.fullmatch(name) if "@" in name else None
    return (name, None) if match is None else (match[1], int(match[2]))


def names_in(folder: Path) -> list[str]:
    """Return the names of the entries of a folder, without versions."""
    return sorted({split_version(stem)[0] for stem in _stems(folder)})


def _stems(folder: Path) -> list[str]:
    """Return the names of the files of a folder that have the suffix, without it.

    ``Path.glob`` takes twenty times as long, which is noticed where every photograph asks.
    """
    try:
        files = os.listdir(folder)
    except OSError:
        return []
    return [file.removesuffix(SUFFIX) for file in files if file.endswith(SUFFIX)]


def version_of(path: Path) -> int:
    """Return the version of the entry in a file: that of the file's name, else that of the card."""
    version = split_version(path.stem)[1]
    return read_card(path).version if version is None else version


def versions_in(folder: Path, name: str) -> dict[int, Path]:
    """Return the files of an entry by version, the oldest first."""
    found: dict[int, Path] = {}
    unversioned = folder / f"{name}{SUFFIX}"
    if unversioned.is_file():
        found[version_of(unversioned)] = unversioned
    for stem in _stems(folder):
        base, version = split_version(stem)
        if base == name and version is not None:
            found[version] = folder / f"{stem}{SUFFIX}"
    return dict(sorted(found.items()))


def find_version(folder: Path, name: str, version: int | None) -> Path:
    """Return the file of an entry.

    Args:
        folder: Folder of the entry.
        name: Name of the entry, without a version.
        version: Version; None for the newest.

    Raises:
        KeyError: The folder has no such version.
    """
    files = versions_in(folder, name)
    if version is None and files:
        return files[max(files)]
    if version in files:
        return files[version]
    if not files:
        raise KeyError(f"the folder {folder} has no entry {name}: it has no {name}{SUFFIX}")
    present = ", ".join(f"{name}@{each}" for each in files)
    raise KeyError(
        f"there is no {name}@{version}, only {present}: use one of these, or copy "
        f"{name}@{version}{SUFFIX} from the installation that has it to {folder}"
    )
