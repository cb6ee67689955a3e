"""Which files are restored, and which others go with them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mirrordescent.data.errors import DataMissing
from mirrordescent.data.image_files import IMAGE


class Source(NamedTuple):
    """An image file, and its name relative to the folder to write to."""

    path: Path
    name: Path


def sources(images: Sequence[Path]) -> Iterator[Source]:
    """Yield the files named, and those in the folders named, in the order of their names."""
    for path in images:
        if not path.is_dir():
            yield Source(path, Path(path.name))
            continue
        found = sorted(p for p in path.rglob("*") if IMAGE.fullmatch(p.name) and p.is_file())
        if not found:
            raise DataMissing(f"there is no image in {path}")
        yield from (Source(p, p.relative_to(path)) for p in found)


def beside(place: Path, source: Source) -> Path:
    """Return the file itself, or the image in the folder that has the photograph's name: with its
    suffix, or another.

    The name is all but the last suffix: ``img.png`` goes with ``img.tif``, and not with
    ``img.1.png``.
    """
    if not place.is_dir():
        return place
    if (same := place / source.name).is_file():
        return same
    folder = same.parent
    found = sorted(p for p in folder.iterdir() if _goes_with(p, source)) if folder.is_dir() else []
    if not found:
        raise DataMissing(f"there is no image {source.name.with_suffix('')} in {place}")
    if len(found) > 1:
        names = " and ".join(p.name for p in found)
        raise ValueError(
            f"{names} in {folder} could both belong to {source.path}: keep one of them"
        )
    return found[0]


def _goes_with(path: Path, source: Source) -> bool:
    return (
        path.stem == source.name.stem and IMAGE.fullmatch(path.name) is not None and path.is_file()
    )
