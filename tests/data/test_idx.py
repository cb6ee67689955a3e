from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch

from mirrordescent.data import (
    DataDamaged,
    DataMissing,
    digits,
    fashion_mnist,
    halve,
    mnist,
    read_idx,
)
from mirrordescent.data.splits import split_indices


def idx(array, code):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.tobytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("code", "entry"),
    [(0x08, "u1"), (0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")],
)
def test_every_type_is_read_plain_and_packed(tmp_path, code, entry, pack):
    array = np.arange(24).reshape(2, 3, 4).astype(entry)
    path = tmp_path / "array"
    path.write_bytes(pack(idx(array, code)))
    read = read_idx(path)
    assert read.shape == (2, 3, 4)
    assert read.numpy().dtype == np.dtype(entry).newbyteorder("=")
    assert np.array_equal(read.numpy(), array)


SOUND = idx(np.zeros((5, 7), np.uint8), 0x08)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "begins with nothing"),
        (b"<html>", "not an idx file"),
        (SOUND[:9], "inside its header"),
        (SOUND[:-1], "holds 34 bytes"),
        (SOUND + b"x", "holds 36 bytes"),
        (gzip.compress(SOUND, mtime=0)[:-9], "cut off or damaged"),
        (gzip.compress(SOUND, mtime=0)[:11] + b"garbage" * 9, "cut off or damaged"),
    ],
)
def test_damaged_files_are_named_with_their_fault(tmp_path, content, fault):
    path = tmp_path / "broken-idx"
    path.write_bytes(content)
    with pytest.raises(DataDamaged, match=fault) as caught:
        read_idx(path)
    assert "broken-idx" in str(caught.value)


def test_files_unpacked_by_hand_are_read(tmp_path):
    (tmp_path / "mnist").mkdir()
    shades = np.array([[[0, 51], [255, 0]]], np.uint8)
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(idx(shades, 0x08))
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([3], np.uint8), 0x08))
    images, labels = mnist("test", tmp_path)
    assert torch.allclose(images, torch.tensor([[[0.0, 0.2], [1.0, 0.0]]]))
    assert labels.tolist() == [3]
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(
        idx(np.array([3, 4], np.uint8), 0x08)
    )
    with pytest.raises(DataDamaged, match="do not match"):
        mnist("test", tmp_path)


def test_a_packed_file_with_another_checksum_is_refused(tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(SOUND, mtime=0))
    with pytest.raises(DataDamaged, match="instead of 1648877"):
        mnist("test", tmp_path)


def test_without_files_and_network_the_message_tells_what_to_do(no_data, monkeypatch):
    def offline(*arguments, **options):
        raise ConnectionError("no route")

    monkeypatch.setattr("mirrordescent.data.download.download", offline)
    with pytest.raises(
        DataMissing, match=r"no route.*t10k-images-idx3-ubyte.gz.*MIRRORDESCENT_DATA"
    ):
        fashion_mnist("test")


@pytest.mark.parametrize(
    ("read", "split", "count"), [(mnist, "test", 10000), (fashion_mnist, "test", 10000)]
)
def test_real_images(real_data, read, split, count):
    images, labels = read(split, real_data)
    assert images.shape == (count, 28, 28)
    assert images.dtype == torch.float32
    assert (images.min(), images.max()) == (0, 1)
    assert labels.dtype == torch.int64
    assert labels.unique().tolist() == list(range(10))


def test_counts_of_fours_and_nines(real_data):
    for split, expected in (("train", 11791), ("test", 1991)):
        labels = mnist(split, real_data)[1]
        assert int(((labels == 4) | (labels == 9)).sum()) == expected


def test_digits_are_those_of_scikit_learn_split_in_two():
    from sklearn.datasets import load_digits

    (train, train_labels) = digits("train")
    (test, test_labels) = digits("test")
    assert len(train) + len(test) == 1797
    both = torch.cat([train, test]).flatten(1) * 16
    expected = torch.from_numpy(load_digits().data).float()
    assert torch.equal(both.sum(0), expected.sum(0))
    assert torch.equal(
        torch.cat([train_labels, test_labels]).bincount(),
        torch.from_numpy(np.bincount(load_digits().target)),
    )
    enlarged = digits("test", size=28)[0]
    assert enlarged.shape == (len(test), 28, 28)
    assert torch.allclose(enlarged.mean((1, 2)), test.mean((1, 2)), atol=0.03)


def test_halving_agrees_with_pooling_of_torch(generator):
    images = torch.rand(3, 28, 28, generator=generator)
    assert torch.equal(halve(images), torch.nn.functional.max_pool2d(images, 2))
    assert torch.allclose(halve(images, "mean"), torch.nn.functional.avg_pool2d(images, 2))
    with pytest.raises(ValueError, match="even sides, got 7×28"):
        halve(images[:, :7])
    with pytest.raises(ValueError, match="unknown pooling 'median'"):
        halve(images, "median")


def test_parts_are_disjoint_complete_and_depend_on_the_seed():
    train = split_indices("train", 50)
    test = split_indices("test", 50)
    assert len(test) == 10
    assert torch.equal(torch.cat([train, test]).sort().values, torch.arange(50))
    assert not torch.equal(test, split_indices("test", 50, seed=1))
    with pytest.raises(ValueError, match="1 items cannot be split"):
        split_indices("train", 1)
    with pytest.raises(ValueError, match="did you mean 'test'"):
        split_indices("tests", 10)
