"""Image files to restore, and files that belong to them."""

from collections.abc import Iterator, Sequence
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


def sources(images: Sequence[Path]) -> Iterator[Source]:
    """Yield the given files, and the images in the given folders, sorted by name."""
    for path in images:
        if not path.is_dir():
            yield Source(path, Path(path.name))
            continue
        files = sorted(file for file in path.rglob("*") if _is_image(file))
        if not files:
            raise DataMissing(f"there is no image in {path}")
        for file in files:
            yield Source(file, file.relative_to(path))


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
