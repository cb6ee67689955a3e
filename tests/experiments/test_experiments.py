"""Experiments at the quick scale: they run on bundled data and write what they promise."""

from __future__ import annotations

import csv
import json
import math

import pytest
import torch

from mirrordescent import GD, Quadratic
from mirrordescent.experiments import names, reproduce
from mirrordescent.experiments.claims import imaging_claims
from mirrordescent.experiments.contest import Contest, Tunable, grid, recorded_iterations
from mirrordescent.experiments.result import Claim, Curve, Result


@pytest.mark.parametrize("name", names())
def test_the_quick_scale_writes_everything(name, tmp_path, monkeypatch):
    monkeypatch.delenv("MIRRORDESCENT_DATA", raising=False)
    result = reproduce(name, "quick", tmp_path, tmp_path / "no data", say=lambda line: None)
    folder = tmp_path / name
    rows = list(csv.DictReader((folder / "curves.csv").read_text().splitlines()))
    summary = json.loads((folder / "summary.json").read_text())
    assert {row["panel"] for row in rows} == set(result.panels) == set(summary["mean_gaps"])
    for panel, curves in result.panels.items():
        for suffix in ("png", "svg"):
            assert (folder / f"{panel.replace(' ', '-')}.{suffix}").stat().st_size > 5000
        for curve in curves:
            assert curve.gaps.shape == (len(curve.iterations), len(rows_of(rows, panel, curve, curve.iterations[0])))
            assert not (curve.gaps < -1e-3).any(), "a value below a proven lower bound"
    compared = " ".join(curve.name for curve in result.panels["comparison from y"])
    for method in ("LMD", "LSMD", "LAMD", "LASMD", "one-network LAMD", "GD", "Nesterov", "Adam", "LPD", "PDHG"):
        assert method in compared


def test_claims_can_fail(tmp_path, monkeypatch):
    """Curves made to order: ours falls like k^−2 and wins, or like k^−½ and loses."""
    monkeypatch.setattr("mirrordescent.experiments.figure.draw_panel", lambda *args: None)

    def result(ours, theirs, recorded=(0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)):
        def curve(name, power):
            gaps = torch.tensor([[100.0]] + [[100.0 * k**power] for k in recorded[1:]], dtype=torch.float64)
            return Curve(name, list(recorded), [0.0] * len(recorded), gaps)

        learned = [curve(name, ours) for name in ("LMD (mean)", "LSMD (last)", "LAMD (mean)", "LASMD (mean)")]
        learned += [curve(f"one-network {name}", ours) for name in ("LSMD", "LAMD", "LASMD")]
        rivals = [
            curve(name, theirs) for name in ("GD (1)", "Nesterov (1)", "Adam (1)", "PDHG (1)", "early PDHG (1)", "LPD")
        ]
        rules = [curve("reciprocal", ours), curve("mean", theirs)]
        panels = {f"{name} extensions": rules for name in ("LMD", "LSMD", "LAMD", "LASMD")}
        return Result("inpaint", "title", {"scale": "standard"}, {**panels, "comparison from y": learned + rivals})

    def verdicts(made):
        made.write(tmp_path)
        return {claim.statement: claim.holds for claim in imaging_claims(Result.read(tmp_path, "title"))}

    won, lost = verdicts(result(-2.0, -0.5)), verdicts(result(-0.5, -2.0))
    for statement in won:
        if "is below" in statement and "LMD" not in statement.split("is below")[1]:
            assert won[statement], statement
            assert not lost[statement], statement
    assert won["from y: LAMD falls about like k^-2, or faster, over k = 45 … 2000"]
    assert not lost["from y: LAMD falls about like k^-2, or faster, over k = 45 … 2000"]
    assert won["the reciprocal rule is best for LAMD at k = 2000"]
    assert not won["a constant step is best for LASMD at k = 2000"]
    assert not won["from y: primal-stored LMD rises after k = 50, dual-stored LSMD falls"]


def rows_of(rows, panel, curve, k):
    return [r for r in rows if (r["panel"], r["method"], int(r["iteration"])) == (panel, curve.name, k)]


def test_grids_are_those_of_the_appendix():
    assert grid(2e-4, 1e-1) == pytest.approx([2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1])
    assert grid(1e-4, 5e-3) == pytest.approx([1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3])
    assert {1, 10, 50, 100, 1000, 2000} <= set(recorded_iterations(2000))
    assert max(recorded_iterations(60)) == 60


def bowls(*curvatures):
    problem = Quadratic(torch.stack([c * torch.eye(1) for c in curvatures]), torch.zeros(1))
    x0 = torch.ones(len(curvatures), 1)
    return Contest(problem, x0, torch.zeros(len(curvatures), dtype=torch.float64), 50, recorded_iterations(50))


def test_tuning_picks_the_best_of_the_grid():
    contest = bowls(1.0, 1.0)
    assert contest.tune(Tunable("GD", GD, [0.01, 0.9, 2.5]), at=20) == 0.9


def test_a_failed_run_has_no_gap_afterwards():
    curve = bowls(1.0, 100.0).run("GD", GD(0.5))
    assert math.isnan(curve.mean_at(50))
    assert curve.gaps[-1, 0] >= 0
    lost = bowls(100.0).run("GD", GD(0.5))
    assert math.isnan(lost.mean_at(50))


def test_claims_are_written_as_they_came_out():
    curve = Curve("GD", [0, 1], [0.0, 0.1], torch.ones(2, 1))
    result = Result("x", "X", {}, {"all": [curve]}, [Claim("a", True, "1 < 2"), Claim("b", False, "3 > 2")])
    assert "| a | holds | 1 < 2 |" in result.claims_table()
    assert "| b | **does not hold** | 3 > 2 |" in result.claims_table()


def test_unknown_experiments_get_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'inpaint'"):
        reproduce("inpait")
