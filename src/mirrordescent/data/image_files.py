"""Pictures of folders and archives as tensors (3, height, width) in [0, 1], tiles and crops."""

from __future__ import annotations

import io
import math
import re
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from mirrordescent._internal.extras import requires_extra
from mirrordescent._internal.image_arrays import pixels_of
from mirrordescent.data.errors import DataDamaged, DataMissing, reading

if TYPE_CHECKING:
    from PIL import Image

LARGEST_FILE = 1 << 29  # bytes of a picture in an archive
MANY_PIXELS = 1 << 24  # a file with more pixels must be long enough for them
DENSEST = 1 << 14  # largest credible number of pixels per byte, twice that of the best compression
# Suffixes of images. Hidden files beside pictures (._x.png) are left out.
IMAGE = re.compile(
    r"[^.].*\.(png|jpe?g|jfif|jp2|j2k|bmp|gif|p[pgn]m|tiff?|webp|avif|qoi|tga)",
    re.IGNORECASE | re.DOTALL,  # a name may have line breaks
)


@contextmanager
def opened(file: Path | io.BytesIO, name: object) -> Iterator[Image.Image]:
    """Open an image file.

    Args:
        file: Path or content of the file.
        name: Name of the file in error messages.
    """
    with requires_extra("pictures", "Reading photographs", "Pillow"):
        from PIL import Image, UnidentifiedImageError

    if isinstance(file, Path) and file.is_dir():
        raise DataMissing(f"{file} is a folder, not an image")
    if isinstance(file, Path) and not file.is_file():
        raise DataMissing(_missing_words(file))
    with reading(f"{name} is not an image that can be read"):
        length = file.stat().st_size if isinstance(file, Path) else file.getbuffer().nbytes
        try:
            with warnings.catch_warnings():  # of images with more than half as many pixels
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                picture = Image.open(file)
        except UnidentifiedImageError:
            fault = "is not an image of a known format" if length else "is empty"
            raise DataDamaged(f"{name} {fault}") from None
        except Image.DecompressionBombError:
            limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6
            raise DataDamaged(
                f"{name} claims to have more than {limit:.0f} million pixels, which is not "
                "supported: make it smaller, or cut it into parts"
            ) from None
        with picture:
            require_plausible(picture.size[0] * picture.size[1], length, name)
            yield picture


def _missing_words(path: Path) -> str:
    """Return why a path is not a file."""
    if path.exists():
        return f"{path} is not a regular file"
    if path.is_symlink():
        return f"{path} is a link to a file that does not exist"
    return f"there is no image {path}"


def require_plausible(pixels: int, length: int, name: object) -> None:
    """Raise if a short file claims to have many pixels, before memory is allocated for them."""
    if pixels > max(MANY_PIXELS, DENSEST * length):
        raise DataDamaged(
            f"{name} would have {pixels / 1e6:.0f} million pixels in a file of {length} bytes"
        )


def read_image(file: str | Path | io.BytesIO, name: object = None) -> Tensor:
    """Read one picture: (3, height, width).

    Grey pictures get three equal channels. Transparent pixels are blended with white. Images with
    16 bits keep their precision. The orientation noted by the camera is applied. Of an animation,
    the first frame is read.

    Args:
        file: Path or content of the file.
        name: Name of the file in error messages; its path by default.
    """
    with requires_extra("pictures", "Reading photographs", "Pillow"):
        from PIL import ImageOps

    with opened(Path(file) if isinstance(file, str) else file, name or file) as picture:
        pixels = pixels_of(ImageOps.exif_transpose(picture))
    return torch.from_numpy(pixels).permute(2, 0, 1).expand(3, -1, -1).contiguous()


def read_images(source: str | Path, within: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield names and pictures of a folder, a zip or a tar archive, in the order of their names.

    Args:
        source: Folder or archive. Files without the suffix of an image are left out.
        within: Folder inside the source; all folders by default.
    """
    source = Path(source).expanduser()
    empty = True
    for name, content in _sorted_contents(source, within):
        empty = False
        yield name, read_image(io.BytesIO(content), f"{source}/{name}")
    if empty:
        raise DataMissing(f"there is no image in {source / within if within else source}")


def unpack_tar(
    source: Path, wanted: Callable[[str], bool], size: int = -1, largest: float = math.inf
) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of files of a tar archive, in the order of the archive.

    Nothing is written to the disk.

    Args:
        source: Archive.
        wanted: Function of a name that tells whether to read a file.
        size: Number of bytes to read from the beginning of a file; all by default.
        largest: Largest number of bytes of a file.

    Raises:
        DataDamaged: The archive cannot be read, or a file is too large.
    """
    with reading(f"{source} cannot be unpacked"), tarfile.open(source) as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            stream = archive.extractfile(member) if member.isfile() and wanted(name) else None
            if stream is not None:
                _require_small(member.size, f"{source}/{name}", largest)
                yield name, stream.read(size)


def _require_small(size: int, name: str, largest: float) -> None:
    """Raise if a file in an archive is too large for a picture."""
    if size > largest:
        raise DataDamaged(
            f"{name} would be {size} bytes when unpacked, which is too much for a picture"
        )


def tiles(image: Tensor, size: int) -> Tensor:
    """Cut an image (channels, height, width) into squares: (n, channels, size, size), row by row.

    The rest on the right and at the bottom is dropped.

    >>> tiles(torch.arange(6.0).reshape(1, 2, 3), 1).flatten()
    tensor([0., 1., 2., 3., 4., 5.])
    """
    require_size(size)
    if min(image.shape[-2:]) < size:
        return image.new_zeros(0, image.shape[0], size, size)
    squares = image.unfold(1, size, size).unfold(2, size, size)
    return squares.permute(1, 2, 0, 3, 4).reshape(-1, image.shape[0], size, size)


def random_crops(
    images: Tensor | Sequence[Tensor], size: int, count: int, generator: Generator
) -> Tensor:
    """Draw random squares from pictures of any sizes: (count, channels, size, size).

    Every picture is equally likely, and so is every position in a picture.

    Args:
        images: Pictures (channels, height, width).
        size: Side of the squares.
        count: Number of squares.
        generator: Random generator.
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
        height, width = image.shape[-2:]
        top = below(height - size + 1)
        left = below(width - size + 1)
        crops.append(image[..., top : top + size, left : left + size])
    if not crops:
        return images[0].new_zeros(0, images[0].shape[0], size, size)
    return torch.stack(crops)


def require_size(size: int) -> None:
    """Raise if the side of an image is not positive."""
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")


def _sorted_contents(source: Path, within: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the image files of a folder or archive."""

    def wanted(name: str) -> bool:
        path = PurePosixPath(name)
        return IMAGE.fullmatch(path.name) is not None and (
            not within or PurePosixPath(within) in path.parents
        )

    if source.is_dir():
        for path in sorted((source / within).rglob("*")):
            name = path.relative_to(source).as_posix()
            if path.is_file() and wanted(name):
                yield name, path.read_bytes()
    elif not source.is_file():
        raise DataMissing(f"there is no folder or archive {source}")
    elif _is_archive(zipfile.is_zipfile, source):
        with reading(f"{source} cannot be unpacked"):
            archive = zipfile.ZipFile(source)
        with archive:
            for name in sorted(filter(wanted, archive.namelist())):
                with reading(f"{source}/{name} cannot be unpacked"):
                    _require_small(
                        archive.getinfo(name).file_size, f"{source}/{name}", LARGEST_FILE
                    )
                    content = archive.read(name)
                yield name, content
    elif _is_archive(tarfile.is_tarfile, source):
        yield from sorted(dict(unpack_tar(source, wanted, largest=LARGEST_FILE)).items())
    else:
        raise DataDamaged(f"{source} is neither a folder nor a zip or tar archive that can be read")


def _is_archive(recognised: Callable[[Path], bool], source: Path) -> bool:
    """Return whether a file is an archive of a kind; an archive without an entry is an error."""
    with reading(f"{source} cannot be unpacked"):
        return recognised(source)


def tiled(pictures: Sequence[Tensor], size: int, source: str) -> Tensor:
    """Return the tiles of all pictures.

    Args:
        pictures: Pictures (channels, height, width).
        size: Side of the tiles.
        source: Name of the source in the error if there are no tiles.
    """
    squares = torch.cat([tiles(picture, size) for picture in pictures])
    if len(squares) == 0:
        raise ValueError(f"no picture of {source} is as large as a tile of {size}×{size}")
    return squares
