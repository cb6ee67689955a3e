"""The comparison of restored photographs: its cases, its records, and claims that can fail."""

import json

import pytest
import torch

import mirrordescent as md
from mirrordescent import data
from mirrordescent.restore.deciding import prior_objective
from mirrordescent.restore.request import Request
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
    found = photographs.photographs(scale, None)
    assert parts == ["val"]
    assert len(found) == photographs.COUNTS[scale]
    side = photographs.SIDES[scale]
    crop = photographs.middle(found[0], side)
    assert torch.equal(crop[:, 0, 0], found[0][:, (200 - side) // 2, (180 - side) // 2])
    assert crop.shape == (3, side, side)


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
    ours = (photographs.OURS, photographs.OURS_BLIND, photographs.DEFAULT)
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
            results[f"{kind}, noise {files} 64² 0.05"] = {"": [estimate]}
            results[f"{kind}, noise {files} 48² 0.05"] = {"": [dict(estimate, estimate=1.0)]}
    proof = {"steps": 10.0, "converged": 1.0}
    results["steps: denoise 0.05"] = {"learned": [proof], "control": [dict(proof, steps=12.0)]}
    return results


@pytest.mark.parametrize(("gain", "holds"), [(3.0, True), (-3.0, False)])
def test_claims_hold_or_fail_by_the_numbers(gain, holds):
    result = Result("photographs", "made to order", {})
    results = made_up(gain)
    photographs._judge(result, results)
    photographs._tabulate(result, results)
    by_quality = [claim for claim in result.claims if "CPU time" not in claim.statement]
    unsure = [claim for claim in by_quality if "uncertain" in claim.statement]
    assert len(by_quality) == 16
    assert all(claim.holds for claim in unsure)
    assert all(claim.holds is holds for claim in by_quality if claim not in unsure)
    assert set(result.tables) >= {"denoise: mean PSNR in dB", "noise estimates"}
    assert result.tables["denoise: mean PSNR in dB"].rows[0][0] == "colour, 0.02"
    (steps,) = [table for name, table in result.tables.items() if "controls" in name]
    assert steps.rows == [("denoise 0.05", "10.0", "12.0")]


def test_a_proof_takes_as_many_steps_as_a_solve_that_checks_every_one():
    prior = photographs.data_prior(3)
    y = torch.rand(1, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    request = Request("denoise", noise=0.05)
    objective = prior_objective(y, None, request, [0.05], prior)
    found = photographs.steps_of_proof(objective, "photo-prior-denoise")
    problem = objective.problem()
    best = md.certify(problem, 1e-7, cache=False)
    assert best.proven
    method = md.zoo.load("photo-prior-denoise").method
    state = method.init(objective.start(), problem)
    for _ in range(int(found["steps"])):
        state = method.update(state, problem.grad(state.x))
    decrease = problem.value(objective.start()) - best.lower
    assert float((problem.value(state.x) - best.lower) / decrease) <= 1e-3
    assert found["converged"] == 1


def test_noise_is_estimated_for_all_sizes_and_kinds_of_files():
    photograph = torch.rand(3, 200, 180, generator=torch.Generator().manual_seed(0))
    cases = dict(photographs.noise_estimates(photograph, 0))
    sizes = [f"{side}²" for side in photographs.ESTIMATED_SIDES] + ["whole"]
    assert {name.split()[-2] for name in cases} == set(sizes)
    assert {name.split()[1] for name in cases if "JPEG" in name} == {"60", "75", "85", "95"}
    found = cases["plain 64² 0.05"]()
    assert found["truth"] == pytest.approx(0.05, rel=0.1)


def test_a_rival_that_is_not_installed_decides_nothing():
    results = made_up(3.0)
    for named in results.values():
        named.pop(photographs.BM3D, None)
    result = Result("photographs", "made to order", {})
    photographs._judge(result, results)
    undecided = [claim for claim in result.claims if claim.holds is None]
    assert len(undecided) == 6
    assert "not installed" in undecided[0].measured
