"""Photographs on disk: pixels to work on, and what is needed to write them back in the same form."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mirrordescent.data.directory import DataDamaged, DataMissing
from mirrordescent.files import whole
from mirrordescent.images import GREY_MODES, Array

if TYPE_CHECKING:
    from PIL import Image

LARGEST = {8: 255, 16: 65535}  # bits → the number of full brightness
KEPT_MODES = ("CMYK", "YCbCr", "HSV")  # colour spaces a restored image is converted back to
SAME_AS = {"MPO": "JPEG"}  # a photograph with further images behind it, as cameras write
LOSSY = ("JPEG", "WEBP", "AVIF")


@dataclass(frozen=True)
class Photo:
    """A photograph: colours (1 or 3, height, width) in [0, 1], its opacity beside them, and the form of its file.

    ``bits`` are 8, 16, or 32 for floating-point numbers. Palettes and black-and-white are written back as full
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

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.colour.shape[2], self.colour.shape[1]

    def write(self, path: Path, colour: Tensor, alpha: Tensor | None) -> None:
        """Write other colours and opacity in the form of this photograph, whole or not at all."""
        channels = [colour] if alpha is None else [colour, alpha.unsqueeze(0)]
        numbers = _numbers(torch.cat(channels), self.bits)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial:
            if self.format == "tifffile":
                _write_deep_tiff(partial, numbers, self.extras)
            else:
                _picture(numbers, self.mode).save(partial, format=self.format, **self.extras)


def read_photo(path: str | Path) -> Photo:
    """Read a photograph of any format that Pillow reads; grey, colour, with opacity, of 8 or 16 bits.

    A camera's note on which side is up is followed. Of an animation the first frame is taken.
    """
    from PIL import Image, UnidentifiedImageError

    path = Path(path)
    if path.is_dir():
        raise DataMissing(f"{path} is a folder, not an image")
    if not path.is_file():
        raise DataMissing(f"there is no image {path}")
    try:
        with Image.open(path) as picture:
            return _read(path, picture)
    except UnidentifiedImageError:
        raise DataDamaged(f"{path} is not an image of a known format") from None
    except DataDamaged:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, zlib.error, Image.DecompressionBombError) as error:
        raise DataDamaged(f"{path} is not an image that can be read: {error}") from error


def _read(path: Path, picture: Image.Image) -> Photo:
    from PIL import ImageOps

    if picture.format == "TIFF" and _bits_per_sample(picture) == 16 and len(picture.getbands()) > 1:
        return _read_deep_tiff(path)
    if picture.format == "PNG" and ";16" in str(getattr(picture, "tile", "")) and picture.mode in ("RGB", "RGBA"):
        raise DataDamaged(f"{path} is a colour PNG of 16 bits, of which 8 would be lost: convert it to TIFF")
    extras = {"icc_profile": picture.info["icc_profile"]} if picture.info.get("icc_profile") else {}
    source, mode, transparent = picture.format or "PNG", picture.mode, picture.has_transparency_data
    upright = ImageOps.exif_transpose(picture)
    if exif := upright.getexif().tobytes():
        extras["exif"] = exif
    values, bits = _values(upright, transparent)
    pixels = torch.from_numpy(values).permute(2, 0, 1)
    colour, alpha = (pixels[:-1], pixels[-1].contiguous()) if transparent else (pixels, None)
    kept = mode if mode in KEPT_MODES else _mode(len(colour), transparent, bits)
    form, suffix, extras = _form(SAME_AS.get(source, source), path.suffix, kept, extras)
    return Photo(path, colour.contiguous(), alpha, bits, form, kept, suffix, extras)


def _values(picture: Image.Image, transparent: bool) -> tuple[Array, int]:
    """Return (height, width, channels) in [0, 1], opacity last, and the bits they had."""
    if picture.mode == "F":
        grey = np.array(picture, dtype=np.float32)
        if not (np.isfinite(grey).all() and grey.min() >= 0 and grey.max() <= 1):
            raise ValueError("floating-point pixels must lie in [0, 1]")
        return grey[:, :, None], 32
    if picture.mode.startswith("I"):
        deep = np.array(picture).astype(np.float32) / LARGEST[16]
        if not (deep.min() >= 0 and deep.max() <= 1):
            raise ValueError("its values exceed 16 bits")
        return deep[:, :, None], 16
    grey_only = picture.mode in (*GREY_MODES, "LA", "La")
    wanted = ("LA" if transparent else "L") if grey_only else ("RGBA" if transparent else "RGB")
    values = np.array(picture.convert(wanted), dtype=np.float32) / LARGEST[8]
    return values.reshape(*values.shape[:2], -1), 8


def _mode(channels: int, transparent: bool, bits: int) -> str:
    if channels == 3:
        return "RGBA" if transparent else "RGB"
    return "LA" if transparent else {8: "L", 16: "I;16", 32: "F"}[bits]


def _form(form: str, suffix: str, mode: str, extras: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return a format that can hold the mode, its suffix and its options: the file's own if possible."""
    from PIL import Image

    if form in LOSSY:
        extras = {**extras, "quality": 95}
    try:  # what a format holds can only be found out by writing it
        Image.new(mode, (1, 1)).save(io.BytesIO(), format=form, **extras)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ("TIFF", ".tif", {}) if mode == "F" else ("PNG", ".png", {})
    return form, suffix, extras


def _numbers(values: Tensor, bits: int) -> Array:
    """Return (height, width, channels) in the numbers of a file."""
    values = values.clamp(0, 1).permute(1, 2, 0).cpu()
    if bits == 32:
        return values.float().numpy()
    whole_numbers = (values.double() * LARGEST[bits]).round().numpy()
    return whole_numbers.astype(np.uint8 if bits == 8 else np.uint16)


def _picture(numbers: Array, mode: str) -> Image.Image:
    from PIL import Image

    picture = Image.fromarray(numbers[:, :, 0] if numbers.shape[2] == 1 else numbers)
    return picture if picture.mode == mode else picture.convert(mode)


def _bits_per_sample(picture: Image.Image) -> int:
    found = getattr(picture, "tag_v2", {}).get(258, 8)
    return max(found) if isinstance(found, tuple) else int(found)


def _read_deep_tiff(path: Path) -> Photo:
    """Read colours of 16 bits, which Pillow reduces to 8."""
    import tifffile

    numbers = tifffile.imread(path, key=0)
    numbers = np.moveaxis(numbers, 0, -1) if numbers.ndim == 3 and numbers.shape[0] in (2, 3, 4) else numbers
    if numbers.dtype != np.uint16 or numbers.ndim != 3 or numbers.shape[-1] not in (2, 3, 4):
        raise ValueError(f"16-bit pixels of shape {numbers.shape} and type {numbers.dtype} are not supported")
    pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(numbers, -1, 0)).astype(np.float32)) / LARGEST[16]
    colours = 3 if len(pixels) > 2 else 1
    alpha = pixels[colours] if len(pixels) > colours else None
    options: dict[str, Any] = {"photometric": "rgb" if colours == 3 else "minisblack", "planarconfig": "contig"}
    if alpha is not None:
        options["extrasamples"] = ["unassalpha"]
    return Photo(path, pixels[:colours].contiguous(), alpha, 16, "tifffile", "", path.suffix, options)


def _write_deep_tiff(path: Path, numbers: Array, options: dict[str, Any]) -> None:
    import tifffile

    with path.open("wb") as file:  # by its name it would be no TIFF
        tifffile.imwrite(file, numbers, **options)
