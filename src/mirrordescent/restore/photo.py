"""Photographs on disk: pixels to work on, and what is needed to write them back in the same
form.
"""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

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

LARGEST = {8: 255, 16: 65535}  # bits → the number of full brightness
STRIP = 256  # rows that are converted at a time
GREY_MODES = {8: "L", 16: "I;16", 32: "F"}
KEPT_MODES = ("CMYK", "YCbCr", "HSV")  # colour spaces a restored image is converted back to
SAME_AS = {"MPO": "JPEG"}  # a photograph with further images behind it, as cameras write
LOSSY = ("JPEG", "WEBP", "AVIF")
# the format of 16-bit and floating-point colours, which Pillow would reduce to 8 bits
DEEP_TIFF = "tifffile"
DEEP_PNG = "deep PNG"  # likewise
LOSSLESS_TIFF = ("raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits")
TIFF_WORDS = (
    270,
    271,
    272,
    305,
    306,
    315,
    316,
    33432,
)  # description, camera, software, date, author, rights
TURNS: dict[int, Callable[[Array], Array]] = {  # what a camera's note on which side is up asks for
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: np.fliplr(np.rot90(a, 3)),
    6: lambda a: np.rot90(a, 3),
    7: lambda a: np.fliplr(np.rot90(a, 1)),
    8: lambda a: np.rot90(a, 1),
}

Form: TypeAlias = tuple[str, str, str, dict[str, Any]]  # format, mode, suffix and extras of a Photo


@dataclass(frozen=True)
class Photo:
    """A photograph: colours (1 or 3, height, width) in [0, 1], its opacity beside them, and the
    form of its file.

    ``bits`` are 8, 16, or 32 for floating-point numbers. The colours of most JPEG files are
    ``halved``: stored at half the resolution. Palettes and black-and-white are written back as full
    colours and greys, since a restored image has more of them.
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
        """Write other colours and opacity in the form of this photograph, whole or not at all."""
        numbers = _numbers(
            colour if alpha is None else torch.cat([colour, alpha.unsqueeze(0)]), self.bits
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial:
            if self.format == DEEP_PNG:
                write_deep_png(partial, DeepPNG(numbers, self.extras["notes"]))
            elif self.format == DEEP_TIFF:
                with requires_extra("pictures", "Writing deep TIFF files", "tifffile"):
                    import tifffile

                with partial.open("wb") as file:  # by its name it would be no TIFF
                    tifffile.imwrite(
                        file, numbers[:, :, 0] if numbers.shape[2] == 1 else numbers, **self.extras
                    )
            else:
                _picture(numbers, self.mode).save(partial, format=self.format, **self.extras)


def read_photo(path: str | Path) -> Photo:
    """Read a photograph of any format that Pillow reads; grey, colour, with opacity, of 8, 16 or 32
    bits.

    A camera's note on which side is up is followed. Files with several pages or frames are refused.
    """
    path = Path(path)
    deep = _read_deep(path) if path.is_file() else None
    halved = False
    if deep is not None:
        values, bits, form = deep
    else:
        with opened(path, path) as picture:
            if picture.format not in SAME_AS:
                _require_one(getattr(picture, "n_frames", 1), path)
            halved = any(max(layer[1:3]) > 1 for layer in getattr(picture, "layer", ()))
            values, bits, form = _read(picture, path)
    pixels = torch.from_numpy(values).permute(2, 0, 1)
    colour, alpha = (
        (pixels[:-1], pixels[-1].contiguous()) if len(pixels) in (2, 4) else (pixels, None)
    )
    return Photo(path, colour.contiguous(), alpha, bits, *form, halved=halved)


def shape_of(path: Path) -> tuple[int, ...]:
    """Return height, width and bands of a file without reading its pixels; () if it cannot
    be told.
    """
    try:  # sorted, since a picture may be turned when it is read
        with opened(path, path) as picture:
            return (*sorted(picture.size), len(picture.getbands()))
    except (OSError, ValueError):
        return ()


def _read(picture: Image.Image, path: Path) -> tuple[Array, int, Form]:
    """Return (height, width, channels) in [0, 1], opacity last, the bits they had, and
    their form.
    """
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(picture)
    values, bits = values_of(upright)
    mode = {1: GREY_MODES[bits], 2: "LA", 3: "RGB", 4: "RGBA"}[values.shape[2]]
    notes = {"icc_profile": picture.info.get("icc_profile"), "exif": _exif(picture, upright)}
    notes |= {"dpi": picture.info.get("dpi"), "xmp": upright.info.get("xmp")}
    extras: dict[str, Any] = {name: note for name, note in notes.items() if note}
    form = SAME_AS.get(picture.format or "PNG", picture.format or "PNG")
    if form == "TIFF" and picture.info.get("compression") in LOSSLESS_TIFF:
        extras["compression"] = picture.info["compression"]
    if form == "WEBP" and _is_lossless_webp(path):
        extras |= {"lossless": True, "exact": True}
    kept = picture.mode if picture.mode in KEPT_MODES else mode
    return values, bits, _form(form, kept, path.suffix, extras)


def _exif(picture: Image.Image, upright: Image.Image) -> bytes:
    """Return what the camera noted; in a TIFF, which has it among what describes the pixels, the
    part in words.
    """
    from PIL import Image

    if picture.format != "TIFF":
        return upright.getexif().tobytes()
    found = picture.getexif()
    words = Image.Exif()
    for tag in TIFF_WORDS:
        if tag in found:
            words[tag] = found[tag]
    return words.tobytes() if len(words) else b""


def _is_lossless_webp(path: Path) -> bool:
    with path.open("rb") as file:
        return b"VP8L" in file.read(1 << 16)  # behind the notes, if there are any


def _form(form: str, mode: str, suffix: str, extras: dict[str, Any]) -> Form:
    """Return the form of a file as it is, if it can hold the mode, else another."""
    from PIL import Image

    extras = extras | ({"quality": 95} if form in LOSSY and not extras.get("lossless") else {})
    try:  # what a format holds can only be found out by writing it
        Image.new(mode, (1, 1)).save(io.BytesIO(), format=form, **extras)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        if "xmp" in extras:  # the note that fewest formats hold
            return _form(
                form, mode, suffix, {name: note for name, note in extras.items() if name != "xmp"}
            )
        return ("TIFF", mode, ".tif", {}) if mode == "F" else ("PNG", mode, ".png", {})
    return form, mode, suffix, extras


def _numbers(values: Tensor, bits: int) -> Array:
    """Return (height, width, channels) in the numbers of a file."""
    channels, height, width = values.shape
    numbers = np.empty((height, width, channels), np.float32 if bits == 32 else f"uint{bits}")
    for top in range(0, height, STRIP):  # in little memory
        rows = values[:, top : top + STRIP].clamp(0, 1).permute(1, 2, 0).cpu()
        numbers[top : top + STRIP] = rows if bits == 32 else (rows * LARGEST[bits]).round()
    return numbers


def _picture(numbers: Array, mode: str) -> Image.Image:
    from PIL import Image

    picture = Image.fromarray(numbers[:, :, 0] if numbers.shape[2] == 1 else numbers)
    return picture if picture.mode == mode else picture.convert(mode)


def _require_one(count: int, path: Path) -> None:
    if count > 1:
        raise DataDamaged(
            f"{path} has {count} pages or frames: save those to be restored as files of their own"
        )


def _read_deep(path: Path) -> tuple[Array, int, Form] | None:
    """Read what Pillow would reduce to 8 bits, or would not know: colours of 16 bits, or of
    floating-point numbers.
    """
    # tifffile says in many ways that it cannot go on.
    with reading(
        f"{path} is not an image that can be read",
        struct.error,
        ArithmeticError,
        LookupError,
        TypeError,
    ):
        with path.open("rb") as file:
            start = file.read(4)
        if start in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            return _read_deep_tiff(path)
        return _read_deep_png(path) if is_deep_png(path) else None


def _read_deep_png(path: Path) -> tuple[Array, int, Form]:
    """Read colours of 16 bits, as ``_read`` does those of 8."""
    picture = read_deep_png(path)
    return (
        picture.numbers / np.float32(LARGEST[16]),
        16,
        (DEEP_PNG, "", path.suffix, {"notes": picture.notes}),
    )


def _read_deep_tiff(path: Path) -> tuple[Array, int, Form] | None:
    """Read colours of 16 bits or floating-point numbers, as ``_read`` does those of 8 bits; None of
    another file.
    """
    with requires_extra("pictures", "Reading deep TIFF files", "tifffile"):
        import tifffile

    logging.getLogger("tifffile").setLevel(
        logging.CRITICAL
    )  # what is wrong is said once, by an error
    with tifffile.TiffFile(path) as file:
        page = cast(Any, file.pages[0])
        if page.samplesperpixel < 2 or page.dtype is None or page.dtype.itemsize < 2:
            return None
        _require_one(len(file.pages), path)
        require_plausible(page.imagewidth * page.imagelength, path.stat().st_size, path)
        numbers = page.asarray()
        tags = page.tags
        notes = {
            name: tags[code].value
            for name, code in (("up", 274), ("iccprofile", 34675))
            if code in tags
        }
    numbers = (
        np.moveaxis(numbers, 0, -1)
        if numbers.ndim == 3 and numbers.shape[0] in (2, 3, 4)
        else numbers
    )
    deep = numbers.dtype == np.uint16
    if (
        not (deep or numbers.dtype.kind == "f")
        or numbers.ndim != 3
        or numbers.shape[-1] not in (2, 3, 4)
    ):
        raise ValueError(
            f"pixels of shape {numbers.shape} and type {numbers.dtype} are not supported"
        )
    up = int(notes.pop("up", 1))
    numbers = TURNS[up](numbers) if up in TURNS else numbers
    extras: dict[str, Any] = {
        "photometric": "rgb" if numbers.shape[-1] > 2 else "minisblack",
        "planarconfig": "contig",
    }
    extras |= notes | ({"extrasamples": ["unassalpha"]} if numbers.shape[-1] in (2, 4) else {})
    values = numbers.astype(np.float32) / np.float32(LARGEST[16] if deep else 1)
    if not (values.min() >= 0 and values.max() <= 1):
        raise ValueError("floating-point pixels must lie in [0, 1]")
    return values, 16 if deep else 32, (DEEP_TIFF, "", path.suffix, extras)
