"""Small pieces of HTML for notebooks: tables, curves and pictures, without other packages."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape

from torch import Tensor

WIDTH = 320
HEIGHT = 160
MARGIN = 12
SIDE = 160
"""Side of a picture in pixels of the page."""

MOST_PIXELS = 512
"""Largest side of an embedded picture. Larger ones are subsampled."""

MOST_PICTURES = 4
"""Largest number of pictures of a batch."""


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Return a table of names and values.

    >>> table([("steps", "<5>")])
    '<table><tr><th>steps</th><td>&lt;5&gt;</td></tr></table>'
    """
    cells = [f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows]
    return f"<table>{''.join(cells)}</table>"


def curve(xs: Sequence[float], ys: Sequence[float], label: str) -> str:
    """Return a curve as SVG. The vertical axis is logarithmic if all values are positive.

    Args:
        xs: Horizontal positions, increasing.
        ys: Values; those that are not finite are left out.
        label: Text below the curve.
    """
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
    if len(points) < 2:
        return ""
    heights = [y for _, y in points]
    if min(heights) > 0:
        heights = [math.log10(y) for y in heights]
    left = points[0][0]
    across = (points[-1][0] - left) or 1.0
    low = min(heights)
    span = (max(heights) - low) or 1.0
    places = []
    for (x, _), height in zip(points, heights, strict=True):
        column = MARGIN + (WIDTH - 2 * MARGIN) * (x - left) / across
        row = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (height - low) / span
        places.append(f"{column:.1f},{row:.1f}")
    first = points[0][1]
    last = points[-1][1]
    line = f'<polyline points="{" ".join(places)}" fill="none" stroke="#2a6fb0" stroke-width="2"/>'
    caption = f"{escape(label)}: {first:.4g} → {last:.4g}"
    return (
        f'<figure style="display:inline-block;margin:4px"><svg width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{caption}">{line}</svg><figcaption>{caption}</figcaption></figure>'
    )


def picture(image: Tensor) -> str:
    """Return an image element of pixels (1 or 3 channels, height, width) from 0 to 1."""
    data = base64.b64encode(png(image)).decode()
    return (
        f'<img src="data:image/png;base64,{data}" alt="image" '
        f'style="height:{SIDE}px;image-rendering:pixelated;margin:4px"/>'
    )


def png(image: Tensor) -> bytes:
    """Return an image as the bytes of a PNG file."""
    stride = -(-max(image.shape[-2:]) // MOST_PIXELS)
    pixels = image.detach().cpu()[:, ::stride, ::stride].float().nan_to_num().clamp(0, 1)
    levels = (255 * pixels).round().byte().permute(1, 2, 0).contiguous()
    height, width, channels = levels.shape
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in levels)
    colour_type = 0 if channels == 1 else 2
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + check


def pictures(x: object) -> list[str]:
    """Return elements of the first images of a batch of grey or colour images, else nothing."""
    if not isinstance(x, Tensor) or x.ndim != 4 or x.shape[1] not in (1, 3) or min(x.shape) < 1:
        return []
    return [picture(image) for image in x[:MOST_PICTURES]]


def details(summary: str, text: str) -> str:
    """Return a summary that shows a text when it is clicked.

    >>> details("A map", "<…>")
    '<details><summary>A map</summary><pre>&lt;…&gt;</pre></details>'
    """
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"
