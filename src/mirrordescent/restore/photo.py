"""Photographs in files: their pixels, and what is needed to write them in the same format."""

from __future__ import annotations

import io
import logging
import shutil
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
from mirrordescent.restore.compression import Compression, compression_of
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
PHOTOMETRIC_TAG = 262
TIFF_TEXT = 2  # type of texts in TIFF files
RESOLUTION_TAGS = (282, 283, 296)  # across, down, and their unit
ORIENTATION_TAG = 274
EXTRA_SAMPLES_TAG = 338
PROFILE_TAG = 34675
WHITE_IS_ZERO = 0  # a value of the photometric tag
# Meanings of a channel beside the colours, by the value of its tag, in the words of tifffile.
EXTRA_SAMPLES = {0: "unspecified", 1: "assocalpha", 2: "unassalpha"}
PREMULTIPLIED = 1  # colours are stored multiplied by the opacity
# Colours of 16-bit and floating-point TIFF files: photometric tag and number of channels.
GREY = 1
RGB = 2
DEEP_CHANNELS = {GREY: (2,), RGB: (3, 4)}
PHOTOMETRIC_NAMES = {0: "inverted grey", 1: "grey", 3: "a palette", 5: "CMYK", 6: "YCbCr", 8: "Lab"}
JPEG2000_SIZES = b"\xff\x4f\xff\x51"  # the markers SOC and SIZ at the start of a code stream
JPEG2000_BITS_AT = 42  # position of the number of bits of the first channel, from these markers on
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


class PictureData(NamedTuple):
    """Values (height, width, channels) in [0, 1] with opacity last, and the form of their file.

    ``premultiplied`` and ``note`` are explained in :class:`Photo`.
    """

    values: Array
    bits: int
    form: FileForm
    premultiplied: bool = False
    note: str = ""


class Header(NamedTuple):
    """Facts of an image file that are known before its pixels are read.

    Args:
        shape: Both sides, sorted because an image may be turned when it is read, and the number of
            bands; () if the file cannot be read.
        suffix: Suffix of the restored file.
    """

    shape: tuple[int, ...]
    suffix: str


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
        compression: Compression of a JPEG file; None for other formats.
        premultiplied: Whether the file stores colours multiplied by the opacity. ``colour`` has the
            colours themselves.
        note: What the restored file does not keep, or an empty string.
    """

    path: Path
    colour: Tensor
    alpha: Tensor | None
    bits: int
    format: str
    mode: str
    suffix: str
    extras: dict[str, Any]
    compression: Compression | None = None
    premultiplied: bool = False
    note: str = ""

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
        if alpha is not None and self.premultiplied:
            colour = colour * alpha
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

    def copy(self, path: Path) -> None:
        """Write this photograph unchanged: a copy of its file, unless its format is not written.

        The file is written completely or not at all.

        Args:
            path: Path of the file to write.
        """
        if self.suffix != self.path.suffix:
            self.write(path, self.colour, self.alpha)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial:
            shutil.copyfile(self.path, partial)


def read_photo(path: str | Path) -> Photo:
    """Read a photograph in any format that Pillow reads.

    It may be grey or coloured, with or without opacity, of 8, 16 or 32 bits. It is turned upright
    if the camera has stored its orientation. Files with several pages or frames are refused.

    Args:
        path: Path of the file.
    """
    path = Path(path)
    deep = _read_deep(path) if path.is_file() else None
    compression = None
    if deep is not None:
        pixels = deep
    else:
        with opened(path, path) as picture:
            if picture.format not in SAME_AS:
                _require_one_page(getattr(picture, "n_frames", 1), path)
            compression = compression_of(picture)
            pixels = _read(picture, path)
    colour = torch.from_numpy(pixels.values).permute(2, 0, 1)
    alpha = None
    if len(colour) in (2, 4):
        alpha = colour[-1].contiguous()
        colour = colour[:-1]
    if pixels.premultiplied and alpha is not None:
        colour = torch.where(alpha > 0, colour / alpha, 0.0).clamp(max=1)
    return Photo(
        path,
        colour.contiguous(),
        alpha,
        pixels.bits,
        *pixels.form,
        compression=compression,
        premultiplied=pixels.premultiplied,
        note=pixels.note,
    )


def read_header(path: Path) -> Header:
    """Read the facts of an image file that its header tells."""
    try:
        with opened(path, path) as picture:
            shape = (*sorted(picture.size), len(picture.getbands()))
            return Header(shape, _form(picture, picture, path).suffix)
    except (OSError, ValueError):
        return Header((), path.suffix)


def _read(picture: Image.Image, path: Path) -> PictureData:
    """Read an image by Pillow."""
    from PIL import ImageOps

    depth = _stored_bits(picture, path)  # before the pixels are read, which forgets it
    upright = ImageOps.exif_transpose(picture)
    values, bits = values_of(upright)
    form = _form(picture, upright, path)
    if picture.format != "TIFF":
        note = (
            f"it has {depth} bits per colour; the restored file has {bits}" if depth > bits else ""
        )
        return PictureData(values, bits, form, note=note)
    tags = picture.getexif()
    if bits > 8 and tags.get(PHOTOMETRIC_TAG) == WHITE_IS_ZERO:  # Pillow inverts 8 bits only
        values = 1 - values
    return PictureData(values, bits, form, note=_extra_samples_note(tags.get(EXTRA_SAMPLES_TAG)))


def _stored_bits(picture: Image.Image, path: Path) -> int:
    """Return the bits per colour of formats that Pillow reduces to 8 bits; 0 for other formats."""
    with path.open("rb") as file:
        start = file.read(1 << 16)
    if picture.format == "PPM":
        match getattr(picture, "tile", ()):
            case [(_, _, _, (_, int(largest)))]:
                return largest.bit_length()
    if picture.format == "JPEG2000":
        at = start.find(JPEG2000_SIZES) + JPEG2000_BITS_AT
        if JPEG2000_BITS_AT <= at < len(start):
            return (start[at] & 0x7F) + 1
    if picture.format == "AVIF":
        at = start.find(b"av1C") + 6  # the third byte of the configuration
        if 6 <= at < len(start) and start[at] & 0x40:
            return 12 if start[at] & 0x20 else 10
    return 0


def _extra_samples_note(meanings: int | tuple[int, ...] | None) -> str:
    """Return what becomes of the channels beside the colours of an 8-bit TIFF file."""
    if meanings is None:
        return ""
    kinds = meanings if isinstance(meanings, tuple) else (meanings,)
    notes = []
    if PREMULTIPLIED in kinds:
        notes.append(
            "its colours are multiplied by its opacity (associated alpha); the restored file has "
            "plain colours with the same opacity (unassociated alpha)"
        )
    if 0 in kinds:
        notes.append("it has a channel of unspecified meaning, which the restored file lacks")
    return "; ".join(notes)


def _form(picture: Image.Image, upright: Image.Image, path: Path) -> FileForm:
    """Return the form in which an image is written.

    Args:
        picture: The image as it is in the file. Its pixels need not have been read.
        upright: The image turned upright, whose metadata are kept.
        path: Path of the file.
    """
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
    return _writable_form(file_format, _written_mode(picture), path.suffix, extras)


def _written_mode(picture: Image.Image) -> str:
    """Return the colour mode in which an image is written."""
    if picture.mode in KEPT_MODES:
        return picture.mode
    if picture.mode.startswith(("I", "F")):
        return GREY_MODES[32 if picture.mode == "F" else 16]
    mode = "L" if picture.mode in ("1", "L", "LA", "La") else "RGB"
    return f"{mode}A" if picture.has_transparency_data else mode


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


def _read_deep(path: Path) -> PictureData | None:
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
        return PictureData(picture.numbers / np.float32(LARGEST[16]), 16, form)


def _read_deep_tiff(path: Path) -> PictureData | None:
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
        photometric = int(page.photometric)
        channels = page.samplesperpixel
        if channels not in DEEP_CHANNELS.get(photometric, ()):
            colours = PHOTOMETRIC_NAMES.get(photometric, "colours of another kind")
            raise DataDamaged(
                f"{path} has {8 * page.dtype.itemsize}-bit pixels of {channels} channels that "
                f"store {colours}. Such files must store RGB, or grey with opacity: convert it to "
                "RGB, or to 8 bits"
            )
        numbers = page.asarray()
        orientation = 1
        extras: dict[str, Any] = {}
        if ORIENTATION_TAG in page.tags:
            orientation = int(page.tags[ORIENTATION_TAG].value)
        if PROFILE_TAG in page.tags:
            extras["iccprofile"] = page.tags[PROFILE_TAG].value
        extras |= _deep_tiff_metadata(page)
        kinds = [int(kind) for kind in page.extrasamples]
        is_planar = int(page.planarconfig) == 2
    if numbers.ndim == 3 and is_planar:
        numbers = np.moveaxis(numbers, 0, -1)
    is_integer = numbers.dtype == np.uint16
    if not (is_integer or numbers.dtype.kind == "f") or numbers.ndim != 3:
        raise ValueError(
            f"pixels of shape {numbers.shape} and type {numbers.dtype} are not supported"
        )
    if orientation in TURNS:
        numbers = TURNS[orientation](numbers)
    extras["photometric"] = "rgb" if channels > 2 else "minisblack"
    extras["planarconfig"] = "contig"
    if channels in (2, 4):
        meaning = EXTRA_SAMPLES.get(kinds[0]) if kinds else None
        extras["extrasamples"] = [meaning or "unassalpha"]
    values = numbers.astype(np.float32) / np.float32(LARGEST[16] if is_integer else 1)
    if not (values.min() >= 0 and values.max() <= 1):
        raise ValueError("floating-point pixels must lie in [0, 1]")
    form = FileForm(DEEP_TIFF, "", path.suffix, extras)
    return PictureData(values, 16 if is_integer else 32, form, kinds[:1] == [PREMULTIPLIED])


def _deep_tiff_metadata(page: Any) -> dict[str, Any]:
    """Return options of tifffile to write the texts and the resolution of a page again."""
    texts = []
    for tag in TIFF_TEXT_TAGS:
        value = page.tags[tag].value if tag in page.tags else None
        if isinstance(value, str):
            texts.append((tag, TIFF_TEXT, 0, value.encode(), True))
    # Without these options, tifffile writes a description and its own name.
    options: dict[str, Any] = {"metadata": None, "software": False, "extratags": texts}
    if all(tag in page.tags for tag in RESOLUTION_TAGS):
        across, down, unit = (page.tags[tag].value for tag in RESOLUTION_TAGS)
        options |= {"resolution": (across, down), "resolutionunit": int(unit)}
    return options
