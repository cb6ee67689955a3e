"""Image files to restore, and files that belong to them."""

import os
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mirrordescent.data.errors import DataMissing
from mirrordescent.data.image_files import IMAGE


class Source(NamedTuple):
    """An image file.

    Args:
        path: Path of the file.
        name: Path of the restored image, relative to the output folder.
    """

    path: Path
    name: Path


class Found(NamedTuple):
    """The photographs among the given files and folders.

    Args:
        sources: The given files, and the images in the given folders, sorted by name. A file that
            is given twice is listed once.
        unreadable: Folders that cannot be listed, with the reason.
        skipped: Files in the folders that do not have the suffix of an image that can be read.
    """

    sources: list[Source]
    unreadable: dict[Path, str]
    skipped: list[Path]


def find_sources(images: Sequence[Path], out: Path) -> Found:
    """Find photographs.

    Links to folders are not followed. Links to missing files count as photographs, so that they are
    reported.

    Args:
        images: Files and folders.
        out: Output folder. If it lies inside a given folder, its images are left out.
    """
    found: list[Source] = []
    unreadable: dict[Path, str] = {}
    skipped: list[Path] = []
    for path in images:
        if not path.is_dir():
            found.append(Source(path, Path(path.name)))
            continue
        listed = _files_below(path, out, unreadable)
        files = sorted(file for file in listed if IMAGE.fullmatch(file.name))
        wanted = set(files)
        skipped += sorted(
            file for file in listed if file not in wanted and not file.name.startswith(".")
        )
        if not files and path in unreadable:
            raise DataMissing(f"the folder {path} cannot be read: {unreadable[path]}")
        if not files and not unreadable:
            raise DataMissing(f"there is no image in {path}")
        found += [Source(file, file.relative_to(path)) for file in files]
    return Found(list(dict.fromkeys(found)), unreadable, skipped)


def _files_below(folder: Path, out: Path, unreadable: dict[Path, str]) -> list[Path]:
    """Return all files in a folder and its subfolders, without those in the output folder."""

    def note(error: OSError) -> None:
        unreadable[Path(error.filename)] = error.strerror or str(error)

    files = []
    result = real_path(out)
    for place, folders, names in os.walk(folder, onerror=note):
        here = Path(place)
        folders[:] = [name for name in folders if real_path(here / name) != result]
        files += [here / name for name in names]
    return files


def real_path(path: Path) -> Path:
    """Return the absolute path without symbolic links. A link to itself stays as it is."""
    return Path(os.path.realpath(path))


def place_of(path: Path) -> Path:
    """Return the absolute path in a folder without symbolic links.

    The file itself may be a link. A file that is renamed to this path replaces the link.
    """
    return real_path(path.parent) / path.name


def comparable(path: Path) -> str:
    """Return a text that is the same for paths of the same file.

    Windows and macOS do not distinguish upper and lower case, nor forms of the same Unicode text.
    """
    if sys.platform in ("darwin", "win32"):
        return unicodedata.normalize("NFC", str(path)).casefold()
    return str(path)


def companion_file(place: Path, source: Source) -> Path:
    """Return the file that belongs to a photograph, such as its mask.

    In a folder, it is the image with the photograph's name, with the same suffix or another one.
    Only the last suffix may differ: ``img.png`` belongs to ``img.tif``, and not to ``img.1.png``.

    Args:
        place: A file, which is returned as it is, or a folder.
        source: The photograph.
    """
    if not place.is_dir():
        return place
    same_name = place / source.name
    if same_name.is_file():
        return same_name
    folder = same_name.parent
    files = []
    if folder.is_dir():
        files = sorted(
            file for file in folder.iterdir() if file.stem == source.name.stem and _is_image(file)
        )
    if not files:
        raise DataMissing(f"there is no image {source.name.with_suffix('')} in {place}")
    if len(files) > 1:
        listed = " and ".join(file.name for file in files)
        raise ValueError(
            f"{listed} in {folder} could both belong to {source.path}: keep one of them"
        )
    return files[0]


def _is_image(path: Path) -> bool:
    return IMAGE.fullmatch(path.name) is not None and path.is_file()
