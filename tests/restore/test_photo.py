"""Photographs come back in the form they were in."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from mirrordescent.data import DataDamaged, DataMissing
from mirrordescent.restore import read_photo


def numbers(*shape, dtype=np.uint8, seed=0):
    largest = np.iinfo(dtype).max
    return np.random.default_rng(seed).integers(0, largest, shape, dtype, endpoint=True)


def written_back(path, tmp_path):
    photo = read_photo(path)
    out = tmp_path / "out" / f"{path.stem}{photo.suffix}"
    photo.write(out, photo.colour, photo.alpha)
    assert [p.name for p in out.parent.iterdir()] == [out.name]  # nothing beside it
    return out


MODES = {
    "L": lambda: Image.fromarray(numbers(5, 4)),
    "LA": lambda: Image.fromarray(numbers(5, 4, 2)),
    "RGB": lambda: Image.fromarray(numbers(5, 4, 3)),
    "RGBA": lambda: Image.fromarray(numbers(5, 4, 4)),
    "I;16": lambda: Image.fromarray(numbers(5, 4, dtype=np.uint16)),
    "CMYK": lambda: Image.fromarray(numbers(5, 4, 3)).convert("CMYK"),
}


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [(m, s) for m in ("L", "LA", "RGB", "RGBA", "I;16") for s in ("png", "tif")]
    + [("CMYK", "tif"), ("RGB", "bmp"), ("RGB", "ppm"), ("L", "pgm")],
)
def test_pixels_mode_and_depth_are_kept(tmp_path, mode, suffix):
    picture = MODES[mode]()
    picture.save(tmp_path / f"in.{suffix}")
    with Image.open(written_back(tmp_path / f"in.{suffix}", tmp_path)) as again:
        assert again.mode == mode
        assert np.array_equal(np.asarray(again), np.asarray(picture))


@pytest.mark.parametrize("channels", [3, 4])
def test_colours_of_sixteen_bits_in_tiff(tmp_path, channels):
    deep = numbers(5, 6, channels, dtype=np.uint16)
    tifffile.imwrite(tmp_path / "deep.tif", deep, photometric="rgb")
    photo = read_photo(tmp_path / "deep.tif")
    assert (photo.bits, photo.size, photo.alpha is None) == (16, (6, 5), channels == 3)
    assert np.array_equal(tifffile.imread(written_back(tmp_path / "deep.tif", tmp_path)), deep)


def test_floating_point_pictures(tmp_path):
    grey = np.random.default_rng(0).random((5, 4), np.float32)
    Image.fromarray(grey).save(tmp_path / "grey.tif")
    with Image.open(written_back(tmp_path / "grey.tif", tmp_path)) as again:
        assert np.array_equal(np.asarray(again), grey)
    grey[0, 0] = np.nan
    Image.fromarray(grey).save(tmp_path / "grey.tif")
    with pytest.raises(DataDamaged, match="must lie in"):
        read_photo(tmp_path / "grey.tif")


def test_a_palette_becomes_colours(tmp_path):
    paletted = Image.new("P", (2, 1))
    paletted.putpalette([10, 20, 30, 200, 100, 0])
    paletted.putdata([0, 1])
    paletted.save(tmp_path / "p.png", transparency=1)
    photo = read_photo(tmp_path / "p.png")
    assert photo.mode == "RGBA"
    assert photo.alpha.tolist() == [[1, 0]]
    assert (photo.colour[:, 0, 0] * 255).tolist() == [10, 20, 30]


def test_a_transparent_grey_of_sixteen_bits_is_a_grey(tmp_path):
    deep = numbers(5, 4, dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "t.png", transparency=int(deep[0, 0]))
    assert read_photo(tmp_path / "t.png").alpha is None
    assert np.array_equal(np.asarray(Image.open(written_back(tmp_path / "t.png", tmp_path))), deep)


def test_a_photograph_taken_sideways_stands_upright_and_stays_so(tmp_path):
    exif = Image.Exif()
    exif[0x0112], exif[0x0110] = 6, "a camera"
    Image.fromarray(numbers(8, 16, 3)).save(tmp_path / "side.jpg", exif=exif, quality=95)
    photo = read_photo(tmp_path / "side.jpg")
    assert photo.size == (8, 16)
    with Image.open(written_back(tmp_path / "side.jpg", tmp_path)) as again:
        assert again.size == (8, 16)
        assert again.getexif().get(0x0112, 1) == 1
        assert again.getexif()[0x0110] == "a camera"


def test_values_are_clipped_and_rounded(tmp_path):
    Image.fromarray(numbers(2, 2)).save(tmp_path / "in.png")
    photo = read_photo(tmp_path / "in.png")
    photo.write(tmp_path / "out.png", torch.tensor([[[-1.0, 2.0], [0.5, 1.4 / 255]]]), None)
    assert np.asarray(Image.open(tmp_path / "out.png")).tolist() == [[0, 255], [128, 1]]


def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch):
    Image.fromarray(numbers(4, 4)).save(tmp_path / "in.png")
    photo = read_photo(tmp_path / "in.png")

    def full_disk(self, path, **options):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(Image.Image, "save", full_disk)
    with pytest.raises(OSError, match="No space"):
        photo.write(tmp_path / "out" / "in.png", photo.colour, None)
    assert list((tmp_path / "out").iterdir()) == []


def deep_colour_png():
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in numbers(3, 4, 3, dtype=np.uint16))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 4, 3, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    packed = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "text.png").write_text("no image")
    Image.fromarray(numbers(50, 50, 3)).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:2000])
    (tmp_path / "deep.png").write_bytes(deep_colour_png())
    for name, message in {
        "text.png": "not an image of a known format",
        "cut.png": "cut.png is not an image that can be read",
        "deep.png": "16 bits, of which 8 would be lost: convert it to TIFF",
    }.items():
        with pytest.raises(DataDamaged, match=message):
            read_photo(tmp_path / name)
    with pytest.raises(DataMissing, match="there is no image"):
        read_photo(tmp_path / "absent.png")
    with pytest.raises(DataMissing, match="is a folder"):
        read_photo(tmp_path)
