"""Pictures as tensors (3, height, width) with values in [0, 1], from folders and archives; pieces of them."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias, Union, cast

import numpy as np
import torch
from torch import Generator, Tensor

from mirrordescent.data.errors import DataDamaged, DataMissing

if TYPE_CHECKING:
    from PIL import Image

Array: TypeAlias = "np.ndarray[Any, Any]"
ImageLike: TypeAlias = Union[Tensor, Array, "Image.Image"]
"""An image or a batch: a tensor (…, height, width), a NumPy array (…, height, width, channels), a Pillow image."""

GREY_MODES = ("1", "L", "I", "F", "I;16", "I;16L", "I;16B", "I;16N")
SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".pnm", ".tif", ".tiff", ".webp"))


def read_image(path: str | Path) -> Tensor:
    """Read one picture: (3, height, width)."""
    path = Path(path)
    if not path.is_file():
        raise DataMissing(f"there is no image {path}")
    return decode(path.read_bytes(), str(path))


def decode(content: bytes, name: str) -> Tensor:
    """Turn the content of an image file into (3, height, width); ``name`` is for the error message.

    Grey becomes three equal channels, transparent pixels lie on white, 16 bits keep their precision, and a
    camera's note on which side is up is followed. Of an animation the first frame is taken.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(content)) as picture:
            upright = ImageOps.exif_transpose(picture)
            values = _values(upright)
    except (OSError, ValueError, SyntaxError, EOFError, zlib.error, Image.DecompressionBombError) as error:
        raise DataDamaged(f"{name} is not an image that can be read: {error}") from error
    return torch.from_numpy(values).permute(2, 0, 1).contiguous()


def read_images(source: str | Path, within: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield names and pictures of a folder, a zip or a tar archive, in the order of their names.

    Only files below the folder ``within`` of the source, and of those the ones with the suffix of an image.
    """
    source = Path(source).expanduser()
    found = False
    for name, content in sorted_contents(source, within):
        found = True
        yield name, decode(content, f"{source}/{name}")
    if not found:
        raise DataMissing(f"there is no image in {source / within if within else source}")


def sorted_contents(source: Path, within: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the image files of a folder or archive."""
    if source.is_dir():
        yield from _folder_contents(source, within)
    elif not source.is_file():
        raise DataMissing(f"there is no folder or archive {source}")
    elif zipfile.is_zipfile(source):
        yield from _zip_contents(source, within)
    elif tarfile.is_tarfile(source):
        yield from _tar_contents(source, within)
    else:
        raise DataDamaged(f"{source} is neither a folder nor a zip or tar archive that can be read")


def as_images(images: ImageLike | Sequence[ImageLike]) -> Tensor:
    """Turn images of PyTorch, NumPy or Pillow, or a list of them, into (batch, channels, height, width).

    Tensors have their channels before the pixels, arrays after them, as is the custom of each; both may lack channels
    or the batch. Bytes and 16-bit numbers are divided by the largest they can be; floating-point numbers stay as they
    are. Grey stays one channel.

    >>> as_images(np.full((4, 5, 3), 255, np.uint8)).shape, as_images(torch.zeros(3, 4, 5)).shape
    (torch.Size([1, 3, 4, 5]), torch.Size([1, 3, 4, 5]))
    """
    if isinstance(images, (list, tuple)):
        batches = [as_images(image) for image in images]
        if len({batch.shape[1:] for batch in batches}) != 1:
            shapes = ", ".join(str(tuple(batch.shape[1:])) for batch in batches) or "none"
            raise ValueError(f"images of one batch must have one shape, got {shapes}")
        return torch.cat(batches)
    if not isinstance(images, (Tensor, np.ndarray)):
        if not hasattr(images, "getpixel"):
            raise TypeError(f"images are tensors, NumPy arrays or Pillow images, not {type(images).__name__}")
        images = pixels_of(cast("Image.Image", images))
    if images.ndim not in (2, 3, 4):
        raise ValueError(f"an image has 2 dimensions, 3 with channels and 4 in a batch, got {tuple(images.shape)}")
    if isinstance(images, np.ndarray):
        if images.ndim > 2 and images.shape[-1] > 4:
            raise ValueError(
                f"an array of shape {images.shape} has {images.shape[-1]} channels: NumPy images are "
                "(height, width, channels); a tensor would be (channels, height, width)"
            )
        images = torch.from_numpy(np.ascontiguousarray(images))
        images = images.movedim(-1, -3) if images.ndim > 2 else images
    scaled = _scaled(images)
    return scaled.reshape(*[1] * (4 - scaled.ndim), *scaled.shape).contiguous()


def as_mask(mask: ImageLike) -> Tensor:
    """Turn a mask of PyTorch, NumPy or Pillow into one of truth values (…, height, width): True where it is not black.

    A picture file may have gone through a lossy format: of Pillow images the lighter half of the greys is True.
    """
    if isinstance(mask, Tensor):
        return mask if mask.dtype == torch.bool else mask != 0
    if isinstance(mask, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(mask)) != 0
    return torch.from_numpy(_values(mask).mean(-1) >= 0.5)


def pixels_of(picture: Image.Image) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return a Pillow image as (height, width, 1) if it is grey, else (height, width, 3), in [0, 1]; on white."""
    grey = picture.mode in GREY_MODES and not picture.has_transparency_data
    return _values(picture)[:, :, : 1 if grey else 3]


def tiles(image: Tensor, size: int) -> Tensor:
    """Cut (channels, height, width) into squares side by side: (n, channels, size, size), row by row.

    What is left over at the right and at the bottom is dropped.

    >>> tiles(torch.arange(6.0).reshape(1, 2, 3), 1).flatten()
    tensor([0., 1., 2., 3., 4., 5.])
    """
    _require_size(size)
    if not _fits(image, size):
        return image.new_zeros(0, image.shape[0], size, size)
    squares = image.unfold(1, size, size).unfold(2, size, size)
    return squares.permute(1, 2, 0, 3, 4).reshape(-1, image.shape[0], size, size)


def random_crops(images: Tensor | Sequence[Tensor], size: int, count: int, generator: Generator) -> Tensor:
    """Draw squares from pictures of any sizes: (count, channels, size, size).

    Every picture is equally likely, and in it every position.
    """
    _require_size(size)
    if len(images) == 0:
        raise ValueError("there is no image to take crops from")
    for index, image in enumerate(images):
        if not _fits(image, size):
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


def _values(picture: Image.Image) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return (height, width, 3) in [0, 1]."""
    if picture.mode.startswith(("I", "F")):  # the modes of more than 8 bits, all of them grey
        grey = np.asarray(picture, dtype=np.float32)
        grey = grey if picture.mode == "F" else grey / np.float32(65535)
        if not (grey.min() >= 0 and grey.max() <= 1):
            raise ValueError("its values exceed 16 bits, or as floating-point numbers [0, 1]")
        return np.repeat(grey[:, :, None], 3, axis=2)
    if picture.has_transparency_data:
        rgba = np.asarray(picture.convert("RGBA"), dtype=np.float32) / np.float32(255)
        colour, opacity = rgba[..., :3], rgba[..., 3:]
        return colour * opacity + (1 - opacity)
    return np.asarray(picture.convert("RGB"), dtype=np.float32) / np.float32(255)


def _scaled(images: Tensor) -> Tensor:
    """Return floating-point numbers, those of 8 and 16 bits in [0, 1]."""
    if images.dtype in (torch.float32, torch.float64):
        return images
    if images.dtype in (torch.bool, torch.float16, torch.bfloat16):
        return images.float()
    largest = {torch.uint8: 255, torch.uint16: 65535}.get(images.dtype)
    if largest is None:
        raise TypeError(f"images are made of floating-point numbers, bytes or 16-bit numbers, not of {images.dtype}")
    return images.float() / largest


def _is_image(name: str) -> bool:
    """Tell by the suffix, and leave out what systems hide beside the pictures (``._x.png``)."""
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _below(name: str, within: str) -> bool:
    return not within or name.startswith(within.rstrip("/") + "/")


def _folder_contents(source: Path, within: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted((source / within).rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_file() and _is_image(name):
            yield name, path.read_bytes()


def _zip_contents(source: Path, within: str) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(source) as archive:
        for name in sorted(archive.namelist()):
            if _is_image(name) and _below(name, within):
                try:
                    content = archive.read(name)
                except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                    raise DataDamaged(f"{source}/{name} cannot be unpacked: {error}") from error
                yield name, content


def _tar_contents(source: Path, within: str) -> Iterator[tuple[str, bytes]]:
    """Read in the order of the archive, since going back in a compressed one starts it all over again."""
    contents = {}
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None and _is_image(name) and _below(name, within):
                    contents[name] = stream.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataDamaged(f"{source} cannot be unpacked: {error}") from error
    yield from sorted(contents.items())


def _fits(image: Tensor, size: int) -> bool:
    return min(image.shape[-2:]) >= size


def _require_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
