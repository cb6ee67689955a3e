from __future__ import annotations

import hashlib
import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from mirrordescent.data import DataDamaged, omniglot_characters, sample_tasks
from mirrordescent.data.catalogue import DATASETS, DataFile, Dataset
from mirrordescent.data.omniglot import _read_official, _read_packed, area_average


def test_real_test_characters(real_data):
    raw = [
        np.load(f"{real_data}/omniglot/images_{half}.npz")["images"]
        for half in ("background", "evaluation")
    ]
    originals = {tuple(np.sort(row)) for half in raw for row in (~half).sum((2, 3))}
    test = omniglot_characters("test", directory=real_data)
    assert test.shape == (423, 20, 28, 28)
    assert (float(test.min()), float(test.max())) == (0, 1)
    # Averaging keeps the amount of ink, which identifies a character.
    found = {tuple(np.sort(row)) for row in (test.mean((2, 3)) * 105**2).round().long().numpy()}
    assert len(found) == 423
    assert found <= originals


@pytest.fixture
def few(tmp_path, monkeypatch, generator):
    """A data directory with 3 and 2 characters, and their ink."""
    paper = torch.rand(5, 20, 105, 105, generator=generator) > 0.1
    (tmp_path / "omniglot").mkdir()
    files = []
    for stem, half in (("images_background", paper[:3]), ("images_evaluation", paper[3:])):
        path = tmp_path / "omniglot" / f"{stem}.npz"
        np.savez(path, images=half.numpy())
        files.append(
            DataFile(path.name, None, f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}")
        )
    monkeypatch.setitem(DATASETS, "omniglot", Dataset("omniglot", "", tuple(files), "", "", ""))
    module = "mirrordescent.data.omniglot"
    monkeypatch.setattr(f"{module}._CHARACTERS", {"images_background": 3, "images_evaluation": 2})
    monkeypatch.setattr(f"{module}.TEST_CHARACTERS", 2)
    return tmp_path, (~paper).float()


def test_the_parts_make_up_the_whole(few):
    directory, ink = few
    assert torch.equal(omniglot_characters("all", 105, directory), ink)
    train, test = (omniglot_characters(split, 105, directory) for split in ("train", "test"))
    where = [
        int((ink - character).flatten(1).abs().sum(1).argmin()) for character in (*train, *test)
    ]
    assert sorted(where) == [0, 1, 2, 3, 4]
    assert torch.equal(torch.cat([train, test]), ink[where])
    assert len(test) == 2


def test_smaller_sizes_are_averages_and_their_maxima(few):
    directory, ink = few
    middle, small = (omniglot_characters("all", size, directory) for size in (28, 14))
    assert middle.shape == (5, 20, 28, 28)
    # Four cells of 28 are exactly fifteen of 105.
    blocks = torch.nn.functional.avg_pool2d(ink, 15)
    assert torch.allclose(torch.nn.functional.avg_pool2d(middle, 4), blocks, atol=1e-6)
    assert torch.equal(small, torch.nn.functional.max_pool2d(middle, 2))


def test_area_averages_agree_with_blocks_and_keep_the_mean(generator):
    images = torch.rand(2, 12, 12, generator=generator)
    blocks = torch.nn.functional.avg_pool2d(images, 3)
    assert torch.allclose(area_average(images, 4), blocks)
    assert torch.allclose(area_average(images, 5).mean((1, 2)), images.mean((1, 2)), atol=1e-6)


def test_the_official_archive_is_read_by_its_file_names(tmp_path, generator):
    paper = torch.rand(2, 20, 105, 105, generator=generator) > 0.1
    path = tmp_path / "images_background.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for character in (1, 0):
            for drawing in range(20):
                stream = io.BytesIO()
                Image.fromarray(paper[character, drawing].numpy()).save(stream, "png")
                file = f"{character + 8:04d}_{drawing + 1:02d}.png"
                archive.writestr(f"images_background/Greek/character01/{file}", stream.getvalue())
    assert torch.equal(_read_official(path, first=7, count=2), paper)
    with pytest.raises(DataDamaged, match="40 drawings instead of 60"):
        _read_official(path, first=7, count=3)


def test_pickled_and_foreign_arrays_are_refused(tmp_path):
    path = tmp_path / "packed.npz"
    np.savez(path, images=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataDamaged, match=r"packed.npz"):
        _read_packed(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(DataDamaged, match="images"):
        _read_packed(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataDamaged, match=r"packed.npz"):
        _read_packed(path)


def test_an_array_of_another_shape_is_refused(few, monkeypatch):
    monkeypatch.setattr("mirrordescent.data.omniglot._CHARACTERS", {"images_background": 4})
    with pytest.raises(DataDamaged, match=r"shape \(3, 20, 105, 105\)"):
        omniglot_characters(directory=few[0])


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="got 32"):
        omniglot_characters(size=32)


@pytest.fixture
def numbered():
    """Characters whose pixels tell which character and which drawing they are."""
    return (100 * torch.arange(30.0)[:, None] + torch.arange(20.0))[..., None, None].expand(
        30, 20, 2, 2
    )


def test_tasks_hold_every_drawing_of_their_characters_once(numbered, generator):
    tasks = sample_tasks(numbered, 7, way=10, shot=5, generator=generator)
    assert tasks.train_images.shape == (7, 50, 2, 2)
    assert tasks.test_images.shape == (7, 150, 2, 2)
    for task in zip(*tasks, strict=True):
        train, train_labels, test, test_labels = task
        drawn = torch.cat([train, test])[:, 0, 0].long()
        labels = torch.cat([train_labels, test_labels])
        characters = [(drawn[labels == label] // 100).unique().tolist() for label in range(10)]
        assert all(len(of_label) == 1 for of_label in characters)
        assert len({of_label[0] for of_label in characters}) == 10
        assert len(drawn.unique()) == 200
        assert train_labels.bincount().tolist() == [5] * 10


def test_tasks_follow_the_generator_and_differ(numbered):
    def draw(seed):
        return sample_tasks(numbered, 2, 5, 1, torch.Generator().manual_seed(seed)).train_images

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert not torch.equal(draw(1)[0], draw(1)[1])


@pytest.mark.parametrize(("way", "shot"), [(31, 5), (0, 5), (5, 20), (5, 0)])
def test_impossible_tasks_are_refused(numbered, generator, way, shot):
    with pytest.raises(ValueError, match="must"):
        sample_tasks(numbered, 1, way, shot, generator)
