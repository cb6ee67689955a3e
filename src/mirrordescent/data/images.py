"""Pictures as tensors (3, height, width) with values in [0, 1], from folders and archives; pieces of them."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import torch
from torch import Generator, Tensor

from mirrordescent.data.directory import DataDamaged, DataMissing
from mirrordescent.images import colours_of

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".pnm", ".tif", ".tiff", ".webp"))


def read_image(path: str | Path) -> Tensor:
    """Read one picture: (3, height, width)."""
    path = Path(path)
    if not path.is_file():
        raise DataMissing(f"there is no image {path}")
    return decode(path.read_bytes(), str(path))


def decode(content: bytes, name: str) -> Tensor:
    """Turn the content of an image file into (3, height, width); ``name`` is for the error message.

    Grey becomes three equal channels, transparent pixels lie on white, 16 bits keep their precision, and a camera's
    note on which side is up is followed. Of an animation the first frame is taken.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(content)) as picture:
            colours = colours_of(ImageOps.exif_transpose(picture))
    except (OSError, ValueError, SyntaxError, EOFError, zlib.error, Image.DecompressionBombError) as error:
        raise DataDamaged(f"{name} is not an image that can be read: {error}") from error
    return torch.from_numpy(colours).permute(2, 0, 1).contiguous()


def read_images(source: str | Path, within: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield names and pictures of a folder, a zip or a tar archive, in the order of their names.

    Only files below the folder ``within`` of the source count, and of those the ones with the suffix of an image.
    """
    source, found = Path(source).expanduser(), False
    for name, content in _sorted_contents(source, within):
        found = True
        yield name, decode(content, f"{source}/{name}")
    if not found:
        raise DataMissing(f"there is no image in {source / within if within else source}")


def unpack_tar(source: Path, wanted: Callable[[str], bool], size: int = -1) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents (their first ``size`` bytes) of the wanted files of a tar archive.

    They come in the order of the archive, since going back in a compressed one means starting it all over again.
    """
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                stream = archive.extractfile(member) if member.isfile() and wanted(name) else None
                if stream is not None:
                    yield name, stream.read(size)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataDamaged(f"{source} cannot be unpacked: {error}") from error


def tiles(image: Tensor, size: int) -> Tensor:
    """Cut (channels, height, width) into squares side by side: (n, channels, size, size), row by row.

    What is left over on the right and at the bottom is dropped.

    >>> tiles(torch.arange(6.0).reshape(1, 2, 3), 1).flatten()
    tensor([0., 1., 2., 3., 4., 5.])
    """
    require_size(size)
    if min(image.shape[-2:]) < size:
        return image.new_zeros(0, image.shape[0], size, size)
    squares = image.unfold(1, size, size).unfold(2, size, size)
    return squares.permute(1, 2, 0, 3, 4).reshape(-1, image.shape[0], size, size)


def random_crops(images: Tensor | Sequence[Tensor], size: int, count: int, generator: Generator) -> Tensor:
    """Draw squares from pictures of any sizes: (count, channels, size, size).

    Every picture is equally likely, and so is every position in it.
    """
    require_size(size)
    if len(images) == 0:
        raise ValueError("there is no image to take crops from")
    for index, image in enumerate(images):
        if min(image.shape[-2:]) < size:
            shape = "×".join(map(str, image.shape[-2:]))
            raise ValueError(f"image {index} is {shape}, too small for crops of {size}×{size}")

    def below(bound: int) -> int:
        return int(torch.randint(bound, (), generator=generator, device=generator.device))

    crops = []
    for _ in range(count):
        image = images[below(len(images))]
        top, left = (below(length - size + 1) for length in image.shape[-2:])
        crops.append(image[..., top : top + size, left : left + size])
    return torch.stack(crops) if crops else images[0].new_zeros(0, images[0].shape[0], size, size)


def require_size(size: int) -> None:
    """Raise unless an image can have this side."""
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")


def _sorted_contents(source: Path, within: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the image files of a folder or archive."""

    def wanted(name: str) -> bool:
        """Tell by the suffix, and leave out what systems hide beside the pictures (``._x.png``)."""
        path = PurePosixPath(name)
        is_image = path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
        return is_image and (not within or PurePosixPath(within) in path.parents)

    if source.is_dir():
        for path in sorted((source / within).rglob("*")):
            name = path.relative_to(source).as_posix()
            if path.is_file() and wanted(name):
                yield name, path.read_bytes()
    elif not source.is_file():
        raise DataMissing(f"there is no folder or archive {source}")
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            for name in sorted(filter(wanted, archive.namelist())):
                yield name, _unzip(archive, name)
    elif tarfile.is_tarfile(source):
        yield from sorted(dict(unpack_tar(source, wanted)).items())
    else:
        raise DataDamaged(f"{source} is neither a folder nor a zip or tar archive that can be read")


def _unzip(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataDamaged(f"{archive.filename}/{name} cannot be unpacked: {error}") from error
