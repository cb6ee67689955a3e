"""Which file goes with which, and which pixels are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mirrordescent.data import DataMissing
from mirrordescent.restore import read_photo
from mirrordescent.restore.masks import Masks
from mirrordescent.restore.sources import Source, companion_file


def write(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def grey(seed=0, height=20, width=30):
    return np.random.default_rng(seed).integers(60, 200, (height, width, 3), np.uint8)


def known(tmp_path, masks, pixels=None, name="photo.png"):
    path = write(tmp_path / name, grey() if pixels is None else pixels)
    return masks.known_pixels(read_photo(path), Source(path, Path(name)))


def test_a_mask_is_found_by_the_whole_name(tmp_path):
    folder = tmp_path / "masks"
    for index, name in enumerate(("img.1.png", "img.2.png", "img.png")):
        mask = np.full((20, 30), 255, np.uint8)
        mask[: index + 1] = 0
        write(folder / name, mask)
    for index, name in enumerate(("img.1.png", "img.2.png", "img.png", "img.tif")):
        assert companion_file(folder, Source(tmp_path / name, Path(name))).name == name.replace(
            ".tif", ".png"
        )
        found = known(tmp_path, Masks(folder), name=name)
        assert found.missing == pytest.approx((min(index, 2) + 1) / 20)
    write(folder / "img.bmp", mask)
    assert companion_file(folder, Source(tmp_path / "img.png", Path("img.png"))).name == "img.png"
    with pytest.raises(ValueError, match=r"img.bmp and img.png .* could both belong to"):
        companion_file(folder, Source(tmp_path / "img.tif", Path("img.tif")))
    (folder / "other.txt").write_text("no image")
    with pytest.raises(DataMissing, match="there is no image other"):
        companion_file(folder, Source(tmp_path / "other.png", Path("other.png")))
    with pytest.raises(DataMissing, match="there is no image sub/img"):
        companion_file(folder, Source(tmp_path / "img.png", Path("sub/img.png")))


def test_polarity_is_said_and_questioned(tmp_path):
    mask = np.full((20, 30), 255, np.uint8)
    mask[3:5] = 0
    usual = write(tmp_path / "m.png", mask)
    inverted = write(tmp_path / "i.png", 255 - mask)
    found = known(tmp_path, Masks(usual))
    assert (found.words, found.question) == ("white = known", "")
    assert found.missing == pytest.approx(0.1)
    assert (
        "if white means missing there, add --mask-white missing"
        in known(tmp_path, Masks(inverted)).question
    )
    other = known(tmp_path, Masks(inverted, white="missing"))
    assert (other.words, other.question) == ("white = missing", "")
    assert other.missing == pytest.approx(0.1)
    assert "add --mask-white known" in known(tmp_path, Masks(usual, white="missing")).question
    assert "is it a mask?" in known(tmp_path, Masks(write(tmp_path / "p.png", grey(1)))).question


def test_a_layer_drawn_on_transparency_is_a_mask(tmp_path):
    layer = np.zeros((20, 30, 4), np.uint8)
    layer[3:5] = (200, 0, 0, 255)  # red strokes on nothing
    assert known(tmp_path, Masks(write(tmp_path / "layer.png", layer))).missing == pytest.approx(
        0.1
    )


def test_a_colour_marks_what_is_missing(tmp_path):
    pixels = np.full((20, 30, 3), 128, np.uint8)
    pixels[4:6] = (255, 0, 255)
    found = known(tmp_path, Masks(colour="#ff00ff"), pixels)
    assert found.words == "#ff00ff = missing"
    assert (~found.mask).any(1).nonzero().flatten().tolist() == [
        3,
        4,
        5,
        6,
    ]  # and what touches them
    pixels[9:11, 5] = (230, 40, 230)  # blended, but far from anything marked
    assert bool(known(tmp_path, Masks(colour="#ff00ff"), pixels).mask[10, 5])
    pixels[4:8] = (255, 0, 255)
    smeared = known(tmp_path, Masks(colour="FF00FF"), pixels, "smeared.jpg")
    assert not bool(smeared.mask[4:8].any())
    assert smeared.missing < 0.45
    with pytest.raises(ValueError, match="has the colour #00ff00"):
        known(tmp_path, Masks(colour="#00ff00"), pixels)
    with pytest.raises(ValueError, match="a colour must have the form"):
        Masks(colour="magenta")


def test_transparent_pixels_are_missing_and_become_opaque(tmp_path):
    pixels = np.dstack([grey(), np.full((20, 30), 255, np.uint8)])
    pixels[0] = 0
    found = known(tmp_path, Masks(), pixels)
    assert found.missing == pytest.approx(0.05)
    assert float(found.alpha.min()) == 1
    with pytest.raises(ValueError, match="no missing pixels are given for"):
        known(tmp_path, Masks())
    with pytest.raises(ValueError, match="give only one of --mask, --mask-colour and --missing"):
        Masks(tmp_path, colour="#ffffff")
