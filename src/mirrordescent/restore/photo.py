"""Photographs in files: their pixels, and what is needed to write them in the same format."""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from mirrordescent._internal.extras import requires_extra
from mirrordescent._internal.files import whole
from mirrordescent._internal.image_arrays import Array, values_of
from mirrordescent.data.errors import DataDamaged, reading
from mirrordescent.data.image_files import opened, require_plausible
from mirrordescent.restore.png import DeepPNG, is_deep_png, read_deep_png, write_deep_png

if TYPE_CHECKING:
    from PIL import Image

LARGEST = {8: 255, 16: 65535}  # integer of full brightness by number of bits
STRIP = 256  # rows that are converted at a time
GREY_MODES = {8: "L", 16: "I;16", 32: "F"}
KEPT_MODES = ("CMYK", "YCbCr", "HSV")  # colour spaces to which a restored image is converted back
SAME_AS = {"MPO": "JPEG"}  # MPO files of cameras contain further images after the photograph
LOSSY = ("JPEG", "WEBP", "AVIF")
# Formats of 16-bit and floating-point colours, which Pillow would reduce to 8 bits.
DEEP_TIFF = "tifffile"
DEEP_PNG = "deep PNG"
LOSSLESS_TIFF = ("raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits")
# Tags: description, camera maker, camera model, software, date, author, host, copyright.
TIFF_TEXT_TAGS = (270, 271, 272, 305, 306, 315, 316, 33432)
ORIENTATION_TAG = 274
PROFILE_TAG = 34675
TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# How to turn an image upright, by the value of its orientation tag.
TURNS: dict[int, Callable[[Array], Array]] = {
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: np.fliplr(np.rot90(a, 3)),
    6: lambda a: np.rot90(a, 3),
    7: lambda a: np.fliplr(np.rot90(a, 1)),
    8: lambda a: np.rot90(a, 1),
}


class FileForm(NamedTuple):
    """The form of an image file: format, colour mode, suffix, and options for writing."""

    format: str
    mode: str
    suffix: str
    extras: dict[str, Any]


class Pixels(NamedTuple):
    """Values (height, width, channels) in [0, 1] with opacity last, and the form of their file."""

    values: Array
    bits: int
    form: FileForm


@dataclass(frozen=True)
class Photo:
    """A photograph.

    Images with a palette and black-and-white images are written with full colours or greys, since a
    restored image has more of them.

    Args:
        path: Path of the file.
        colour: Colours in [0, 1], (1 or 3, height, width).
        alpha: Opacity, (height, width), or None.
        bits: 8 or 16, or 32 for floating-point numbers.
        format: File format.
        mode: Colour mode of the file.
        suffix: Suffix of the file to write.
        extras: Options for writing, with the metadata of the file.
        halved: Whether the colours are stored at half the resolution, as in most JPEG files.
    """

    path: Path
    colour: Tensor
    alpha: Tensor | None
    bits: int
    format: str
    mode: str
    suffix: str
    extras: dict[str, Any]
    halved: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.colour.shape[2], self.colour.shape[1]

    def write(self, path: Path, colour: Tensor, alpha: Tensor | None) -> None:
        """Write other colours and opacity in the form of this photograph.

        The file is written completely or not at all.

        Args:
            path: Path of the file to write.
            colour: Colours in [0, 1].
            alpha: Opacity, or None.
        """
        channels = colour if alpha is None else torch.cat([colour, alpha.unsqueeze(0)])
        numbers = _file_numbers(channels, self.bits)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial:
            if self.format == DEEP_PNG:
                write_deep_png(partial, DeepPNG(numbers, self.extras["notes"]))
            elif self.format == DEEP_TIFF:
                with requires_extra("pictures", "Writing deep TIFF files", "tifffile"):
                    import tifffile

                with partial.open("wb") as file:  # the temporary name has no TIFF suffix
                    tifffile.imwrite(file, _without_single_channel(numbers), **self.extras)
            else:
                _picture(numbers, self.mode).save(partial, format=self.format, **self.extras)


def read_photo(path: str | Path) -> Photo:
    """Read a photograph in any format that Pillow reads.

    It may be grey or coloured, with or without opacity, of 8, 16 or 32 bits. It is turned upright
    if the camera has stored its orientation. Files with several pages or frames are refused.

    Args:
        path: Path of the file.
    """
    path = Path(path)
    deep = _read_deep(path) if path.is_file() else None
    halved = False
    if deep is not None:
        values, bits, form = deep
    else:
        with opened(path, path) as picture:
            if picture.format not in SAME_AS:
                _require_one_page(getattr(picture, "n_frames", 1), path)
            layers = getattr(picture, "layer", ())
            halved = any(max(layer[1:3]) > 1 for layer in layers)
            values, bits, form = _read(picture, path)
    colour = torch.from_numpy(values).permute(2, 0, 1)
    alpha = None
    if len(colour) in (2, 4):
        alpha = colour[-1].contiguous()
        colour = colour[:-1]
    return Photo(path, colour.contiguous(), alpha, bits, *form, halved=halved)


def shape_of(path: Path) -> tuple[int, ...]:
    """Return both sides, sorted, and the number of bands of a file from its header; () on failure.

    Sides are sorted because an image may be turned when it is read.
    """
    try:
        with opened(path, path) as picture:
            return (*sorted(picture.size), len(picture.getbands()))
    except (OSError, ValueError):
        return ()


def _read(picture: Image.Image, path: Path) -> Pixels:
    """Read an image by Pillow."""
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(picture)
    values, bits = values_of(upright)
    mode = {1: GREY_MODES[bits], 2: "LA", 3: "RGB", 4: "RGBA"}[values.shape[2]]
    metadata = {
        "icc_profile": picture.info.get("icc_profile"),
        "exif": _exif(picture, upright),
        "dpi": picture.info.get("dpi"),
        "xmp": upright.info.get("xmp"),
    }
    extras: dict[str, Any] = {name: value for name, value in metadata.items() if value}
    file_format = picture.format or "PNG"
    file_format = SAME_AS.get(file_format, file_format)
    if file_format == "TIFF" and picture.info.get("compression") in LOSSLESS_TIFF:
        extras["compression"] = picture.info["compression"]
    if file_format == "WEBP" and _is_lossless_webp(path):
        extras |= {"lossless": True, "exact": True}
    if file_format in LOSSY and not extras.get("lossless"):
        extras["quality"] = 95
    kept_mode = picture.mode if picture.mode in KEPT_MODES else mode
    return Pixels(values, bits, _writable_form(file_format, kept_mode, path.suffix, extras))


def _exif(picture: Image.Image, upright: Image.Image) -> bytes:
    """Return the metadata of the camera.

    In TIFF files it is mixed with the description of the pixels, so only texts are kept.
    """
    from PIL import Image

    if picture.format != "TIFF":
        return upright.getexif().tobytes()
    tags = picture.getexif()
    texts = Image.Exif()
    for tag in TIFF_TEXT_TAGS:
        if tag in tags:
            texts[tag] = tags[tag]
    return texts.tobytes() if len(texts) else b""


def _is_lossless_webp(path: Path) -> bool:
    with path.open("rb") as file:
        return b"VP8L" in file.read(1 << 16)  # metadata may come first


def _writable_form(file_format: str, mode: str, suffix: str, extras: dict[str, Any]) -> FileForm:
    """Return the form of a file if its format can hold the mode, else that of PNG or TIFF."""
    from PIL import Image

    try:  # Pillow does not tell which formats hold which modes, so write one pixel
        Image.new(mode, (1, 1)).save(io.BytesIO(), format=file_format, **extras)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        if "xmp" in extras:  # few formats hold XMP metadata
            rest = {name: value for name, value in extras.items() if name != "xmp"}
            return _writable_form(file_format, mode, suffix, rest)
        if mode == "F":
            return FileForm("TIFF", mode, ".tif", {})
        return FileForm("PNG", mode, ".png", {})
    return FileForm(file_format, mode, suffix, extras)


def _file_numbers(values: Tensor, bits: int) -> Array:
    """Return (height, width, channels) in the numbers of a file, converted strip by strip."""
    channels, height, width = values.shape
    numbers = np.empty((height, width, channels), np.float32 if bits == 32 else f"uint{bits}")
    for top in range(0, height, STRIP):
        rows = values[:, top : top + STRIP].clamp(0, 1).permute(1, 2, 0).cpu()
        numbers[top : top + STRIP] = rows if bits == 32 else (rows * LARGEST[bits]).round()
    return numbers


def _without_single_channel(numbers: Array) -> Array:
    return numbers[:, :, 0] if numbers.shape[2] == 1 else numbers


def _picture(numbers: Array, mode: str) -> Image.Image:
    from PIL import Image

    picture = Image.fromarray(_without_single_channel(numbers))
    return picture if picture.mode == mode else picture.convert(mode)


def _require_one_page(count: int, path: Path) -> None:
    if count > 1:
        raise DataDamaged(
            f"{path} has {count} pages or frames: save those to be restored as separate files"
        )


def _read_deep(path: Path) -> Pixels | None:
    """Read 16-bit or floating-point colours, which Pillow does not read; None for other files."""
    # tifffile reports damaged files by many kinds of errors.
    with reading(
        f"{path} is not an image that can be read",
        struct.error,
        ArithmeticError,
        LookupError,
        TypeError,
    ):
        with path.open("rb") as file:
            start = file.read(4)
        if start in TIFF_SIGNATURES:
            return _read_deep_tiff(path)
        if not is_deep_png(path):
            return None
        picture = read_deep_png(path)
        form = FileForm(DEEP_PNG, "", path.suffix, {"notes": picture.notes})
        return Pixels(picture.numbers / np.float32(LARGEST[16]), 16, form)


def _read_deep_tiff(path: Path) -> Pixels | None:
    """Read 16-bit or floating-point colours of a TIFF file; None for other files."""
    with requires_extra("pictures", "Reading deep TIFF files", "tifffile"):
        import tifffile

    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # errors are raised anyway
    with tifffile.TiffFile(path) as file:
        page = cast(Any, file.pages[0])
        if page.samplesperpixel < 2 or page.dtype is None or page.dtype.itemsize < 2:
            return None
        _require_one_page(len(file.pages), path)
        require_plausible(page.imagewidth * page.imagelength, path.stat().st_size, path)
        numbers = page.asarray()
        orientation = 1
        extras: dict[str, Any] = {}
        if ORIENTATION_TAG in page.tags:
            orientation = int(page.tags[ORIENTATION_TAG].value)
        if PROFILE_TAG in page.tags:
            extras["iccprofile"] = page.tags[PROFILE_TAG].value
    if numbers.ndim == 3 and numbers.shape[0] in (2, 3, 4):
        numbers = np.moveaxis(numbers, 0, -1)
    is_integer = numbers.dtype == np.uint16
    channels = numbers.shape[-1]
    if (
        not (is_integer or numbers.dtype.kind == "f")
        or numbers.ndim != 3
        or channels not in (2, 3, 4)
    ):
        raise ValueError(
            f"pixels of shape {numbers.shape} and type {numbers.dtype} are not supported"
        )
    if orientation in TURNS:
        numbers = TURNS[orientation](numbers)
    extras["photometric"] = "rgb" if channels > 2 else "minisblack"
    extras["planarconfig"] = "contig"
    if channels in (2, 4):
        extras["extrasamples"] = ["unassalpha"]
    values = numbers.astype(np.float32) / np.float32(LARGEST[16] if is_integer else 1)
    if not (values.min() >= 0 and values.max() <= 1):
        raise ValueError("floating-point pixels must lie in [0, 1]")
    return Pixels(values, 16 if is_integer else 32, FileForm(DEEP_TIFF, "", path.suffix, extras))
