from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from mirrordescent.data import (
    DataDamaged,
    DataMissing,
    bsds500,
    bundled_photographs,
    photographs,
    pictures,
    stl10,
    user_pictures,
)
from mirrordescent.data.catalogue import DATASETS, DataFile, Dataset


def save(path, value, height=4, width=5):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((height, width, 3), value, np.uint8)).save(path)


def greys(images):
    return [round(float(image.mean()) * 255) for image in images]


def test_bundled_photographs_are_those_of_scikit_image():
    import skimage.data

    assert torch.equal(
        (bundled_photographs("train")[0] * 255).round().to(torch.uint8).permute(1, 2, 0),
        torch.from_numpy(skimage.data.astronaut()),
    )
    assert [tuple(image.shape) for image in bundled_photographs("test")] == [
        (3, 300, 451),
        (3, 400, 600),
    ]
    assert photographs("bundled", "test").shape == (3 * 4 + 4 * 6, 3, 96, 96)


def test_a_folder_is_split_by_picture(tmp_path):
    for number in range(10):
        save(tmp_path / f"{number}.png", 20 * number)
    train = greys(user_pictures(tmp_path, "train"))
    test = greys(user_pictures(tmp_path, "test"))
    assert len(test) == 2
    assert sorted(train + test) == [20 * number for number in range(10)]
    assert photographs(tmp_path, "test", size=2).shape == (2 * 4, 3, 2, 2)


def test_folders_called_train_and_test_are_the_parts(tmp_path):
    for part, value in (("train", 10), ("train", 20), ("test", 30)):
        save(tmp_path / part / f"{value}.png", value)
    assert greys(pictures(str(tmp_path), "train")) == [10, 20]
    assert greys(pictures(tmp_path, "test")) == [30]


def test_what_cannot_be_had_is_told(tmp_path, no_data):
    with pytest.raises(ValueError, match="did you mean 'bsds500'"):
        photographs("bsd500")
    with pytest.raises(DataMissing, match="absent"):
        photographs(tmp_path / "absent")
    with pytest.raises(DataMissing, match=r"BSDS500_images.zip"):
        photographs("bsds500")
    with pytest.raises(DataMissing, match=r"stl10_subset.zip.*stl10_binary.tar.gz"):
        photographs("stl10")
    save(tmp_path / "one" / "a.png", 1)
    with pytest.raises(ValueError, match="one picture"):
        photographs(tmp_path / "one")
    save(tmp_path / "one" / "b.png", 2)
    with pytest.raises(ValueError, match=r"no picture of .* is as large as a tile of 96×96"):
        photographs(tmp_path / "one")


def test_the_official_bsds_folder_and_archive_are_read(no_data):
    images = no_data / "bsds500" / "BSR" / "BSDS500" / "data" / "images"
    save(images / "train" / "7.jpg", 70)
    save(images / "test" / "8.jpg", 80)
    assert greys(bsds500("train")) == [70]
    with tarfile.open(no_data / "bsds500" / "BSR_bsds500.tgz", "w:gz") as archive:
        archive.add(no_data / "bsds500" / "BSR", "BSR")
    (no_data / "bsds500" / "BSR").rename(no_data / "elsewhere")
    assert greys(bsds500("test")) == [80]


@pytest.fixture
def binary(no_data, monkeypatch, generator):
    """Three images in the order of the official file, and the images."""
    images = torch.randint(256, (3, 3, 96, 96), generator=generator, dtype=torch.uint8)
    columns_first = np.ascontiguousarray(images.numpy().transpose(0, 1, 3, 2)).tobytes()
    size = len(columns_first)
    digest = "md5:" + "0" * 32
    files = (
        DataFile("stl10_binary/test_X.bin", size, digest),
        DataFile("stl10_binary.tar.gz", None, digest),
    )
    monkeypatch.setitem(DATASETS, "stl10", Dataset("stl10", "", files, "", "", ""))
    monkeypatch.setattr(
        "mirrordescent.data.registry.HASHED_ON_USE", -1
    )  # as for the official gigabytes
    (no_data / "stl10" / "stl10_binary").mkdir(parents=True)
    return no_data / "stl10", columns_first, images.float() / 255


def test_the_official_stl_binary_is_read(binary):
    folder, content, images = binary
    (folder / "stl10_binary" / "test_X.bin").write_bytes(content)
    assert torch.allclose(stl10("test"), images)
    assert torch.allclose(stl10("test", count=2), images[:2])
    (folder / "stl10_binary" / "test_X.bin").write_bytes(content[:-1])
    with pytest.raises(DataDamaged, match="82943 bytes instead of 82944"):
        stl10("test")


def test_the_official_stl_archive_is_read_packed(binary):
    folder, content, images = binary
    with tarfile.open(folder / "stl10_binary.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("stl10_binary/test_X.bin")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    assert torch.allclose(stl10("test", count=2), images[:2])
    with pytest.raises(DataDamaged, match=r"no file stl10_binary/train_X.bin"):
        stl10("train")
    packed = folder / "stl10_binary.tar.gz"
    packed.write_bytes(packed.read_bytes()[:1000])
    with pytest.raises(DataDamaged, match="cannot be unpacked"):
        stl10("test")


def test_real_stl_subset(real_data):
    whole, train, test = (stl10(split, real_data) for split in ("unlabeled", "train", "test"))
    assert whole.shape == (196, 3, 96, 96)
    assert len(train) + len(test) == 196
    means = {float(mean) for mean in torch.cat([train, test]).mean((1, 2, 3))}
    assert len(means) > 190  # the parts do not overlap: all pictures differ


def test_real_bsds(real_data):
    test = bsds500("test", real_data)
    assert len(test) == 100
    assert {tuple(image.shape) for image in test} == {(3, 321, 481), (3, 481, 321)}
    assert len(bsds500("cbsd68", real_data)) == 68
    assert photographs("bsds500", "test", 96, real_data).shape == (1500, 3, 96, 96)
