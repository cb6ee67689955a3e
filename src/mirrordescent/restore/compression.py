"""How a JPEG file has stored a photograph."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from PIL import Image

# Quantisation steps of the JPEG standard for quality 50, row by row.
STANDARD_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
STANDARD_CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *([(99,) * 8] * 4),
)


class Compression(NamedTuple):
    """The quantisation of a JPEG file.

    Args:
        luma: Steps of the 64 DCT coefficients of brightness, row by row, for values up to 255.
        chroma: Steps of the coefficients of colour; those of brightness for grey files.
        down: Ratio of the heights of brightness and colour, 1 or 2.
        across: Ratio of their widths.
    """

    luma: tuple[int, ...]
    chroma: tuple[int, ...]
    down: int = 1
    across: int = 1

    @property
    def halved(self) -> bool:
        """Whether colours are stored at a lower resolution than brightness."""
        return self.down * self.across > 1


def compression_of(picture: Image.Image) -> Compression | None:
    """Return the compression of a Pillow image that was read from a JPEG file, else None."""
    tables = getattr(picture, "quantization", None)
    layers = getattr(picture, "layer", None)
    if not tables or not layers:
        return None
    luma = tables.get(layers[0][3])
    chroma = tables.get(layers[-1][3])
    if luma is None or chroma is None or {len(luma), len(chroma)} != {64}:
        return None
    across = max(layer[1] for layer in layers) // min(layer[1] for layer in layers)
    down = max(layer[2] for layer in layers) // min(layer[2] for layer in layers)
    return Compression(tuple(luma), tuple(chroma), down, across)


def standard_compression(quality: int, *, halved: bool = True) -> Compression:
    """Return the compression by the tables of the JPEG standard.

    Args:
        quality: Quality from 1 to 100, on the scale of the Independent JPEG Group.
        halved: Whether colours have half the resolution in both directions.

    >>> standard_compression(75).luma[:4]
    (8, 6, 5, 8)
    """
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality

    def scaled(table: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        steps = (step for row in table for step in row)
        return tuple(min(255, max(1, (step * scale + 50) // 100)) for step in steps)

    ratio = 2 if halved else 1
    return Compression(scaled(STANDARD_LUMA), scaled(STANDARD_CHROMA), ratio, ratio)
