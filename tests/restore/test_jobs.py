"""Many photographs: what is kept of each is small, and they are told apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from mirrordescent.restore import plan_restoration
from mirrordescent.restore.jobs import SHOWN, Jobs, RestorationSettings
from mirrordescent.restore.outcome import LARGEST_SIDE, Failure


def write(path, height, width, seed=0):
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(
        np.random.default_rng(seed).integers(100, 140, (height, width, 3), np.uint8)
    ).save(path)


def run(tmp_path, **options):
    settings = RestorationSettings("denoise", tmp_path / "out", weight=0.1, **options)
    return list(
        Jobs(settings, [tmp_path / "in"]).run(
            plan_restoration("denoise", iterations=2), progress=False
        )
    )


def test_pictures_of_the_first_few_are_kept_as_bytes(tmp_path):
    for index in range(SHOWN + 2):
        write(tmp_path / "in" / f"{index:02}.png", 8, 9)
    outcomes = run(tmp_path)
    assert [bool(outcome.pictures) for outcome in outcomes] == [True] * SHOWN + [False] * 2
    assert {
        image.dtype for o in outcomes for scene in o.pictures.values() for image in scene.values()
    } == {torch.uint8}


def test_a_large_photograph_is_kept_small_with_its_middle_at_full_size(tmp_path):
    write(tmp_path / "in" / "large.png", 700, 1500)
    (outcome,) = run(tmp_path)
    whole, middle = outcome.pictures.values()
    assert whole["after"].shape == (3, 560, LARGEST_SIDE)
    assert middle["before"].shape == (3, 480, 640)
    with Image.open(tmp_path / "in" / "large.png") as picture:
        pixels = torch.from_numpy(np.array(picture)).movedim(-1, 0)
    assert torch.equal(middle["before"], pixels[:, 110:590, 430:1070])


def test_photographs_of_one_shape_that_fail_restore_together_are_tried_one_by_one(
    tmp_path, monkeypatch
):
    for name in ("a", "b", "c"):
        write(tmp_path / "in" / f"{name}.png", 8, 9)
    real = Jobs._restore_together

    def picky(self, jobs, *rest):
        if any(job.name == "b.png" for job in jobs):
            raise MemoryError("too much of b")
        return real(self, jobs, *rest)

    monkeypatch.setattr(Jobs, "_restore_together", picky)
    outcomes = run(tmp_path)
    assert [type(outcome) is Failure for outcome in outcomes] == [False, True, False]
    assert outcomes[1].reason == "too much of b"


def test_a_photograph_alone_that_cannot_be_read_is_a_mistake(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_text("no image")
    with pytest.raises(ValueError, match="not an image"):
        run(tmp_path)
