"""PNG with colours of 16 bits, which Pillow reduces to 8: read and written here, with all that is
noted in the file.
"""

import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mirrordescent._internal.image_arrays import Array
from mirrordescent.data.errors import DataDamaged

SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEADER = ">IIBBBBB"  # width, height, bits, colour type, compression, filter, interlace
CHANNELS = {2: 3, 6: 4}  # of the colour types that this is for
KEPT = (b"iCCP", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"eXIf", b"tEXt", b"iTXt", b"zTXt")
LARGEST = 1 << 30  # bytes of pixels


class DeepPNG(NamedTuple):
    """Pixels (height, width, 3 or 4) of 16 bits, and the notes of the file as they are."""

    numbers: Array
    notes: tuple[tuple[bytes, bytes], ...]


def is_deep_png(path: Path) -> bool:
    """Tell whether a file is a PNG with colours of 16 bits."""
    with path.open("rb") as file:
        start = file.read(len(SIGNATURE) + 8 + 13)
    if len(start) < 29 or not start.startswith(SIGNATURE) or start[12:16] != b"IHDR":
        return False
    return start[24] == 16 and start[25] in CHANNELS


def read_deep_png(path: Path) -> DeepPNG:
    """Read such a file."""
    chunks = _chunks(path)
    width, height, _, kind, _, _, interlaced = struct.unpack(HEADER, dict(chunks)[b"IHDR"])
    channels = CHANNELS[kind]
    if interlaced:
        raise DataDamaged(
            f"{path} is an interlaced PNG of 16 bits: save it without interlacing, or as TIFF"
        )
    size = height * (1 + width * channels * 2)
    if not 0 < size <= LARGEST:
        raise DataDamaged(f"{path} would have {size} bytes of pixels")
    packed = zlib.decompressobj()
    raw = packed.decompress(b"".join(content for name, content in chunks if name == b"IDAT"), size)
    if len(raw) != size:
        raise DataDamaged(f"{path} is cut off")
    rows = np.frombuffer(raw, np.uint8).reshape(height, -1)
    pixels = _unfiltered(rows[:, 0], rows[:, 1:].reshape(height, width, 2 * channels))
    numbers = pixels.reshape(height, width, channels, 2)
    deep = numbers[..., 0].astype(np.uint16) << 8 | numbers[..., 1]
    return DeepPNG(deep, tuple(chunk for chunk in chunks if chunk[0] in KEPT))


def write_deep_png(path: Path, picture: DeepPNG) -> None:
    """Write such a file, every row as the difference to the one above."""
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
    data = path.read_bytes()
    at = len(SIGNATURE)
    found = []
    while at + 12 <= len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        content = data[at + 8 : at + 8 + length]
        (check,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length].rjust(4, b"\0"))
        if len(content) < length or zlib.crc32(name + content) != check:
            raise DataDamaged(
                f"{path} is damaged: the checksum of its part {name.decode('latin-1')} is wrong"
            )
        found.append((name, content))
        at += 12 + length
    return found


def _unfiltered(filters: Array, rows: Array) -> Array:
    """Undo the filters of rows (height, width, bytes of a pixel): each pixel adds what it was
    predicted from.

    A pixel needs the one before it, the one above and the one before that. So do all of a diagonal
    at once.
    """
    height, width, depth = rows.shape
    if not np.isin(filters, (0, 1, 2, 3, 4)).all():
        raise DataDamaged("a row has an unknown filter")
    # One column before and one row above, of zeros; diagonals of an image are columns of the skewed
    # one.
    skewed = np.zeros((height + 1, width + height + 1, depth), np.int16)
    for row in range(height):
        skewed[row + 1, row + 2 : row + 2 + width] = rows[row]
    kind = filters.astype(np.int16)[:, None]
    for column in range(2, width + height + 1):
        first = max(0, column - 1 - width)
        last = min(height, column - 1)
        here = slice(first + 1, last + 1)
        above = slice(first, last)
        left = skewed[here, column - 1]
        up = skewed[above, column - 1]
        corner = skewed[above, column - 2]
        kinds = kind[first:last]
        guess = left + up - corner
        by_left, by_up, by_corner = (np.abs(guess - each) for each in (left, up, corner))
        paeth = np.where(
            (by_left <= by_up) & (by_left <= by_corner),
            left,
            np.where(by_up <= by_corner, up, corner),
        )
        predicted = np.select(
            [kinds == 1, kinds == 2, kinds == 3, kinds == 4], [left, up, (left + up) >> 1, paeth], 0
        )
        skewed[here, column] = (skewed[here, column] + predicted) & 255
    return np.stack([skewed[row + 1, row + 2 : row + 2 + width] for row in range(height)]).astype(
        np.uint8
    )
