"""Many photographs: what is kept of each is small, and they are told apart."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from mirrordescent.restore import plan_restoration
from mirrordescent.restore.jobs import SHOWN, Jobs, RestorationSettings
from mirrordescent.restore.masks import Masks
from mirrordescent.restore.outcome import LARGEST_SIDE, Failure, Outcome
from mirrordescent.restore.request import Request


def write(path, height, width, seed=0):
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(
        np.random.default_rng(seed).integers(100, 140, (height, width, 3), np.uint8)
    ).save(path)


def run(tmp_path, **options):
    request = Request("denoise", weight=0.1)
    settings = RestorationSettings(request, tmp_path / "out", **options)
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


def test_names_that_differ_in_case_are_one_file_on_windows_and_macos(tmp_path, monkeypatch):
    write(tmp_path / "in" / "A.png", 8, 9)
    write(tmp_path / "other" / "a.png", 8, 9)
    settings = RestorationSettings(Request("denoise"), tmp_path / "out")
    images = [tmp_path / "in" / "A.png", tmp_path / "other" / "a.png"]
    Jobs(settings, images)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ValueError, match=r"A.png and .*a.png would both be written to"):
        Jobs(settings, images)


def test_an_output_folder_inside_a_folder_of_masks_is_no_mask(tmp_path):
    write(tmp_path / "in" / "a.png", 8, 9)
    write(tmp_path / "masks" / "a.png", 8, 9)
    (tmp_path / "masks" / "out").mkdir()
    write(tmp_path / "masks" / "out" / "a.png", 8, 9)  # the result of an earlier run
    masks = Masks(tmp_path / "masks")
    settings = RestorationSettings(Request("inpaint"), tmp_path / "masks" / "out", masks=masks)
    Jobs(settings, [tmp_path / "in"])
    with pytest.raises(ValueError, match="would be overwritten"):
        Jobs(
            RestorationSettings(Request("inpaint"), tmp_path / "masks", masks=masks),
            [tmp_path / "in"],
        )


def test_a_missed_tolerance_is_explained():
    record = {"relative_gap": 0.02, "status": "precision"}
    plan = plan_restoration("denoise", iterations=2, tolerance=1e-2)
    reached = "a.png is proven to be within 2 % of the best possible, but 1 % is required. "
    for status, rest in {
        "budget": "All iterations were used: allow more with --iterations",
        "precision": "Rounding errors prevent a proof of less",
        "converged": "Allow a larger gap with --tolerance",
    }.items():
        outcome = Outcome("a.png", record | {"status": status})
        assert outcome.shortfall(plan).startswith(reached + rest)
    broken = Outcome("a.png", record | {"status": "diverged"}).shortfall(plan)
    assert broken.startswith("a.png was not restored well: the method broke down")


def test_a_file_that_is_given_twice_is_restored_once(tmp_path):
    write(tmp_path / "in" / "a.png", 8, 9)
    settings = RestorationSettings(Request("denoise"), tmp_path / "out")
    jobs = Jobs(settings, [tmp_path / "in", tmp_path / "in" / "a.png", tmp_path / "in"])
    assert [source.path for source in jobs.sources] == [tmp_path / "in" / "a.png"]


def test_a_folder_with_the_name_of_a_result_is_refused(tmp_path):
    write(tmp_path / "in" / "a.png", 8, 9)
    (tmp_path / "out" / "a.png").mkdir(parents=True)
    settings = RestorationSettings(Request("denoise"), tmp_path / "out")
    with pytest.raises(ValueError, match=r"a.png, which is a folder: choose another folder"):
        Jobs(settings, [tmp_path / "in"])
