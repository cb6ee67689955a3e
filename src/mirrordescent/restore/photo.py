"""Photographs on disk: pixels to work on, and what is needed to write them back in the same form."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mirrordescent.data.errors import DataDamaged
from mirrordescent.data.images import opened
from mirrordescent.files import whole
from mirrordescent.images import Array, values_of

if TYPE_CHECKING:
    from PIL import Image

LARGEST = {8: 255, 16: 65535}  # bits → the number of full brightness
GREY_MODES = {8: "L", 16: "I;16", 32: "F"}
KEPT_MODES = ("CMYK", "YCbCr", "HSV")  # colour spaces a restored image is converted back to
SAME_AS = {"MPO": "JPEG"}  # a photograph with further images behind it, as cameras write
LOSSY = ("JPEG", "WEBP", "AVIF")
DEEP_TIFF = "tifffile"  # the format of 16-bit colours, which Pillow would reduce to 8

Form: TypeAlias = tuple[str, str, str, dict[str, Any]]  # format, mode, suffix and extras of a Photo


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
            if self.format != DEEP_TIFF:
                _picture(numbers, self.mode).save(partial, format=self.format, **self.extras)
                return
            import tifffile

            with partial.open("wb") as file:  # by its name it would be no TIFF
                tifffile.imwrite(file, numbers, **self.extras)


def read_photo(path: str | Path) -> Photo:
    """Read a photograph of any format that Pillow reads; grey, colour, with opacity, of 8 or 16 bits.

    A camera's note on which side is up is followed. Of an animation the first frame is taken.
    """
    path = Path(path)
    with opened(path, path) as picture:
        deep = picture.format == "TIFF" and len(picture.getbands()) > 1 and _bits_per_sample(picture) == 16
        values, bits, form = _read_deep_tiff(path) if deep else _read(picture, path)
    pixels = torch.from_numpy(values).permute(2, 0, 1)
    colour, alpha = (pixels[:-1], pixels[-1].contiguous()) if len(pixels) in (2, 4) else (pixels, None)
    return Photo(path, colour.contiguous(), alpha, bits, *form)


def _read(picture: Image.Image, path: Path) -> tuple[Array, int, Form]:
    """Return (height, width, channels) in [0, 1], opacity last, the bits they had, and their form."""
    from PIL import ImageOps

    if picture.format == "PNG" and ";16" in str(getattr(picture, "tile", "")) and picture.mode in ("RGB", "RGBA"):
        raise DataDamaged(f"{path} is a colour PNG of 16 bits, of which 8 would be lost: convert it to TIFF")
    upright = ImageOps.exif_transpose(picture)
    values, bits = values_of(upright)
    mode = {1: GREY_MODES[bits], 2: "LA", 3: "RGB", 4: "RGBA"}[values.shape[2]]
    notes = {"icc_profile": picture.info.get("icc_profile"), "exif": upright.getexif().tobytes()}
    extras: dict[str, Any] = {name: note for name, note in notes.items() if note}
    kept, form = picture.mode if picture.mode in KEPT_MODES else mode, picture.format or "PNG"
    return values, bits, _form(SAME_AS.get(form, form), kept, path.suffix, extras)


def _form(form: str, mode: str, suffix: str, extras: dict[str, Any]) -> Form:
    """Return the form of a file as it is, if it can hold the mode, else another."""
    from PIL import Image

    extras = extras | ({"quality": 95} if form in LOSSY else {})
    try:  # what a format holds can only be found out by writing it
        Image.new(mode, (1, 1)).save(io.BytesIO(), format=form, **extras)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ("TIFF", mode, ".tif", {}) if mode == "F" else ("PNG", mode, ".png", {})
    return form, mode, suffix, extras


def _numbers(values: Tensor, bits: int) -> Array:
    """Return (height, width, channels) in the numbers of a file."""
    values = values.clamp(0, 1).permute(1, 2, 0).cpu()
    if bits == 32:
        return values.float().numpy()
    return (values.double() * LARGEST[bits]).round().numpy().astype(f"uint{bits}")


def _picture(numbers: Array, mode: str) -> Image.Image:
    from PIL import Image

    picture = Image.fromarray(numbers[:, :, 0] if numbers.shape[2] == 1 else numbers)
    return picture if picture.mode == mode else picture.convert(mode)


def _bits_per_sample(picture: Image.Image) -> int:
    found = getattr(picture, "tag_v2", {}).get(258, 8)
    return max(found) if isinstance(found, tuple) else int(found)


def _read_deep_tiff(path: Path) -> tuple[Array, int, Form]:
    """Read colours of 16 bits, as ``_read`` does those of 8."""
    import tifffile

    numbers = tifffile.imread(path, key=0)
    numbers = np.moveaxis(numbers, 0, -1) if numbers.ndim == 3 and numbers.shape[0] in (2, 3, 4) else numbers
    if numbers.dtype != np.uint16 or numbers.ndim != 3 or numbers.shape[-1] not in (2, 3, 4):
        raise ValueError(f"16-bit pixels of shape {numbers.shape} and type {numbers.dtype} are not supported")
    extras: dict[str, Any] = {"photometric": "rgb" if numbers.shape[-1] > 2 else "minisblack", "planarconfig": "contig"}
    extras |= {"extrasamples": ["unassalpha"]} if numbers.shape[-1] in (2, 4) else {}
    return numbers.astype(np.float32) / np.float32(LARGEST[16]), 16, (DEEP_TIFF, "", path.suffix, extras)
