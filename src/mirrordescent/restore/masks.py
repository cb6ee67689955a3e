"""Which pixels of a photograph are known: by a mask, by transparency, by a colour, or at random for
a trial.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.restore.photo import LOSSY, Photo, read_photo
from mirrordescent.restore.sources import Source, beside

White: TypeAlias = Literal["known", "missing"]

MOST_MISSING = 0.5  # beyond, a mask looks inverted
GREYS = 0.1  # share of pixels between black and white, beyond which an image looks like no mask
# how far a marked colour may be off: in itself; near by, or in a lossy format
EXACT = 1 / 512
BLENDED = 0.35
NEAR = 7  # pixels across


class Known(NamedTuple):
    """Which pixels are known, the opacity once the others are filled in, and what there is to say
    about that.
    """

    mask: Tensor
    alpha: Tensor | None
    words: str
    question: str = ""

    @property
    def missing(self) -> float:
        """The share of the pixels that is missing."""
        return 1 - float(self.mask.float().mean())


@dataclass(frozen=True)
class Masks:
    """Where it says which pixels are missing.

    Args:
        place: an image, or a folder of them with the photographs' names. Its transparent pixels
            count as white.
        white: what white means there; missing, as for scikit-image's ``inpaint_biharmonic``, if not
            known.
        colour: marks missing pixels in the photograph itself, such as #ff00ff; their neighbours,
            which strokes are blended with at their edges, count as missing, too.
        missing: share of the pixels to remove at random, for a trial.
        seed: decides which pixels are removed.
    """

    place: Path | None = None
    white: White = "known"
    colour: str | None = None
    missing: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.missing is not None and not 0 < self.missing < 1:
            raise ValueError(f"missing must be a share between 0 and 1, got {self.missing}")
        if sum(each is not None for each in (self.place, self.colour, self.missing)) > 1:
            raise ValueError(
                "a mask says which pixels are missing, or a colour does, or a share of them is removed: not both"
            )
        if self.colour is not None:
            _parsed(self.colour)

    def known(self, photo: Photo, source: Source) -> Known:
        """Return which pixels of a photograph are known, or say how to tell."""
        found = self._known(photo, source)
        if not bool(found.mask.any()):
            raise ValueError(
                f"no pixel of {photo.path} is known: there is nothing to restore it from. {found.question}".strip()
            )
        return found

    def _known(self, photo: Photo, source: Source) -> Known:
        if self.place is not None:
            return self._drawn(photo, beside(self.place, source))
        if self.colour is not None:
            mask = _unmarked(photo, _parsed(self.colour))
            if bool(mask.all()):
                raise ValueError(f"no pixel of {photo.path} has the colour {self.colour}")
            return Known(mask, photo.alpha, f"{self.colour} = missing")
        if self.missing is not None:
            generator = torch.Generator().manual_seed(self.seed)
            mask = torch.rand(photo.colour.shape[1:], generator=generator) >= self.missing
            return Known(mask, photo.alpha, "removed for a trial")
        if photo.alpha is not None and bool((photo.alpha == 0).any()):
            mask = photo.alpha > 0
            return Known(mask, torch.where(mask, photo.alpha, 1.0), "transparent = missing")
        raise ValueError(
            f"which pixels of {photo.path} are missing? Give a mask (--mask), mark them by a colour (--mask-colour), "
            "make them transparent, or remove a share of them for a trial (--missing)"
        )

    def _drawn(self, photo: Photo, path: Path) -> Known:
        drawn = same_size(path, photo)
        light = drawn.colour.mean(0)
        if drawn.alpha is not None:
            light = light * drawn.alpha + (1 - drawn.alpha)
        mask = (light >= 0.5) == (self.white == "known")
        share = 1 - float(mask.float().mean())
        other = "missing" if self.white == "known" else "known"
        question = ""
        if float(((light > 0.1) & (light < 0.9)).float().mean()) > GREYS:
            question = f"{path} has many greys: is it a mask? Its lighter half counts as white"
        elif share > MOST_MISSING:
            question = f"{path} says that {share:.0%} is missing: if white means {other} there, add --mask-white {other}"
        return Known(mask, photo.alpha, f"white = {self.white}", question)


def _unmarked(photo: Photo, colour: list[float]) -> Tensor:
    """Return which pixels neither have a colour, nor something of it near pixels that have, nor
    touch such a pixel.
    """

    def dilate(marked: Tensor, width: int) -> Tensor:
        return F.max_pool2d(marked.float()[None], width, stride=1, padding=width // 2)[0] > 0

    off = (photo.colour - torch.tensor(colour)[:, None, None]).abs().amax(0)
    marked = off <= (BLENDED if photo.format in LOSSY else EXACT)
    return ~dilate(dilate(marked, NEAR) & (off <= BLENDED), 3)


def same_size(path: Path, photo: Photo) -> Photo:
    """Read an image that goes with a photograph."""
    other = read_photo(path)
    if other.size != photo.size:
        size, wanted = ("×".join(map(str, each.size)) for each in (other, photo))
        raise ValueError(f"{path} is {size}, but {photo.path} is {wanted}")
    return other


def _parsed(colour: str) -> list[float]:
    """Return red, green and blue in [0, 1].

    >>> _parsed("#ff0033")
    [1.0, 0.0, 0.2]
    """
    if not re.fullmatch(r"#?[0-9a-fA-F]{6}", colour):
        raise ValueError(f"a colour is given as '#rrggbb', such as '#ff00ff', got {colour!r}")
    digits = colour.removeprefix("#")
    return [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
