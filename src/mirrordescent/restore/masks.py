"""Missing pixels of a photograph: by a mask, by transparency, by a colour, or at random."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.restore.photo import LOSSY, Photo, read_photo
from mirrordescent.restore.sources import Source, companion_file

White: TypeAlias = Literal["known", "missing"]

SUSPICIOUS_SHARE = 0.5  # a mask with more missing pixels may be inverted
SUSPICIOUS_GREYS = 0.1  # an image with more pixels between black and white may not be a mask
# Largest difference of a channel from the marking colour.
EXACT = 1 / 512
BLENDED = 0.35  # next to marked pixels, and in lossy formats
NEAR = 7  # side of the neighbourhood of a marked pixel, in pixels


class KnownPixels(NamedTuple):
    """The known pixels of a photograph.

    Args:
        mask: True where pixels are known, (height, width).
        alpha: Opacity of the restored photograph, or None if it has none.
        words: How missing pixels were found.
        question: A doubt about the mask, or an empty string.
    """

    mask: Tensor
    alpha: Tensor | None
    words: str
    question: str = ""

    @property
    def missing(self) -> float:
        """Share of the pixels that is missing."""
        return 1 - float(self.mask.float().mean())


@dataclass(frozen=True)
class Masks:
    """How missing pixels are found. Without arguments, transparent pixels are missing.

    Args:
        place: Image of the mask, or folder of masks with the names of the photographs. Transparent
            pixels of a mask count as white.
        white: Meaning of white in a mask: "known", or "missing" as for ``inpaint_biharmonic`` of
            scikit-image.
        colour: Colour that marks missing pixels in the photograph, such as "#ff00ff". Pixels next
            to marked ones are missing too, since strokes are blended at their edges.
        missing: Share of the pixels to remove at random, for a trial.
        seed: Seed for the random removal.
    """

    place: Path | None = None
    white: White = "known"
    colour: str | None = None
    missing: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.missing is not None and not 0 < self.missing < 1:
            raise ValueError(f"missing must be between 0 and 1, got {self.missing}")
        given = [each for each in (self.place, self.colour, self.missing) if each is not None]
        if len(given) > 1:
            raise ValueError("give only one of --mask, --mask-colour and --missing")
        if self.colour is not None:
            _rgb(self.colour)

    def known_pixels(self, photo: Photo, source: Source) -> KnownPixels:
        """Return the known pixels of a photograph.

        Args:
            photo: The photograph.
            source: File of the photograph, whose name identifies its mask in a folder.
        """
        known = self._find(photo, source)
        if not bool(known.mask.any()):
            message = f"no pixel of {photo.path} is known, so it cannot be restored"
            raise ValueError(f"{message}. {known.question}" if known.question else message)
        return known

    def _find(self, photo: Photo, source: Source) -> KnownPixels:
        if self.place is not None:
            return self._from_image(photo, companion_file(self.place, source))
        if self.colour is not None:
            mask = _unmarked(photo, _rgb(self.colour))
            if bool(mask.all()):
                raise ValueError(f"no pixel of {photo.path} has the colour {self.colour}")
            return KnownPixels(mask, photo.alpha, f"{self.colour} = missing")
        if self.missing is not None:
            generator = torch.Generator().manual_seed(self.seed)
            mask = torch.rand(photo.colour.shape[1:], generator=generator) >= self.missing
            return KnownPixels(mask, photo.alpha, "removed for a trial")
        if photo.alpha is not None and bool((photo.alpha == 0).any()):
            mask = photo.alpha > 0
            opaque = torch.where(mask, photo.alpha, 1.0)
            return KnownPixels(mask, opaque, "transparent = missing")
        raise ValueError(
            f"no missing pixels are given for {photo.path}: add a mask (--mask), mark them by a "
            "colour (--mask-colour), make them transparent, or remove a share of the pixels for "
            "a trial (--missing)"
        )

    def _from_image(self, photo: Photo, path: Path) -> KnownPixels:
        image = read_same_size(path, photo)
        light = image.colour.mean(0)
        if image.alpha is not None:
            light = light * image.alpha + (1 - image.alpha)
        mask = (light >= 0.5) == (self.white == "known")
        known = KnownPixels(mask, photo.alpha, f"white = {self.white}")
        greys = float(((light > 0.1) & (light < 0.9)).float().mean())
        if greys > SUSPICIOUS_GREYS:
            question = f"{path} has many greys: is it a mask? Its lighter half counts as white"
            return known._replace(question=question)
        if known.missing > SUSPICIOUS_SHARE:
            other = "missing" if self.white == "known" else "known"
            question = (
                f"{path} says that {known.missing:.0%} of the pixels are missing: "
                f"if white means {other} there, add --mask-white {other}"
            )
            return known._replace(question=question)
        return known


def _unmarked(photo: Photo, colour: list[float]) -> Tensor:
    """Return the pixels that are not marked by a colour.

    A pixel is marked if it has the colour, is a blend of it next to one that has, or touches a
    marked pixel.
    """

    def dilate(marked: Tensor, width: int) -> Tensor:
        return F.max_pool2d(marked.float()[None], width, stride=1, padding=width // 2)[0] > 0

    difference = (photo.colour - torch.tensor(colour)[:, None, None]).abs().amax(0)
    marked = difference <= (BLENDED if photo.format in LOSSY else EXACT)
    blended = dilate(marked, NEAR) & (difference <= BLENDED)
    return ~dilate(blended, 3)


def read_same_size(path: Path, photo: Photo, factor: int = 1) -> Photo:
    """Read an image that must have the size of a photograph, or a multiple of it."""
    image = read_photo(path)
    width, height = photo.size
    if image.size == (factor * width, factor * height):
        return image
    required = "both must have the same size"
    if factor > 1:
        required = f"it must be {factor} times as large"
    raise ValueError(f"{path} is {_size(image)}, but {photo.path} is {_size(photo)}: {required}")


def _size(photo: Photo) -> str:
    width, height = photo.size
    return f"{width}×{height}"


def _rgb(colour: str) -> list[float]:
    """Return red, green and blue in [0, 1].

    >>> _rgb("#ff0033")
    [1.0, 0.0, 0.2]
    """
    if not re.fullmatch(r"#?[0-9a-fA-F]{6}", colour):
        raise ValueError(
            f"a colour must have the form '#rrggbb', such as '#ff00ff', got {colour!r}"
        )
    digits = colour.removeprefix("#")
    return [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
