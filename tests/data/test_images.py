from __future__ import annotations

import io
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from mirrordescent.data import (
    DataDamaged,
    DataMissing,
    random_crops,
    read_image,
    read_images,
    tiles,
)


def picture(generator, height=5, width=4):
    return torch.randint(256, (height, width, 3), generator=generator, dtype=torch.uint8).numpy()


def png(array):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "png")
    return stream.getvalue()


def shades(image):
    return (image.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()


def test_colour_and_grey(tmp_path, generator):
    rgb = picture(generator)
    Image.fromarray(rgb).save(tmp_path / "rgb.png")
    Image.fromarray(rgb[..., 0]).save(tmp_path / "grey.png")
    Image.fromarray(rgb[..., 0] > 127).save(tmp_path / "bits.png")
    assert read_image(tmp_path / "rgb.png").shape == (3, 5, 4)
    assert np.array_equal(shades(read_image(tmp_path / "rgb.png")), rgb)
    assert np.array_equal(
        shades(read_image(tmp_path / "grey.png")), np.stack([rgb[..., 0]] * 3, -1)
    )
    assert np.array_equal(read_image(tmp_path / "bits.png")[1].numpy(), rgb[..., 0] > 127)


def test_transparent_pixels_lie_on_white(tmp_path):
    rgba = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 51]]], np.uint8)
    Image.fromarray(rgba).save(tmp_path / "rgba.png")
    image = read_image(tmp_path / "rgba.png")
    assert torch.allclose(image[:, 0].T, torch.tensor([[1.0, 0, 0], [1, 1, 1], [0.8, 0.8, 0.8]]))
    grey = Image.fromarray(np.array([[[0, 0]], [[0, 255]]], np.uint8))
    grey.save(tmp_path / "la.png")
    assert read_image(tmp_path / "la.png")[0, :, 0].tolist() == [1, 0]


def test_palettes_with_and_without_transparency(tmp_path):
    paletted = Image.new("P", (2, 1))
    paletted.putpalette([10, 20, 30, 200, 100, 0])
    paletted.putdata([0, 1])
    paletted.save(tmp_path / "opaque.png")
    paletted.save(tmp_path / "clear.png", transparency=1)
    assert shades(read_image(tmp_path / "opaque.png"))[0].tolist() == [[10, 20, 30], [200, 100, 0]]
    assert shades(read_image(tmp_path / "clear.png"))[0].tolist() == [[10, 20, 30], [255, 255, 255]]


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_keep_their_precision(tmp_path, suffix):
    grey = np.array([[0, 1, 65535]], np.uint16)
    Image.fromarray(grey).save(tmp_path / f"deep.{suffix}")
    assert torch.allclose(
        read_image(tmp_path / f"deep.{suffix}")[2, 0],
        torch.tensor([0.0, 1 / 65535, 1.0]),
        rtol=1e-6,
        atol=0,
    )


def test_floating_point_pictures_must_lie_in_the_unit_interval(tmp_path):
    Image.fromarray(np.array([[0.25, 1.0]], np.float32)).save(tmp_path / "unit.tif")
    assert read_image(tmp_path / "unit.tif")[0].tolist() == [[0.25, 1.0]]
    Image.fromarray(np.array([[0.25, 3.0]], np.float32)).save(tmp_path / "wide.tif")
    with pytest.raises(DataDamaged, match=r"wide.tif"):
        read_image(tmp_path / "wide.tif")


def test_a_photograph_taken_sideways_is_turned(tmp_path, generator):
    rgb = picture(generator)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned a quarter to the left: rotate clockwise to view
    Image.fromarray(rgb).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(shades(read_image(tmp_path / "turned.png")), np.rot90(rgb, -1))


@pytest.mark.parametrize("damage", ["garbage", "cut", "empty"])
def test_an_unreadable_image_is_named(tmp_path, damage, generator):
    sound = png(picture(generator, 64, 64))
    content = {"garbage": b"no image at all", "cut": sound[: len(sound) // 2], "empty": b""}[damage]
    (tmp_path / "broken.png").write_bytes(content)
    with pytest.raises(DataDamaged, match=r"broken.png"):
        read_image(tmp_path / "broken.png")
    with pytest.raises(DataDamaged, match=r"broken.png"):
        list(read_images(tmp_path))


def test_a_missing_image_is_named(tmp_path):
    with pytest.raises(DataMissing, match=r"nowhere.png"):
        read_image(tmp_path / "nowhere.png")


def fill(source, contents):
    """Make a folder, zip or tar archive of these files."""
    if source.suffix == ".zip":
        with zipfile.ZipFile(source, "w") as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
    elif source.suffix == ".tgz":
        with tarfile.open(source, "w:gz") as archive:
            for name, content in contents.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    else:
        for name, content in contents.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(content)


@pytest.mark.parametrize("kind", ["folder", "pack.zip", "pack.tgz"])
def test_folders_and_archives_yield_their_images_by_name(tmp_path, kind, generator):
    first, second, third = (picture(generator) for _ in range(3))
    source = tmp_path / kind
    contents = {
        "b/2.png": png(second),
        "a/1.PNG": png(first),
        "b/._2.png": b"hidden",
        "b/notes.txt": b"text",
        "bb/3.png": png(third),
    }
    fill(source, contents)
    read = list(read_images(source))
    assert [name for name, _ in read] == ["a/1.PNG", "b/2.png", "bb/3.png"]
    assert all(
        np.array_equal(shades(image), expected)
        for (_, image), expected in zip(read, (first, second, third), strict=True)
    )
    assert [name for name, _ in read_images(source, "b")] == ["b/2.png"]
    with pytest.raises(DataMissing, match=r"no image in .*c"):
        list(read_images(source, "c"))


@pytest.mark.parametrize("kind", ["pack.zip", "pack.tgz"])
def test_damaged_archives_are_named(tmp_path, kind, generator):
    source = tmp_path / kind
    fill(source, {f"{n}.png": png(picture(generator, 64, 64)) for n in range(4)})
    sound = source.read_bytes()
    for end in (len(sound) // 2, 30):
        source.write_bytes(sound[:end])
        with pytest.raises(DataDamaged, match=kind):
            list(read_images(source))
    source.write_bytes(sound[:100] + bytes(byte ^ 255 for byte in sound[100:200]) + sound[200:])
    with pytest.raises(DataDamaged, match=kind):
        list(read_images(source))


def test_empty_and_absent_folders(tmp_path):
    with pytest.raises(DataMissing, match="no image in"):
        list(read_images(tmp_path))
    with pytest.raises(DataMissing, match=r"no folder or archive .*absent"):
        list(read_images(tmp_path / "absent"))


def test_tiles_put_together_again_are_the_image(generator):
    image = torch.rand(3, 7, 11, generator=generator)
    squares = tiles(image, 3)
    assert squares.shape == (2 * 3, 3, 3, 3)
    rows = [torch.cat(list(squares[start : start + 3]), 2) for start in (0, 3)]
    assert torch.equal(torch.cat(rows, 1), image[:, :6, :9])
    assert tiles(image, 8).shape == (0, 3, 8, 8)
    with pytest.raises(ValueError, match="at least 1"):
        tiles(image, 0)


def test_crops_are_pieces_at_every_position(generator):
    images = [torch.arange(12.0).reshape(1, 3, 4), 100 + torch.arange(6.0).reshape(1, 2, 3)]
    crops = random_crops(images, 2, 400, generator)
    assert crops.shape == (400, 1, 2, 2)
    corners = crops[:, 0, 0, 0].long()
    assert set(corners.tolist()) == {0, 1, 2, 4, 5, 6, 100, 101}
    # Three pictures in four crops would show a choice by area instead of by picture.
    assert 150 < int((corners < 100).sum()) < 250
    assert torch.equal(crops[:, 0, 1, 1] - crops[:, 0, 0, 0], torch.where(corners < 100, 5.0, 4.0))


def test_crops_that_cannot_be_are_refused(generator):
    with pytest.raises(ValueError, match="image 1 is 2×3"):
        random_crops([torch.zeros(3, 5, 5), torch.zeros(3, 2, 3)], 3, 1, generator)
    with pytest.raises(ValueError, match="no image"):
        random_crops([], 3, 1, generator)
