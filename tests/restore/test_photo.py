"""Photographs come back in the form they were in."""

from __future__ import annotations

import os
import struct
import zlib

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from mirrordescent.data import DataDamaged, DataMissing
from mirrordescent.restore import read_photo
from mirrordescent.restore.photo import _stored_bits, read_header


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
    exif[0x0112] = 6
    exif[0x0110] = "a camera"
    Image.fromarray(numbers(8, 16, 3)).save(tmp_path / "side.jpg", exif=exif, quality=95)
    photo = read_photo(tmp_path / "side.jpg")
    assert photo.size == (8, 16)
    with Image.open(written_back(tmp_path / "side.jpg", tmp_path)) as again:
        assert again.size == (8, 16)
        assert again.getexif().get(0x0112, 1) == 1
        assert again.getexif()[0x0110] == "a camera"


def test_it_is_known_whether_colours_were_halved(tmp_path):
    for subsampling, halved in ((0, False), (2, True)):
        Image.fromarray(numbers(16, 16, 3)).save(tmp_path / "c.jpg", subsampling=subsampling)
        assert read_photo(tmp_path / "c.jpg").compression.halved == halved


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


def predicted(kind, left, up, corner):
    """What a filter of PNG predicts a byte by, as its specification says."""
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    guess = left + up - corner
    return min((left, up, corner), key=lambda each: abs(guess - each))


def filtered(rows, depth):
    """Rows of bytes with a filter of every kind in turn."""
    out = []
    for y, row in enumerate(rows):
        above = rows[y - 1] if y else [0] * len(row)
        line = [y % 5]
        for i, byte in enumerate(row):
            before = [line_of[i - depth] if i >= depth else 0 for line_of in (row, above)]
            line.append(
                (int(byte) - predicted(y % 5, int(before[0]), int(above[i]), int(before[1]))) % 256
            )
        out.append(bytes(line))
    return b"".join(out)


def deep_colour_png(channels=3, extra=()):
    pixels = numbers(7, 4, channels, dtype=np.uint16)
    rows = filtered(
        [np.frombuffer(row.astype(">u2").tobytes(), np.uint8) for row in pixels], 2 * channels
    )
    kind = {3: 2, 4: 6}[channels]
    head = (b"IHDR", struct.pack(">IIBBBBB", 4, 7, 16, kind, 0, 0, 0))
    chunks = [head, *extra, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    packed = [
        struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize("channels", [3, 4])
def test_colours_of_sixteen_bits_in_png(tmp_path, channels):
    note = (b"tEXt", b"Author\0nobody")
    (tmp_path / "deep.png").write_bytes(deep_colour_png(channels, [note]))
    photo = read_photo(tmp_path / "deep.png")
    assert (photo.bits, photo.size, photo.alpha is None) == (16, (4, 7), channels == 3)
    deep = numbers(7, 4, channels, dtype=np.uint16)
    assert np.array_equal(
        (photo.colour * 65535).round().numpy().astype(int), deep[..., :3].transpose(2, 0, 1)
    )
    again = written_back(tmp_path / "deep.png", tmp_path)
    assert b"Author\0nobody" in again.read_bytes()
    assert np.array_equal(
        (read_photo(again).colour * 65535).round(), (photo.colour * 65535).round()
    )
    with Image.open(again) as seen:  # another reader sees the same, as far as it goes
        assert np.abs(np.asarray(seen).astype(int) - (deep / 257)).max() < 1


@pytest.mark.parametrize("channels", [3, 4])
def test_colours_of_floating_point(tmp_path, channels):
    values = np.random.default_rng(0).random((5, 6, channels), np.float32)
    tifffile.imwrite(tmp_path / "f.tif", values, photometric="rgb")
    photo = read_photo(tmp_path / "f.tif")
    assert photo.bits == 32
    assert np.array_equal(tifffile.imread(written_back(tmp_path / "f.tif", tmp_path)), values)


def test_a_deep_tiff_taken_sideways_stands_upright_and_keeps_its_profile(tmp_path):
    deep = numbers(5, 6, 3, dtype=np.uint16)
    profile = b"a profile" * 20
    tags = [(274, 3, 1, 6, True)]
    tifffile.imwrite(
        tmp_path / "d.tif", deep, photometric="rgb", extratags=tags, iccprofile=profile
    )
    assert read_photo(tmp_path / "d.tif").size == (5, 6)
    with tifffile.TiffFile(written_back(tmp_path / "d.tif", tmp_path)) as again:
        assert np.array_equal(again.asarray(), np.rot90(deep, 3))
        assert again.pages[0].tags[34675].value == profile


def test_lossless_stays_lossless_and_notes_are_kept(tmp_path):
    pixels = numbers(20, 30, 3)
    exif = Image.Exif()
    exif[0x0110] = "a camera"
    for name, options in {
        "a.webp": {"lossless": True},
        "b.tif": {"compression": "tiff_lzw"},
        "c.png": {},
        "d.jp2": {},
    }.items():
        options |= (
            {}
            if name == "d.jp2"
            else {"exif": exif, "icc_profile": b"a profile" * 20, "dpi": (300, 300)}
        )
        Image.fromarray(pixels).save(tmp_path / name, **options)
        with Image.open(written_back(tmp_path / name, tmp_path)) as again:
            assert np.array_equal(np.asarray(again), pixels)
            assert name == "d.jp2" or again.getexif()[0x0110] == "a camera"
            assert name == "d.jp2" or again.info["icc_profile"] == b"a profile" * 20
            assert name != "b.tif" or again.info["compression"] == "tiff_lzw"
        (tmp_path / "out" / name).unlink()


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "text.png").write_text("no image")
    Image.fromarray(numbers(50, 50, 3)).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:2000])
    deep = bytearray(deep_colour_png())
    deep[60] ^= 1
    (tmp_path / "deep.png").write_bytes(bytes(deep))
    pages = [Image.fromarray(numbers(5, 4, seed=page)) for page in range(3)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    pages[0].save(tmp_path / "moving.gif", save_all=True, append_images=pages[1:2])
    for name, message in {
        "text.png": "not an image of a known format",
        "cut.png": "cut.png is not an image that can be read",
        "deep.png": "the checksum of its part IDAT is wrong",
        "pages.tif": "pages.tif has 3 pages or frames: save those to be restored as separate files",
        "moving.gif": "moving.gif has 2 pages or frames",
    }.items():
        with pytest.raises(DataDamaged, match=message):
            read_photo(tmp_path / name)
    with pytest.raises(DataMissing, match="there is no image"):
        read_photo(tmp_path / "absent.png")
    with pytest.raises(DataMissing, match="is a folder"):
        read_photo(tmp_path)


@pytest.mark.parametrize(
    ("photometric", "channels", "colours"),
    [("separated", 4, "CMYK"), ("miniswhite", 2, "inverted grey"), ("cielab", 3, "Lab")],
)
def test_deep_colours_of_another_kind_are_refused(tmp_path, photometric, channels, colours):
    deep = numbers(5, 6, channels, dtype=np.uint16)
    extra = {"extrasamples": ["unassalpha"]} if channels == 2 else {}
    tifffile.imwrite(
        tmp_path / "c.tif", deep, photometric=photometric, planarconfig="contig", **extra
    )
    message = f"16-bit pixels of {channels} channels that store {colours}.* convert it to RGB"
    with pytest.raises(DataDamaged, match=message):
        read_photo(tmp_path / "c.tif")


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize("channels", [2, 4])
def test_premultiplied_colours_stay_premultiplied(tmp_path, channels, dtype):
    largest = 65535 if dtype == np.uint16 else 1
    colour = np.random.default_rng(0).random((9, 8, channels - 1))
    alpha = np.random.default_rng(1).random((9, 8, 1))
    alpha[0] = 0
    alpha[1] = 1
    stored = np.concatenate([colour * alpha, alpha], -1) * largest
    stored = stored.round().astype(dtype) if dtype == np.uint16 else stored.astype(dtype)
    tifffile.imwrite(
        tmp_path / "p.tif",
        stored,
        photometric="rgb" if channels == 4 else "minisblack",
        planarconfig="contig",
        extrasamples=["assocalpha"],
    )
    photo = read_photo(tmp_path / "p.tif")
    visible = alpha[..., 0] > 0.1
    assert np.abs(photo.colour.numpy() - colour.transpose(2, 0, 1))[:, visible].max() < 1e-3
    with tifffile.TiffFile(written_back(tmp_path / "p.tif", tmp_path)) as again:
        assert list(again.pages[0].extrasamples) == [1]
        assert np.abs(again.asarray().astype(float) - stored).max() <= 1e-6


def test_the_meaning_of_an_extra_channel_is_kept(tmp_path):
    deep = numbers(5, 6, 4, dtype=np.uint16)
    for value, name in enumerate(("unspecified", "assocalpha", "unassalpha")):
        deep[..., 3] = 65535
        tifffile.imwrite(tmp_path / "e.tif", deep, photometric="rgb", extrasamples=[name])
        with tifffile.TiffFile(written_back(tmp_path / "e.tif", tmp_path)) as again:
            assert list(again.pages[0].extrasamples) == [value]
            assert np.array_equal(again.asarray(), deep)


@pytest.mark.parametrize(
    ("meaning", "note"),
    [("assocalpha", "multiplied by its opacity"), ("unspecified", "of unspecified meaning")],
)
def test_a_change_of_an_extra_channel_of_8_bits_is_noted(tmp_path, meaning, note):
    pixels = numbers(5, 6, 4)
    pixels[..., 3] = 255
    tifffile.imwrite(tmp_path / "e.tif", pixels, photometric="rgb", extrasamples=[meaning])
    photo = read_photo(tmp_path / "e.tif")
    assert note in photo.note
    assert np.array_equal((photo.colour * 255).round().numpy(), pixels[..., :3].transpose(2, 0, 1))
    Image.fromarray(pixels).save(tmp_path / "plain.tif")
    assert read_photo(tmp_path / "plain.tif").note == ""


def test_a_grey_of_16_bits_whose_white_is_zero_is_no_negative(tmp_path):
    deep = numbers(5, 6, dtype=np.uint16)
    tifffile.imwrite(tmp_path / "w.tif", deep, photometric="miniswhite")
    assert np.array_equal((read_photo(tmp_path / "w.tif").colour[0] * 65535).round(), 65535 - deep)
    with Image.open(written_back(tmp_path / "w.tif", tmp_path)) as again:
        assert np.array_equal(np.asarray(again), 65535 - deep)


@pytest.mark.parametrize("height", [2, 3, 4])
@pytest.mark.parametrize("planarconfig", ["contig", "separate"])
def test_a_low_deep_picture_is_not_turned(tmp_path, height, planarconfig):
    deep = numbers(height, 6, 3, dtype=np.uint16)
    stored = deep if planarconfig == "contig" else deep.transpose(2, 0, 1)
    tifffile.imwrite(tmp_path / "l.tif", stored, photometric="rgb", planarconfig=planarconfig)
    colour = (read_photo(tmp_path / "l.tif").colour * 65535).round()
    assert np.array_equal(colour, deep.transpose(2, 0, 1))


def test_the_header_tells_the_suffix_that_is_written(tmp_path):
    paletted = Image.new("P", (3, 2))
    pictures = {
        **{f"{m.replace(';', '')}.{s}": MODES[m]() for m in MODES for s in ("png", "tif", "webp")},
        "grey.jpg": MODES["L"](),
        "p.gif": paletted,
        "f.tif": Image.new("F", (3, 2)),
        "b.bmp": Image.new("1", (3, 2)),
        "i.ico": Image.new("RGBA", (16, 16)),
    }
    for name, picture in pictures.items():
        try:
            picture.save(tmp_path / name)
        except (OSError, KeyError):  # a mode that the format does not hold
            continue
        assert read_header(tmp_path / name).suffix == read_photo(tmp_path / name).suffix


def test_colours_that_lose_bits_are_noted(tmp_path):
    deep = numbers(5, 6, 3, dtype=np.uint16)
    content = deep.astype(">u2").tobytes()
    (tmp_path / "deep.ppm").write_bytes(b"P6\n6 5\n65535\n" + content)
    note = "it has 16 bits per colour; the restored file has 8"
    assert read_photo(tmp_path / "deep.ppm").note == note
    (tmp_path / "grey.pgm").write_bytes(b"P5\n18 5\n65535\n" + content)
    for suffix in ("ppm", "jp2", "avif", "png", "jpg"):
        Image.fromarray(numbers(16, 16, 3)).save(tmp_path / f"plain.{suffix}")
        assert read_photo(tmp_path / f"plain.{suffix}").note == ""
    assert read_photo(tmp_path / "grey.pgm").note == ""
    stream = bytearray((tmp_path / "plain.jp2").read_bytes())
    stream[stream.index(b"\xff\x4f\xff\x51") + 42] = 11  # the number of bits less one
    (tmp_path / "deep.jp2").write_bytes(stream)
    with Image.open(tmp_path / "plain.jp2") as picture:
        assert _stored_bits(picture, tmp_path / "deep.jp2") == 12


def test_a_photograph_is_copied_unless_its_format_is_not_written(tmp_path):
    Image.fromarray(numbers(16, 16, 3)).save(tmp_path / "a.jpg", quality=60)
    read_photo(tmp_path / "a.jpg").copy(tmp_path / "out" / "a.jpg")
    assert (tmp_path / "out" / "a.jpg").read_bytes() == (tmp_path / "a.jpg").read_bytes()


def test_files_that_are_no_image_are_described(tmp_path):
    (tmp_path / "empty.png").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.png")
    os.symlink("absent.png", tmp_path / "link.png")
    huge = bytearray(deep_colour_png())
    huge[16:24] = struct.pack(">II", 10**5, 10**5)
    huge[24] = 8
    huge[29:33] = struct.pack(">I", zlib.crc32(huge[12:29]))
    (tmp_path / "huge.png").write_bytes(bytes(huge))
    for name, message in {
        "empty.png": "empty.png is empty",
        "pipe.png": "pipe.png is not a regular file",
        "link.png": "link.png is a link to a file that does not exist",
        "huge.png": "huge.png claims to have more than 179 million pixels.*cut it into parts",
    }.items():
        with pytest.raises((DataDamaged, DataMissing), match=message):
            read_photo(tmp_path / name)


def test_a_deep_tiff_keeps_its_texts_and_resolution(tmp_path):
    texts = {270: "café", 271: "a maker", 272: "a camera", 305: "a program", 33432: "somebody"}
    tifffile.imwrite(
        tmp_path / "d.tif",
        numbers(5, 6, 3, dtype=np.uint16),
        photometric="rgb",
        metadata=None,
        software=False,
        resolution=((300, 1), (150, 1)),
        resolutionunit=2,
        extratags=[(tag, 2, 0, text.encode(), True) for tag, text in texts.items()],
    )
    with tifffile.TiffFile(written_back(tmp_path / "d.tif", tmp_path)) as again:
        tags = again.pages[0].tags
        assert {tag: tags[tag].value for tag in texts} == texts
        assert (tags[282].value, tags[283].value, tags[296].value) == ((300, 1), (150, 1), 2)
    tifffile.imwrite(tmp_path / "e.tif", numbers(5, 6, 3, dtype=np.uint16), metadata=None)
    (tmp_path / "out" / "d.tif").unlink()
    with tifffile.TiffFile(written_back(tmp_path / "e.tif", tmp_path)) as again:
        assert 270 not in again.pages[0].tags
