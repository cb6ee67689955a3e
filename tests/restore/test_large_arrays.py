"""Arrays in windows: one bound for the whole, interruptions, memory, kinds of arrays."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import mirrordescent as md
from mirrordescent import cli, kernels
from mirrordescent.restore import array_blocks, large_arrays
from mirrordescent.restore.large_arrays import TiffPages, denoise_large

pytestmark = pytest.mark.usefixtures("compiled")


def noisy(*shape, seed=0):
    generator = np.random.default_rng(seed)
    axes = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    return (sum(a**2 for a in axes) < 0.5) * 0.7 + 0.1 * generator.standard_normal(shape)


def untiled(y, weight, axis_weights, isotropic, gap=1e-8):
    problem = md.GridTV(
        torch.from_numpy(y)[None, None], weight, axis_weights=axis_weights, isotropic=isotropic
    )
    return problem, md.solve(
        problem,
        md.PDHG(problem.ratio, 1.8),
        iterations=5000,
        check_every=50,
        stop=md.gap(gap),
        progress=False,
    )


def small_windows(monkeypatch, margin=2):
    monkeypatch.setattr(array_blocks, "MARGIN", margin)


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("shape", [(40, 44), (14, 15, 16)], ids=str)
def test_the_bound_is_that_of_the_whole_array(shape, isotropic, tmp_path, monkeypatch):
    small_windows(monkeypatch)
    y = noisy(*shape)
    weights = (0.5, 1.0, 2.0)[: len(shape)]
    problem, whole = untiled(y, 0.2, weights, isotropic)
    out = np.zeros(shape)
    points = y.size // 2
    result = denoise_large(
        y,
        out,
        tmp_path,
        weight=0.2,
        memory=points * large_arrays.ARRAYS * 8,
        dtype=torch.float64,
        axis_weights=weights,
        isotropic=isotropic,
        gap=1e-5,
    )
    assert result.windows >= 4
    assert result.converged
    scale = float(whole.value)
    assert abs(result.lower - float(whole.lower)) <= 1e-5 * scale
    assert result.lower <= float(whole.value)
    # The value of the result, by plain torch
    with kernels.disabled():
        value = float(problem.value(torch.from_numpy(out)[None, None]))
    assert value <= result.value <= value * (1 + 1e-9)
    np.testing.assert_allclose(out, whole.x[0, 0].numpy(), atol=2e-2)


def test_a_picture_in_sixteen_tiles_has_the_bound_of_the_picture(tmp_path, monkeypatch):
    y = noisy(256, 256)
    monkeypatch.setattr(
        large_arrays,
        "windows",
        lambda shape, points: [
            array_blocks.grown((slice(i, i + 64), slice(0, 1), slice(j, j + 64)), shape, 12, 12)
            for i in range(0, 256, 64)
            for j in range(0, 256, 64)
        ],
    )
    _, whole = untiled(y, 0.15, None, True, gap=1e-6)
    out = np.zeros_like(y)
    result = denoise_large(
        y, out, tmp_path, weight=0.15, memory=10**9, dtype=torch.float64, gap=1e-6
    )
    assert result.windows == 16
    assert result.converged
    assert abs(result.lower - float(whole.lower)) <= 1e-6 * float(whole.value) * 3


class Killed(Exception):
    pass


def test_an_interrupted_run_continues(tmp_path, monkeypatch):
    small_windows(monkeypatch)
    y = noisy(30, 34)
    arguments = {
        "weight": 0.2,
        "memory": 500 * large_arrays.ARRAYS * 4,
        "gap": 1e-3,
    }
    once = np.zeros(y.shape, np.float32)
    expected = denoise_large(y, once, tmp_path / "a", **arguments)
    seen = []

    def kill(limit):
        def interrupt(sweep, window):
            seen.append((sweep, window))
            if len(seen) == limit:
                raise Killed

        return interrupt

    again = np.zeros(y.shape, np.float32)
    for limit in (2, 3):
        with pytest.raises(Killed):
            denoise_large(y, again, tmp_path / "b", interrupt=kill(limit), **arguments)
    result = denoise_large(y, again, tmp_path / "b", **arguments)
    assert seen[:3] == [(0, 0), (0, 1), (0, 2)]
    assert result == expected
    np.testing.assert_array_equal(again, once)


class Watched:
    """An array that records the largest box that is read or written."""

    def __init__(self, array):
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.largest = 0

    def __getitem__(self, key):
        part = self.array[key]
        self.largest = max(self.largest, part.size)
        return part

    def __setitem__(self, key, values):
        self.largest = max(self.largest, values.size)
        self.array[key] = values


def test_boxes_fit_into_the_memory(tmp_path, monkeypatch):
    small_windows(monkeypatch)
    y = Watched(noisy(24, 25, 26))
    out = Watched(np.zeros(y.shape))
    points = 3000
    memory = points * large_arrays.ARRAYS * 4
    result = denoise_large(y, out, tmp_path, weight=0.2, memory=memory, gap=1e-2)
    assert result.converged
    assert result.windows >= 8
    # A window has one more layer at the end of every axis.
    assert y.largest <= points * 1.3
    assert out.largest <= points


def test_zarr_and_pages(tmp_path):
    zarr = pytest.importorskip("zarr")
    Image = pytest.importorskip("PIL.Image")
    y = (255 * noisy(6, 20, 24).clip(0, 1)).astype(np.uint8)
    pages = [Image.fromarray(page) for page in y]
    pages[0].save(tmp_path / "y.tiff", save_all=True, append_images=pages[1:])
    stored = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=y.shape, dtype="u1", chunks=(2, 8, 8)
    )
    denoise_large(TiffPages(tmp_path / "y.tiff"), stored, tmp_path / "a", weight=20.0, memory=10**8)
    plain = np.zeros_like(y)
    denoise_large(y, plain, tmp_path / "b", weight=20.0, memory=10**8)
    np.testing.assert_array_equal(stored[:], plain)
    assert plain.std() < y.std()


def test_errors(tmp_path):
    y = np.zeros((4, 4))
    with pytest.raises(ValueError, match="out must have the shape"):
        denoise_large(y, np.zeros((4, 5)), tmp_path, weight=1.0, memory=10**8)
    with pytest.raises(ValueError, match="2 or 3 axes"):
        denoise_large(np.zeros(4), np.zeros(4), tmp_path, weight=1.0, memory=10**8)
    with pytest.raises(ValueError, match="not finite"):
        denoise_large(y + np.nan, y.copy(), tmp_path, weight=1.0, memory=10**8)
    big = np.zeros((300, 300))
    with pytest.raises(ValueError, match="memory is too small"):
        denoise_large(big, big.copy(), tmp_path, weight=1.0, memory=10**4)


@pytest.mark.parametrize("suffix", [".npy", ".zarr", ".tif"])
def test_the_command_solves_files(suffix, tmp_path, monkeypatch, capsys):
    y = noisy(8, 20, 24).astype(np.float32)
    path = tmp_path / f"scan{suffix}"
    if suffix == ".npy":
        np.save(path, y)
    elif suffix == ".zarr":
        zarr = pytest.importorskip("zarr")
        stored = zarr.create_array(str(path), shape=y.shape, dtype="float32", chunks=(2, 8, 8))
        stored[:] = y
    else:
        Image = pytest.importorskip("PIL.Image")
        pages = [Image.fromarray(page) for page in y]
        pages[0].save(path, save_all=True, append_images=pages[1:])
    command = ["mirrordescent", "solve", "array", str(path), "--weight", "0.2", "--spacing"]
    monkeypatch.setattr(
        sys, "argv", [*command, "2", "1", "1", "--json", "--out", str(tmp_path / "out")]
    )
    cli.main()  # raises SystemExit if the gap is not proven
    assert '"converged": true' in capsys.readouterr().out
    name = tmp_path / "out" / ("scan.zarr" if suffix == ".zarr" else "scan.npy")
    found = zarr.open_array(str(name))[:] if suffix == ".zarr" else np.load(name)
    expected = md.denoise(y, axes=(0, 1, 2), spacing=(2, 1, 1), weight=0.2)
    np.testing.assert_allclose(found, expected, atol=0.05)
