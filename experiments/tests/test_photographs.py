"""The comparison of restored photographs: its cases, its records, and claims that can fail."""

import json

import pytest
import torch

from mirrordescent import data
from mirrordescent_experiments import photographs
from mirrordescent_experiments.result import Result


def test_only_the_pixels_that_count_are_measured():
    clean = torch.zeros(1, 2, 2)
    counted = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    case = photographs.Case("made to order", clean, counted, {})
    x = torch.tensor([[[0.1, 1.0], [1.0, 1.0]]])
    assert photographs.decibels(x, case) == pytest.approx(20, abs=1e-4)


def test_results_are_measured_once_and_kept(tmp_path):
    path = tmp_path / "records.json"
    calls = []

    def compute():
        calls.append(1)
        return {"psnr": 30.0}

    assert photographs.Records(path).measure("a", compute) == {"psnr": 30.0}
    again = photographs.Records(path)
    assert again.measure("a", compute) == {"psnr": 30.0}
    assert len(calls) == 1
    assert json.loads(path.read_text()) == {"a": {"psnr": 30.0}}


@pytest.mark.parametrize("scale", ["quick", "standard"])
def test_validation_photographs_are_used_before_the_last_look(scale, monkeypatch):
    parts = []

    def read(part, directory):
        parts.append(part)
        return [torch.rand(3, 200, 180) for _ in range(40)]

    monkeypatch.setattr(data, "bsds500", read)
    crops = photographs.photographs(scale, None)
    assert parts == ["val"]
    assert len(crops) == photographs.COUNTS[scale]
    assert crops[0].shape == (3, photographs.SIDES[scale], photographs.SIDES[scale])


def test_every_case_is_damaged_and_counts_something():
    clean = torch.rand(3, 40, 40, generator=torch.Generator().manual_seed(0))
    makers = (
        photographs.denoising_cases,
        photographs.inpainting_cases,
        photographs.deblurring_cases,
    )
    names = []
    for make in makers:
        for case in make(clean, 0):
            given = case.contestants[photographs.INPUT]()
            assert given.shape == clean.shape
            assert float(case.counted.sum()) > 0
            assert photographs.decibels(given, case) < 45
            names.append(case.name)
    assert len(names) == len(set(names)) == 3 + 4 + 2


def made_up(gain):
    """Return results in which ours is better than all others by some decibels."""
    results = {}
    cases = [f"denoise {level:g}" for level in photographs.LEVELS]
    cases += ["inpaint text", "deblur motion 9"]
    ours = (photographs.OURS, photographs.OURS_BLIND, photographs.DEFAULT, photographs.PRIOR)
    others = (
        photographs.INPUT,
        photographs.TV,
        photographs.TV_BLIND,
        photographs.BM3D,
        photographs.BIHARMONIC,
        photographs.TV_BEST,
    )
    for kind in ("colour", "grey"):
        for case in cases:
            named = {name: [{"psnr": 30.0 + gain, "cpu": 0.1}] * 2 for name in ours}
            named |= {name: [{"psnr": 30.0, "cpu": 1.0}] * 2 for name in others}
            results[f"{kind}, {case}"] = named
        for files in ("plain", "JPEG"):
            estimate = {"estimate": 0.05 * (1 + max(0.0, -gain)), "truth": 0.05, "certain": 1.0}
            results[f"{kind}, noise {files} 0.05"] = {"": [estimate]}
    return results


@pytest.mark.parametrize(("gain", "holds"), [(3.0, True), (-3.0, False)])
def test_claims_hold_or_fail_by_the_numbers(gain, holds):
    result = Result("photographs", "made to order", {})
    results = made_up(gain)
    photographs._judge(result, results)
    photographs._tabulate(result, results)
    by_quality = [claim for claim in result.claims if "CPU time" not in claim.statement]
    assert len(by_quality) == 14
    assert all(claim.holds is holds for claim in by_quality)
    assert set(result.tables) >= {"denoise: mean PSNR in dB", "noise estimates"}


def test_a_rival_that_is_not_installed_decides_nothing():
    results = made_up(3.0)
    for named in results.values():
        named.pop(photographs.BM3D, None)
    result = Result("photographs", "made to order", {})
    photographs._judge(result, results)
    undecided = [claim for claim in result.claims if claim.holds is None]
    assert len(undecided) == 6
    assert "not installed" in undecided[0].measured
