"""PNG files with 16-bit colours, which Pillow would reduce to 8 bits, and their metadata."""

import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mirrordescent._internal.image_arrays import Array
from mirrordescent.data.errors import DataDamaged

SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEADER = ">IIBBBBB"  # width, height, bits, colour type, compression, filter, interlace
CHANNELS = {2: 3, 6: 4}  # number of channels by supported colour type
METADATA = (b"iCCP", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"eXIf", b"tEXt", b"iTXt", b"zTXt")
MAX_BYTES = 1 << 30  # of pixels


class DeepPNG(NamedTuple):
    """An image with 16-bit colours.

    Args:
        numbers: Pixels, (height, width, 3 or 4), of type uint16.
        notes: Chunks of metadata: name and content.
    """

    numbers: Array
    notes: tuple[tuple[bytes, bytes], ...]


def is_deep_png(path: Path) -> bool:
    """Return whether a file is a PNG with 16-bit colours."""
    with path.open("rb") as file:
        start = file.read(len(SIGNATURE) + 8 + 13)
    if len(start) < 29 or not start.startswith(SIGNATURE) or start[12:16] != b"IHDR":
        return False
    return start[24] == 16 and start[25] in CHANNELS


def read_deep_png(path: Path) -> DeepPNG:
    """Read a PNG file with 16-bit colours."""
    chunks = _chunks(path)
    width, height, _, kind, _, _, interlaced = struct.unpack(HEADER, dict(chunks)[b"IHDR"])
    channels = CHANNELS[kind]
    if interlaced:
        raise DataDamaged(
            f"{path} is an interlaced 16-bit PNG: save it without interlacing, or as TIFF"
        )
    size = height * (1 + width * channels * 2)
    if not 0 < size <= MAX_BYTES:
        raise DataDamaged(f"{path} must have at most {MAX_BYTES} bytes of pixels, got {size}")
    compressed = b"".join(content for name, content in chunks if name == b"IDAT")
    raw = zlib.decompressobj().decompress(compressed, size)
    if len(raw) != size:
        raise DataDamaged(f"{path} is cut off")
    rows = np.frombuffer(raw, np.uint8).reshape(height, -1)
    pixels = _unfiltered(rows[:, 0], rows[:, 1:].reshape(height, width, 2 * channels))
    numbers = pixels.reshape(height, width, channels, 2)
    deep = numbers[..., 0].astype(np.uint16) << 8 | numbers[..., 1]
    return DeepPNG(deep, tuple(chunk for chunk in chunks if chunk[0] in METADATA))


def write_deep_png(path: Path, picture: DeepPNG) -> None:
    """Write a PNG file with 16-bit colours, every row as its difference to the one above."""
    height, width, channels = picture.numbers.shape
    rows = np.ascontiguousarray(picture.numbers, ">u2").view(np.uint8).reshape(height, -1)
    filtered = np.empty((height, 1 + rows.shape[1]), np.uint8)
    filtered[:, 0] = 2
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    kind = next(kind for kind, count in CHANNELS.items() if count == channels)
    header = struct.pack(HEADER, width, height, 16, kind, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        *picture.notes,
        (b"IDAT", zlib.compress(filtered.tobytes(), 6)),
        (b"IEND", b""),
    ]
    with path.open("wb") as file:
        file.write(SIGNATURE)
        for name, content in chunks:
            file.write(struct.pack(">I", len(content)) + name + content)
            file.write(struct.pack(">I", zlib.crc32(name + content)))


def _chunks(path: Path) -> list[tuple[bytes, bytes]]:
    """Return names and contents of the chunks of a file, with their checksums verified."""
    data = path.read_bytes()
    at = len(SIGNATURE)
    chunks = []
    while at + 12 <= len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        content = data[at + 8 : at + 8 + length]
        (check,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length].rjust(4, b"\0"))
        if len(content) < length or zlib.crc32(name + content) != check:
            raise DataDamaged(
                f"{path} is damaged: the checksum of its part {name.decode('latin-1')} is wrong"
            )
        chunks.append((name, content))
        at += 12 + length
    return chunks


def _unfiltered(filters: Array, rows: Array) -> Array:
    """Undo the filters of rows: add to every pixel its prediction from its neighbours.

    A pixel is predicted from those to the left, above, and above left. So all pixels of an
    antidiagonal can be computed at once. They are the columns of a skewed image, in which every row
    is shifted by one more pixel.

    Args:
        filters: Filter of every row, (height,).
        rows: Filtered pixels, (height, width, bytes per pixel).
    """
    height, width, depth = rows.shape
    if not np.isin(filters, (0, 1, 2, 3, 4)).all():
        raise DataDamaged("a row has an unknown filter")
    # A column of zeros to the left and a row of zeros above serve as neighbours at the border.
    skewed = np.zeros((height + 1, width + height + 1, depth), np.int16)
    for row in range(height):
        skewed[row + 1, row + 2 : row + 2 + width] = rows[row]
    kinds = filters.astype(np.int16)[:, None]
    for column in range(2, width + height + 1):
        first = max(0, column - 1 - width)
        last = min(height, column - 1)
        here = slice(first + 1, last + 1)
        above = slice(first, last)
        left = skewed[here, column - 1]
        up = skewed[above, column - 1]
        corner = skewed[above, column - 2]
        kind = kinds[first:last]
        predicted = np.select(
            [kind == 1, kind == 2, kind == 3, kind == 4],
            [left, up, (left + up) >> 1, _paeth(left, up, corner)],
            0,
        )
        skewed[here, column] = (skewed[here, column] + predicted) & 255
    unskewed = [skewed[row + 1, row + 2 : row + 2 + width] for row in range(height)]
    return np.stack(unskewed).astype(np.uint8)


def _paeth(left: Array, up: Array, corner: Array) -> Array:
    """Return the neighbour that is closest to left + up − corner."""
    guess = left + up - corner
    to_left = np.abs(guess - left)
    to_up = np.abs(guess - up)
    to_corner = np.abs(guess - corner)
    up_or_corner = np.where(to_up <= to_corner, up, corner)
    return np.where((to_left <= to_up) & (to_left <= to_corner), left, up_or_corner)
