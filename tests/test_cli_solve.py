"""``mirrordescent solve``, as a user meets it."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from mirrordescent import cli, zoo
from mirrordescent.restore import jobs, pipeline
from mirrordescent.restore.masks import Masks
from mirrordescent.restore.records import RECORDS

pytestmark = pytest.mark.usefixtures("compiled")


def photo(height=24, width=20, seed=0):
    rows, columns = np.mgrid[:height, :width]
    smooth = 0.5 + 0.3 * np.sin(rows / 5 + columns / 7)
    noise = 0.03 * np.random.default_rng(seed).standard_normal((height, width, 3))
    return ((smooth[..., None] + noise).clip(0, 1) * 255).astype(np.uint8)


def photoshop_file(pixels):
    """Return a file of Photoshop, which Pillow reads but does not write."""
    height, width, channels = pixels.shape
    header = struct.pack(">4sH6xHIIHH", b"8BPS", 1, channels, height, width, 8, 3)
    return header + bytes(12) + bytes(2) + pixels.transpose(2, 0, 1).tobytes()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in, with a photograph."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(photo()).save("photo.png")
    return tmp_path


def run(monkeypatch, *arguments):
    """Return the exit code."""
    monkeypatch.setattr(sys, "argv", ["mirrordescent", "solve", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


def test_a_trial_says_how_good_it_was(here, monkeypatch, capsys):
    assert run(monkeypatch, "inpaint", "photo.png", "--missing", 0.3, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    (image,) = report["images"]
    assert image["relative_gap"] <= 1e-3
    assert image["status"] == "converged"
    assert image["prior"] == "photo-prior"
    assert image["iterations"]["photo-prior-inpaint"] > 0
    assert image["missing"] == pytest.approx(0.3, abs=0.1)
    assert image["psnr"] > image["psnr_before"] + 5
    assert 0 < image["ssim"] <= 1
    restored = np.asarray(Image.open(here / image["output"]), dtype=float) / 255
    error = ((restored - photo() / 255) ** 2).mean()
    assert image["psnr"] == pytest.approx(
        -10 * np.log10(error), abs=0.05
    )  # up to rounding to bytes
    page = (here / "out" / "solve" / "index.html").read_text(encoding="utf-8")
    assert "photo.png" in page
    assert "Convergence" in page


def test_denoising_prints_a_line_for_every_image(here, monkeypatch, capsys):
    Image.fromarray(photo(30, 16, seed=1)).save("other.png")
    assert (
        run(monkeypatch, "denoise", "photo.png", "other.png", "--weight", 0.1, "--out", "restored")
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    words = (
        r"restored/photo.png: weight 0.1, restored in \d+.\d s, within 0.\d+ % of the best possible"
    )
    assert re.fullmatch(words, lines[0])
    assert lines[1].startswith("restored/other.png: weight 0.1")
    assert lines[2] == "page: restored/index.html"
    assert run(monkeypatch, "denoise", "photo.png", "--weight", 0.1, "--verbose") == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert re.search(
        r"20×24, value \d.*, relative gap ≤ .*, \d+ iterations of image-tv-isotropic", line
    )
    smooth = np.asarray(Image.open("restored/photo.png"), dtype=float)
    assert (
        np.abs(np.diff(smooth, axis=0)).sum()
        < 0.75 * np.abs(np.diff(photo().astype(float), axis=0)).sum()
    )


def test_transparent_pixels_are_filled_in(here, monkeypatch):
    rgba = np.dstack([photo(), np.full((24, 20), 255, np.uint8)])
    rgba[5:9, 5:9] = 0
    rgba[0, 0, 3] = 100
    Image.fromarray(rgba).save("cutout.png")
    assert run(monkeypatch, "inpaint", "cutout.png") == 0
    with Image.open("out/solve/cutout.png") as restored:
        assert restored.mode == "RGBA"
        pixels = np.asarray(restored).astype(int)
    assert (pixels[5:9, 5:9, 3] == 255).all()
    assert pixels[0, 0, 3] == 100  # partial transparency is kept
    assert np.abs(pixels[5:9, 5:9, :3] - photo()[5:9, 5:9]).max() < 60  # was black


def test_a_folder_with_masks_and_truths_by_name(here, monkeypatch, capsys):
    for folder in ("in/sub", "masks/sub", "truth/sub"):
        (here / folder).mkdir(parents=True)
    for index, name in enumerate(("a.png", "b.png", "sub/a.png")):
        mask = np.full((24, 20), 255, np.uint8)
        mask[4 * index : 4 * index + 3] = 0
        clean = photo(seed=index)
        Image.fromarray(clean).save(f"truth/{name}")
        Image.fromarray(mask).save(f"masks/{name}".replace(".png", ".bmp"))
        Image.fromarray(clean * (mask[..., None] > 0)).save(f"in/{name}")
    (here / "in" / "notes.txt").write_text("no image")
    assert run(monkeypatch, "inpaint", "in", "--mask", "masks", "--truth", "truth", "--json") == 0
    images = json.loads(capsys.readouterr().out)["images"]
    assert [image["output"] for image in images] == [
        f"out/solve/{name}" for name in ("a.png", "b.png", "sub/a.png")
    ]
    assert all(image["psnr"] > 25 for image in images)


def test_sixteen_bits_stay_sixteen_bits(here, monkeypatch):
    deep = (photo()[..., 0].astype(np.uint16)) * 257
    Image.fromarray(deep).save("deep.png")
    assert run(monkeypatch, "denoise", "deep.png", "--weight", 0.02) == 0
    with Image.open("out/solve/deep.png") as restored:
        assert restored.mode == "I;16"
        values = np.asarray(restored)
    assert len(np.unique(values % 257)) > 10  # more than bytes could tell


def test_a_learned_map_of_ones_own_and_the_papers_names(here, monkeypatch, capsys):
    trial = ("inpaint", "photo.png", "--missing", 0.2, "--verbose")
    assert run(monkeypatch, *trial, "--method", "LSMD", "--iterations", 6) == 0
    assert "6 iterations of lsmd, photo-inpaint-conjugate" in capsys.readouterr().out
    assert run(monkeypatch, *trial, "--mirror", "photo-inpaint-lpd") == 0
    assert "iterations of photo-inpaint-lpd" in capsys.readouterr().out


def test_missing_kernels_are_reported(here, monkeypatch, capsys, no_library):
    assert run(monkeypatch, "inpaint", "photo.png", "--missing", 0.3) == 0
    assert "without compiled kernels" in capsys.readouterr().err
    assert run(monkeypatch, "inpaint", "photo.png", "--missing", 0.3, "--fused") == 2
    assert "Install a wheel for this platform" in capsys.readouterr().err


def test_a_tolerance_out_of_reach_ends_with_1(here, monkeypatch, capsys):
    arguments = ("--missing", 0.3, "--method", "pdhg", "--iterations", 2, "--tolerance", 1e-4)
    assert run(monkeypatch, "inpaint", "photo.png", *arguments) == 1
    said = capsys.readouterr().err
    assert re.search(
        r"photo.png is proven to be within \d.* % of the best possible, but 0.01 % is required. "
        "All iterations were used: allow more with --iterations, or a larger gap with --tol",
        said,
    )


def mistakes():
    trial = ("--missing", 0.3)
    return {
        "no image": (("inpaint", *trial), "give at least one image"),
        "absent": (("inpaint", "absent.png", *trial), "there is no image absent.png"),
        "unreadable": (("denoise", "text.png"), "text.png is not an image of a known format"),
        "an empty folder": (("denoise", "empty"), "there is no image in empty"),
        "nothing missing": (("inpaint", "photo.png"), "no missing pixels are given for photo.png"),
        "no colour": (
            ("inpaint", "photo.png", "--mask-colour", "pink"),
            "a colour must have the form '#rrggbb'",
        ),
        "another colour": (
            ("inpaint", "photo.png", "--mask-colour", "#ff00ff"),
            "has the colour #ff00ff",
        ),
        "mask of another size": (
            ("inpaint", "photo.png", "--mask", "wide.png"),
            "wide.png is 30×24, but photo.png is",
        ),
        "black mask": (
            ("inpaint", "photo.png", "--mask", "black.png"),
            "no pixel of photo.png is known",
        ),
        "absent mask": (("inpaint", "photo.png", "--mask", "no.png"), "there is no image no.png"),
        "mask and missing": (
            ("inpaint", "photo.png", "--mask", "black.png", *trial),
            "give only one of --mask, --mask-colour and --missing",
        ),
        "truth of another size": (
            ("denoise", "photo.png", "--truth", "wide.png"),
            "wide.png is 30×24",
        ),
        "truth with other channels": (
            ("denoise", "photo.png", "--truth", "black.png"),
            "3 channels, but its truth 1",
        ),
        "a file for a folder": (("denoise", "photo.png", "--out", "text.png"), "text.png"),
        "no folder possible": (("denoise", "photo.png", "--out", "text.png/out"), "text.png"),
        "overwriting": (("denoise", "photo.png", "--out", "."), "photo.png would be overwritten"),
        "overwriting a mask": (
            ("inpaint", "sub/layers.psd", "--mask", "masks/layers.png", "--out", "masks"),
            "the mask masks/layers.png would be overwritten by the restored sub/layers.psd",
        ),
        "overwriting a truth": (
            ("denoise", "sub/layers.psd", "--truth", "masks", "--out", "masks"),
            "the truth masks/layers.png would be overwritten by the restored sub/layers.psd",
        ),
        "one name twice after conversion": (
            ("denoise", "sub/layers.psd", "layers.png"),
            "sub/layers.psd and layers.png would both be written to out/solve/layers.png",
        ),
        "the name of the page": (
            ("denoise", "sub/index.html"),
            "would be written to out/solve/index.html, which is the name of a report",
        ),
        "one name twice": (("denoise", "photo.png", "sub/photo.png"), "would both be written to"),
        "negative weight": (("denoise", "photo.png", "--weight", -1), "weight must be positive"),
        "no weight": (("denoise", "photo.png", "--weight", "nan"), "weight must be positive"),
        "too much missing": (
            ("inpaint", "photo.png", "--missing", 1),
            "missing must be between 0 and 1",
        ),
        "iterations": (
            ("denoise", "photo.png", "--iterations", 0),
            "iterations must be at least 1",
        ),
        "tolerance": (("denoise", "photo.png", "--tolerance", 0), "tolerance must be in (0, 1)"),
        "method": (("denoise", "photo.png", "--method", "nestorov"), "did you mean 'nesterov'?"),
        "mirror": (
            ("inpaint", "photo.png", *trial, "--mirror", "photo-inpant-lpd"),
            "did you mean 'photo-inpaint-lpd'?",
        ),
        "mirror file": (
            ("inpaint", "photo.png", *trial, "--mirror", "text.safetensors"),
            "there is no file",
        ),
        "no kernel": (
            ("denoise", "photo.png", "--method", "lamd", "--fused"),
            "AMD has no kernel for TVInpainting",
        ),
        "wrong method": (
            ("inpaint", "photo.png", *trial, "--method", "dual-fista"),
            "DualFISTA needs a strongly convex",
        ),
    }


@pytest.mark.parametrize(("arguments", "message"), mistakes().values(), ids=mistakes().keys())
def test_mistakes_end_in_one_line_and_leave_nothing(here, monkeypatch, capsys, arguments, message):
    (here / "text.png").write_text("no image")
    (here / "empty").mkdir()
    (here / "sub").mkdir()
    (here / "masks").mkdir()
    Image.fromarray(photo()).save("sub/photo.png")
    Image.fromarray(photo()).save("sub/index.html", format="PNG")
    Image.fromarray(photo()).save("layers.png")
    Image.fromarray(photo()).save("masks/layers.png")
    (here / "sub" / "layers.psd").write_bytes(photoshop_file(photo()))
    Image.fromarray(np.full((24, 30), 255, np.uint8)).save("wide.png")
    Image.fromarray(np.zeros((24, 20), np.uint8)).save("black.png")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert run(monkeypatch, *arguments) == 2
    chatter = ("photographs: ", "photo.png: ", "wide.png says", "black.png says")
    error = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(chatter)]
    assert len(error) == 1
    assert error[0].startswith("mirrordescent: ")
    assert message in error[0]
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


def test_an_interruption_leaves_whole_files_only(here, monkeypatch, capsys):
    Image.fromarray(photo(30, 16)).save("second.png")
    real = pipeline._restore
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(pipeline, "_restore", interrupted)
    assert run(monkeypatch, "denoise", "photo.png", "second.png", "--prior", "tv") == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "mirrordescent: interrupted; 1 of the photographs are restored, and the same command with "
        "--resume restores the others"
    )
    assert {path.name for path in (here / "out" / "solve").iterdir()} == {
        "photo.png",
        "restored.jsonl",
    }
    with Image.open("out/solve/photo.png") as done:
        done.load()


def clean_photo(height=64, width=80):
    rows, columns = np.mgrid[:height, :width]
    shapes = np.stack([np.sin(rows / 9), np.cos(columns / 11), np.sin((rows + columns) / 13)], -1)
    return ((0.5 + 0.3 * shapes).clip(0, 1) * 255).round().astype(np.uint8)


def noisy(sigma, seed=0):
    values = clean_photo() / 255 + sigma * np.random.default_rng(seed).standard_normal((64, 80, 3))
    return (values.clip(0, 1) * 255).round().astype(np.uint8)


def test_the_weight_is_chosen_by_the_noise(here, monkeypatch, capsys):
    for percent in (3, 10):
        Image.fromarray(noisy(percent / 100)).save(f"noise{percent}.png")
    Image.fromarray(clean_photo()).save("clean.png")
    photos = ("noise3.png", "noise10.png", "--truth", "clean.png")
    assert run(monkeypatch, "denoise", *photos, "--json") == 0
    learned = json.loads(capsys.readouterr().out)["images"]
    assert [image["prior"] for image in learned] == ["photo-prior", "photo-prior"]
    assert all(image["psnr"] > image["psnr_before"] + 4 for image in learned)
    assert run(monkeypatch, "denoise", *photos, "--prior", "tv", "--json") == 0
    images = json.loads(capsys.readouterr().out)["images"]
    assert [image["noise"] for image in images] == pytest.approx([0.03, 0.1], rel=0.15)
    assert images[1]["weight"] > 2 * images[0]["weight"]
    assert all(image["psnr"] > image["psnr_before"] + 4 for image in images)
    assert run(monkeypatch, "denoise", "noise3.png") == 0
    assert re.match(r"out/solve/noise3.png: noise about [23].\d? ?%", capsys.readouterr().out)


def test_a_photograph_without_noise_is_left_as_it_is(here, monkeypatch, capsys):
    Image.fromarray(clean_photo()).save("clean.png")
    assert run(monkeypatch, "denoise", "clean.png") == 0
    assert "hardly any noise, left as it is" in capsys.readouterr().out
    assert np.array_equal(np.asarray(Image.open("out/solve/clean.png")), clean_photo())


def test_what_is_known_is_kept_if_there_is_no_noise_or_if_asked_for(here, monkeypatch, capsys):
    for name, pixels in (("clean", clean_photo()), ("noisy", noisy(0.05))):
        Image.fromarray(pixels).save(f"{name}.png")
    mask = np.full((64, 80), 255, np.uint8)
    mask[20:24] = 0
    mask[:, 30] = 0
    Image.fromarray(mask).save("mask.png")
    for name, options, kept in (
        ("clean", (), True),
        ("noisy", (), False),
        ("noisy", ("--keep-known",), True),
        ("clean", ("--no-keep-known",), False),
    ):
        assert run(monkeypatch, "inpaint", f"{name}.png", "--mask", "mask.png", *options) == 0
        assert ("known pixels kept" in capsys.readouterr().out) == kept
        restored, original = (
            np.asarray(Image.open(p)) for p in (f"out/solve/{name}.png", f"{name}.png")
        )
        assert np.array_equal(restored[mask > 0], original[mask > 0]) == kept
    assert run(monkeypatch, "inpaint", "clean.png", "--mask", "mask.png") == 0
    restored = np.asarray(Image.open("out/solve/clean.png")).astype(float)
    assert np.abs(restored - clean_photo())[mask == 0].mean() < 2


def test_one_bad_file_costs_only_itself(here, monkeypatch, capsys):
    (here / "in").mkdir()
    for name in ("a", "c", "d"):
        Image.fromarray(photo()).save(f"in/{name}.png")
    (here / "in" / "b.png").write_bytes((here / "in" / "a.png").read_bytes()[:400])
    (here / "in" / "e.png").write_text("no image")
    assert run(monkeypatch, "denoise", "in", "--json") == 1
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert [image["file"] for image in report["images"]] == ["in/a.png", "in/c.png", "in/d.png"]
    assert list(report["failed"]) == ["b.png", "e.png"]
    assert "2 of 5 photographs were not restored" in captured.err
    assert "e.png: in/e.png is not an image of a known format" in captured.err
    page = (here / "out/solve/index.html").read_text()
    assert "Not restored" in page
    assert 'href="./c.png"' in page


def test_a_run_is_resumed(here, monkeypatch, capsys):
    (here / "in").mkdir()
    for name in ("a", "b", "c"):
        Image.fromarray(photo()).save(f"in/{name}.png")
    assert run(monkeypatch, "denoise", "in", "--json") == 0
    first = json.loads(capsys.readouterr().out)["images"]
    (here / "out/solve/b.png").unlink()
    Image.fromarray(photo(seed=9)).save("in/c.png")
    times = {name: (here / f"out/solve/{name}.png").stat().st_mtime_ns for name in ("a", "c")}
    assert run(monkeypatch, "denoise", "in", "--json", "--resume") == 0
    again = json.loads(capsys.readouterr().out)["images"]
    assert [image["file"] for image in again] == [image["file"] for image in first]
    assert again[0] == first[0]
    assert (here / "out/solve/b.png").is_file()
    assert (here / "out/solve/a.png").stat().st_mtime_ns == times["a"]
    assert (here / "out/solve/c.png").stat().st_mtime_ns > times["c"]
    assert (
        run(monkeypatch, "denoise", "in", "--weight", 0.2, "--resume") == 0
    )  # another setting: nothing is done yet
    assert (here / "out/solve/a.png").stat().st_mtime_ns > times["a"]


def test_damaged_notes_of_what_is_done_are_done_again(here, monkeypatch, capsys):
    (here / "in").mkdir()
    for name in ("a", "b"):
        Image.fromarray(photo()).save(f"in/{name}.png")
    assert run(monkeypatch, "denoise", "in") == 0
    notes = here / "out/solve" / RECORDS
    lines = notes.read_bytes().splitlines()
    for wrong in (
        b"\xff" + lines[0],
        lines[0][:40],
        lines[0].replace(b'"width": 2', b'"width": 3'),
        b"[]",
        b"{}",
    ):
        assert wrong != lines[0]
        notes.write_bytes(wrong + b"\n" + lines[1] + b"\n")
        times = {name: (here / f"out/solve/{name}.png").stat().st_mtime_ns for name in ("a", "b")}
        assert run(monkeypatch, "denoise", "in", "--resume") == 0
        assert (here / "out/solve/a.png").stat().st_mtime_ns > times["a"]
        assert (here / "out/solve/b.png").stat().st_mtime_ns == times["b"]


def test_iterations_are_counted_in_all(here, monkeypatch, capsys):
    for options in ((), ("--tolerance", 1e-7)):
        run(
            monkeypatch,
            "inpaint",
            "photo.png",
            "--missing",
            0.3,
            "--iterations",
            30,
            "--json",
            *options,
        )
        (image,) = json.loads(capsys.readouterr().out)["images"]
        assert sum(image["iterations"].values()) <= 30


def test_seconds_are_a_photographs_own(here, monkeypatch, capsys):
    (here / "in").mkdir()
    for index in range(6):
        Image.fromarray(photo(seed=index)).save(f"in/{index}.png")
    began = time.perf_counter()
    assert run(monkeypatch, "denoise", "in", "--json") == 0
    took = time.perf_counter() - began
    assert sum(image["seconds"] for image in json.loads(capsys.readouterr().out)["images"]) <= took


def test_masks_are_explained_and_questioned(here, monkeypatch, capsys):
    mask = np.full((24, 20), 255, np.uint8)
    mask[4:6] = 0
    Image.fromarray(mask).save("mask.png")
    Image.fromarray(255 - mask).save("inverted.png")
    assert run(monkeypatch, "inpaint", "photo.png", "--mask", "mask.png") == 0
    assert "photo.png: white = known; 8.3% missing" in capsys.readouterr().err
    run(monkeypatch, "inpaint", "photo.png", "--mask", "inverted.png")
    assert "if white means missing there, add --mask-white missing" in capsys.readouterr().err
    assert (
        run(
            monkeypatch, "inpaint", "photo.png", "--mask", "inverted.png", "--mask-white", "missing"
        )
        == 0
    )
    said = capsys.readouterr()
    assert "photo.png: white = missing; 8.3% missing" in said.err
    assert "add --mask-white" not in said.err


@pytest.fixture
def trial(here):
    """Two photographs with masks and truths, and the arguments to restore them."""
    mask = np.full((24, 20), 255, np.uint8)
    mask[4:6] = 0
    for folder in ("in", "masks", "truth"):
        (here / folder).mkdir()
    for name in ("a", "b"):
        Image.fromarray(photo()).save(f"in/{name}.png")
        Image.fromarray(photo()).save(f"truth/{name}.png")
        Image.fromarray(mask).save(f"masks/{name}.png")
    zoo.save(zoo.load("image-tv-isotropic"), here / "own")
    return ("inpaint", "in", "--mask", "masks", "--truth", "truth", "--iterations", 3)


def written(here):
    return {path.name: path.stat().st_mtime_ns for path in (here / "out/solve").glob("*.png")}


RESUMED = {
    "method": ("--method", "pdhg", "--isotropic", "yes", "--coupled", "yes"),
    "map": ("--mirror", "own.safetensors"),
    "tolerance": ("--tolerance", 0.5),
    "iterations": ("--iterations", 4),
    "weight": ("--weight", 0.1),
    "known pixels": ("--keep-known", "no"),
    "kernels": ("--fused", "no"),
    "form of the total variation": ("--coupled", "no"),
}


@pytest.mark.parametrize("options", RESUMED.values(), ids=RESUMED.keys())
def test_a_result_made_by_other_options_is_made_again(here, monkeypatch, trial, options):
    assert run(monkeypatch, *trial) == 0
    first = written(here)
    assert run(monkeypatch, *trial, "--resume") == 0
    assert written(here) == first
    run(monkeypatch, *trial, *options, "--resume")
    second = written(here)
    assert all(second[name] > first[name] for name in first)
    run(monkeypatch, *trial, *options, "--resume")
    assert written(here) == second


def test_a_result_of_another_entry_in_the_same_file_is_made_again(here, monkeypatch, trial):
    own = (*trial, "--mirror", "own.safetensors", "--isotropic", "yes", "--resume")
    assert run(monkeypatch, *own) == 0
    first = written(here)
    method = zoo.load("image-tv-isotropic")
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.mul_(1.01)
    zoo.save(method, here / "own")
    assert run(monkeypatch, *own) == 0
    assert all(time > first[name] for name, time in written(here).items())


@pytest.mark.parametrize("changed", ["in/a.png", "masks/a.png", "truth/a.png", "out/solve/a.png"])
def test_a_result_is_made_again_if_a_file_changed(here, monkeypatch, trial, changed):
    """The changed file has the same size and time, so only its content tells."""
    assert run(monkeypatch, *trial) == 0
    first = written(here)
    content = bytearray((here / changed).read_bytes())
    time = (here / changed).stat().st_mtime_ns
    if changed == "masks/a.png":
        inverted = 255 - np.asarray(Image.open(changed))
        Image.fromarray(inverted).save(changed)
    elif changed.startswith("out"):
        content[-20] ^= 1
        (here / changed).write_bytes(content)
    else:
        Image.fromarray(photo(seed=3)).save(changed)
    os.utime(changed, ns=(time, time))
    assert run(monkeypatch, *trial, "--resume") == 0
    second = written(here)
    assert second["a.png"] > first["a.png"]
    assert second["b.png"] == first["b.png"]
    with Image.open("out/solve/a.png") as restored:
        restored.load()


def test_records_do_not_depend_on_names_in_the_code(here, monkeypatch, trial):
    assert run(monkeypatch, *trial) == 0
    first = written(here)
    monkeypatch.setattr(jobs.RestorationSettings, "__repr__", lambda self: "Renamed()")
    monkeypatch.setattr(Masks, "__repr__", lambda self: "RenamedToo()")
    assert run(monkeypatch, *trial, "--resume") == 0
    assert written(here) == first


def test_records_hold_in_another_folder(here, monkeypatch, trial):
    assert run(monkeypatch, *trial) == 0
    first = written(here)
    monkeypatch.chdir(here / "in")
    arguments = [f"../{each}" if each in ("in", "masks", "truth") else each for each in trial]
    assert run(monkeypatch, *arguments, "--out", "../out/solve", "--resume") == 0
    assert written(here) == first


def test_names_that_are_no_text_are_restored_and_shown_escaped(here, monkeypatch, capsys):
    (here / "in").mkdir()
    names = ("two\nlines.png", "caf\udce9.png", "a.png", "bad\udcff.png")
    for name in names[:3]:
        Image.fromarray(photo()).save("in/a.png")
        os.rename("in/a.png", f"in/{name}")
    (here / "in" / names[3]).write_text("no image")
    assert run(monkeypatch, "denoise", "in") == 1
    captured = capsys.readouterr()
    assert {path.name for path in (here / "out/solve").glob("*.png")} == set(names[:3])
    assert r"out/solve/two\u000alines.png: " in captured.out
    assert r"bad\udcff.png: " in captured.err
    page = (here / "out/solve/index.html").read_text(encoding="utf-8")
    for shown, link in (
        (r"two\u000alines.png", "two%0Alines.png"),
        (r"caf\udce9.png", "caf%E9.png"),
    ):
        assert shown in page
        assert f'href="./{link}"' in page
    assert r"bad\udcff.png" in page
    assert run(monkeypatch, "denoise", "in", "--resume", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert {image["file"] for image in report["images"]} == {f"in/{name}" for name in names[:3]}


def test_no_photograph_in_a_folder_is_left_out_in_silence(here, monkeypatch, capsys):
    (here / "in" / "closed").mkdir(parents=True)
    Image.fromarray(photo()).save("in/a.png")
    (here / "in" / "notes.txt").write_text("no image")
    os.symlink("loop.png", "in/loop.png")
    os.symlink("absent.png", "in/link.png")
    os.symlink("..", "in/up")
    real = os.scandir

    def scandir(folder):
        if str(folder).endswith("closed"):  # as for other users than the superuser
            raise PermissionError(13, "Permission denied", str(folder))
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert run(monkeypatch, "denoise", "in", "--out", "in/restored") == 1
    said = capsys.readouterr().err
    assert (
        "1 file was left out, without the suffix of an image that can be read:\n  in/notes.txt"
        in said
    )
    assert "3 of 4 photographs were not restored" in said
    assert "in/closed: this folder cannot be read: Permission denied" in said
    assert "link.png: in/link.png is a link to a file that does not exist" in said
    assert "loop.png: in/loop.png is a link to a file that does not exist" in said
    assert run(monkeypatch, "denoise", "in", "--out", "in/restored") == 1
    assert not (here / "in/restored/restored").exists()  # results are no photographs to restore


def test_a_terminal_without_unicode_costs_nothing(here):
    """A terminal that cannot show × gets an escape, and JSON stays JSON."""
    Image.fromarray(photo()).save("é.png")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "mirrordescent", "solve", "denoise", "é.png"]
    options = ("--weight", "0.1", "--iterations", "2", "--fused", "no")
    for last in ("--verbose", "--json"):
        ended = subprocess.run(
            [*command, *options, last], env=environment, capture_output=True, check=True
        )
    assert (here / "out/solve/index.html").is_file()
    (image,) = json.loads(ended.stdout)["images"]
    assert image["file"] == "é.png"


def test_a_blur_is_undone(here, monkeypatch, capsys):
    point = np.zeros((5, 5), np.uint8)
    point[2, 1:4] = 255
    Image.fromarray(point).save("kernel.png")
    few = ("--iterations", 5, "--json")
    for blur in (("--gaussian", 0.8), ("--motion", "3,0"), ("--kernel", "kernel.png")):
        assert run(monkeypatch, "deblur", "photo.png", *blur, *few) == 0
        (image,) = json.loads(capsys.readouterr().out)["images"]
        assert image["iterations"] == {"photo-prior-deblur": 5}
        assert image["noise"] == pytest.approx(0.03, rel=0.3)
    assert run(monkeypatch, "deblur", "photo.png") == 2
    assert "exactly one of --kernel" in capsys.readouterr().err
    assert run(monkeypatch, "deblur", "photo.png", "--motion", "long") == 2
    assert "such as 9,30" in capsys.readouterr().err


def test_a_photograph_is_enlarged_and_compared_with_its_truth(here, monkeypatch, capsys):
    Image.fromarray(photo(24, 20)).resize((10, 12), Image.Resampling.BOX).save("small.png")
    arguments = ("upsample", "small.png", "--truth", "photo.png", "--iterations", 20, "--json")
    assert run(monkeypatch, *arguments) == 0
    (image,) = json.loads(capsys.readouterr().out)["images"]
    assert (image["width"], image["height"]) == (20, 24)
    assert image["psnr"] > 20
    with Image.open("out/solve/small.png") as enlarged:
        assert enlarged.size == (20, 24)
    assert run(monkeypatch, "upsample", "small.png", "--truth", "small.png") == 2
    assert "2 times as large" in capsys.readouterr().err


def test_noise_and_strength_in_plain_units(here, monkeypatch, capsys):
    def weight(*options):
        assert run(monkeypatch, "denoise", "photo.png", "--prior", "tv", "--json", *options) == 0
        return json.loads(capsys.readouterr().out)["images"][0]["weight"]

    assert weight("--noise", 0.02) < weight("--noise", 0.04)
    assert weight("--noise", 0.04) < weight("--noise", 0.04, "--strength", 1.5)
    assert run(monkeypatch, "denoise", "photo.png", "--noise", 0.04, "--weight", 0.1) == 2
    assert "either a weight" in capsys.readouterr().err
    for option in (("--method", "gd"), ("--coupled", "no"), ("--isotropic", "yes")):
        assert run(monkeypatch, "denoise", "photo.png", "--prior", "photo", *option) == 2
        assert "for --prior tv" in capsys.readouterr().err
        assert run(monkeypatch, "denoise", "photo.png", "--iterations", 3, *option) == 0
        assert "weight" in capsys.readouterr().out


def test_what_cannot_be_decided_or_invented_is_said(here, monkeypatch, capsys):
    mask = np.full((24, 40), 255, np.uint8)
    mask[:, 10:32] = 0
    Image.fromarray(mask).save("mask.png")
    Image.fromarray(photo(24, 40)).save("wide.png")
    assert run(monkeypatch, "inpaint", "wide.png", "--mask", "mask.png", "--tolerance", 0.05) == 0
    assert "deeper than about 8 pixels are filled smoothly, not inv" in capsys.readouterr().out
    assert run(monkeypatch, "inpaint", "wide.png", "--missing", 0.3) == 0
    assert "deeper than" not in capsys.readouterr().out
    monkeypatch.setattr("mirrordescent.restore.noise.LARGEST_ERROR", 0.0)
    assert run(monkeypatch, "denoise", "photo.png") == 0
    said = capsys.readouterr().out
    assert "give it with --noise, left as it is" in said
    assert (here / "out" / "solve" / "photo.png").read_bytes() == (here / "photo.png").read_bytes()


def test_files_that_are_not_read_are_listed(here, monkeypatch, capsys):
    (here / "in").mkdir()
    Image.fromarray(photo()).save("in/a.png")
    for name in ("phone.heic", "camera.dng"):
        (here / "in" / name).write_bytes(b"raw")
    assert run(monkeypatch, "denoise", "in", "--weight", 0.1, "--json") == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out)["skipped"] == ["in/camera.dng", "in/phone.heic"]
    assert "2 files were left out" in streams.err
    assert "  in/phone.heic" in streams.err
    assert "phone.heic" in (here / "out" / "solve" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("task", ["denoise", "inpaint", "deblur", "upsample", "problems"])
def test_help_has_no_types_of_python(monkeypatch, capsys, task):
    assert run(monkeypatch, task, "--help") == 0
    text = capsys.readouterr().out
    for notation in ("{None}", "[[", "default: None", "default: )"):
        assert notation not in text
    assert "-o FOLDER" in text


def test_short_options_and_other_spellings(here, monkeypatch, capsys):
    code = run(monkeypatch, "inpaint", "photo.png", "--mask-color", "#ff00ff", "-q", "-o", "short")
    assert code == 2
    assert "no pixel of photo.png has the colour #ff00ff" in capsys.readouterr().err
    assert run(monkeypatch, "denoise", "photo.png", "-q", "-v", "-o", "short") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert (here / "short" / "photo.png").exists()
    assert run(monkeypatch, "denoise", "photo.png", "-r", "-o", "short") == 0
