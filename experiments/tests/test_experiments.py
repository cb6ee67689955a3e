"""Experiments at the quick scale: they run on bundled data and write what they promise."""

from __future__ import annotations

import csv
import json
import math

import pytest
import torch

from mirrordescent import GD, Quadratic
from mirrordescent.contests.contest import Contest, grid, recorded_iterations
from mirrordescent.racing import TunableSolver
from mirrordescent_experiments.claims import by_margin, control_claims, imaging_claims
from mirrordescent_experiments.extensions import beside_controls
from mirrordescent_experiments.reproduction import EXPERIMENTS, reproduce
from mirrordescent_experiments.result import GAP, Claim, Curve, Panel, Result, file_name

GRADIENT_METHODS = (
    "LMD",
    "LSMD",
    "LAMD",
    "LASMD",
    "one-network LAMD",
    "one-network LSMD",
    "GD",
    "Nesterov",
    "Adam",
)
TAKING_PART = {
    "inpaint": {
        "comparison from y": GRADIENT_METHODS,
        "comparison from y filled": ("LPD", "PDHG", "early PDHG"),
    },
    "denoise": {"comparison from y": (*GRADIENT_METHODS, "LPD", "PDHG", "dual FISTA")},
    "tomography": {"gap against passes": ("LAMD", "MLEM", "OSEM", "PDHG", "SPDHG", "Nesterov")},
    "svm": {"hinge loss": (*GRADIENT_METHODS, "SGD"), "test error": (*GRADIENT_METHODS, "SGD")},
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_quick_scale_writes_everything(name, tmp_path, monkeypatch):
    monkeypatch.delenv("MIRRORDESCENT_DATA", raising=False)
    (result,) = reproduce(name, "quick", tmp_path, tmp_path / "no data", say=lambda line: None)
    folder = tmp_path / name
    rows = list(csv.DictReader((folder / "curves.csv").read_text().splitlines()))
    summary = json.loads((folder / "summary.json").read_text())
    assert {row["panel"] for row in rows} == set(result.panels) == set(summary["means"])
    assert result.panels or result.tables or result.pictures
    for drawn in (*result.panels, *result.pictures):
        for suffix in ("png", "svg"):
            assert (folder / f"{file_name(drawn)}.{suffix}").stat().st_size > 5000
    for title, panel in result.panels.items():
        for curve in panel.curves:
            assert curve.values.shape == (
                len(curve.iterations),
                len(rows_of(rows, title, curve, curve.iterations[0])),
            )
            if panel.quantity == GAP:
                assert not (curve.values < -1e-3).any(), "a value below a proven lower bound"
    for title, table in result.tables.items():
        assert f"## {title}" in (folder / "claims.md").read_text()
        assert all(len(row) == len(table.columns) for row in table.rows)
    for panel, methods in TAKING_PART.get(name, {}).items():
        assert all(result.panels[panel][method].values.isfinite().all() for method in methods)


def test_imaging_claims_can_fail():
    """Curves made to order: ours falls like k^−2 and wins, or like k^−½ and loses."""

    def verdicts(ours, theirs, recorded=(0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)):
        def curve(name, power):
            gaps = torch.tensor(
                [[100.0]] + [[100.0 * k**power] for k in recorded[1:]], dtype=torch.float64
            )
            gaps = gaps * torch.tensor(
                [[1.0, 1.01, 0.99]], dtype=torch.float64
            )  # three problems, nearly alike
            return Curve(name, list(recorded), [0.0] * len(recorded), gaps)

        learned = [
            curve(name, ours)
            for name in ("LMD (mean)", "LSMD (last)", "LAMD (mean)", "LASMD (mean)")
        ]
        learned += [curve(f"one-network {name} (mean)", ours) for name in ("LSMD", "LAMD", "LASMD")]
        learned.append(curve("stencil LAMD", ours))
        rivals = (
            "GD (1)",
            "Nesterov (1)",
            "wide Nesterov (1)",
            "Adam (1)",
            "PDHG (1)",
            "early PDHG (1)",
            "LPD",
        )
        rules = Panel(
            [curve("reciprocal", ours), curve("mean", theirs), curve("root_reciprocal", theirs)]
        )
        panels = {f"{name} extensions": rules for name in ("LSMD", "LAMD", "LASMD")}
        panels["LMD extensions"] = Panel(
            [curve("reciprocal", -ours), curve("root_reciprocal", ours)]
        )
        panels["comparison from y"] = Panel(learned + [curve(name, theirs) for name in rivals])
        panels["one network for long"] = Panel([curve("one-network LSMD", ours)])
        claims = imaging_claims(Result("inpaint", "title", {}, panels))
        return {claim.statement: claim.holds for claim in claims}

    won = verdicts(-2.0, -0.5)
    lost = verdicts(-0.5, -2.0)
    rising = verdicts(0.5, -0.5)
    for statement in won:
        ours = "GD is below" not in statement
        if ours and "is below" in statement and "LMD" not in statement.split("is below")[1]:
            assert won[statement], statement
            assert not lost[statement], statement
    assert won["from y: LAMD falls about like k^-2, or faster, over k = 45 … 2000"]
    assert not lost["from y: LAMD falls about like k^-2, or faster, over k = 45 … 2000"]
    assert won["the reciprocal rule is best for LAMD at k = 2000"]
    assert not won["a constant step is best for LASMD at k = 2000"]
    storage = "with the rule {} for both, LMD rises after k = 50 and LSMD falls"
    assert won[storage.format("reciprocal")]
    assert won[storage.format("root_reciprocal")] is False, "both fall"
    assert rising[storage.format("reciprocal")] is False, "LSMD rises, and LMD falls"
    assert lost["from y: LPD plateaus"] is False
    assert verdicts(-2.0, -0.01)["from y: LPD plateaus"]
    assert verdicts(-2.0, -0.01)['the constant step "mean" does not converge in LAMD']
    assert lost['the constant step "mean" does not converge in LAMD'] is False
    bounded = (
        "one-network LSMD stays bounded for 2000 iterations: no gap after k = 100 above the "
        "largest there"
    )
    assert won[bounded]
    assert not rising[bounded]


@pytest.mark.parametrize(("times", "verdict"), [(1.2, False), (2.0, True), (0.5, False)])
def test_a_map_is_judged_by_its_own_control(times, verdict):
    def curve(name, gap):
        gaps = gap * torch.tensor([[1.0, 1.01, 0.99]], dtype=torch.float64).expand(3, 3)
        return Curve(name, [0, 10, 100], [0.0] * 3, gaps)

    learned = Panel(
        [curve("LAMD (mean)", 1.0), curve("dual-pair LSMD (last)", 1.0), curve("stencil LAMD", 1.0)]
    )
    without = [curve("dual-pair LSMD, no map (mean)", times), curve("LAMD, no map (mean)", times)]
    beside = beside_controls(learned, without)
    assert [each.name for each in beside.curves[:2]] == [
        "dual-pair LSMD (last)",
        "dual-pair LSMD, no map (mean)",
    ]
    claims = {claim.statement: claim.holds for claim in control_claims("from y", beside)}
    assert len(claims) == 4, "two maps at two iterations, and the stencil has no control here"
    ours = (
        "from y: at k = 100, dual-pair LSMD is at least 1.5 times below its control, the same "
        "method without a map"
    )
    assert claims[ours] is verdict
    assert claims[
        "from y: at k = 10, LAMD is below its control, the same method without a map"
    ] is (times > 1)


def test_the_margin_of_a_claim_is_on_its_side_and_has_an_interval():
    """Twice as good is not five times as good; ten times is; and one problem of three against it
    decides nothing.
    """
    theirs = torch.tensor([10.0, 11.0, 9.0], dtype=torch.float64)

    def judged(share, factor):
        return by_margin(
            "ours is below 1/5 of theirs", share * theirs, [theirs, 2 * theirs], "", factor
        ).holds

    assert judged(0.5, 1) is True
    assert judged(0.5, 5) is False
    assert judged(0.1, 5) is True
    assert judged(0.5, 0.2) is True
    assert judged(2.0, 1) is False
    assert judged(torch.tensor([0.1, 0.1, 20.0], dtype=torch.float64), 1) is None
    assert judged(torch.tensor([0.1, 0.1, torch.nan], dtype=torch.float64), 1) is not True, (
        "a run that failed"
    )
    failed = by_margin("", theirs, [torch.full_like(theirs, torch.nan)], "", 5)
    assert failed.holds is True, "a rival that failed is no rival"
    assert "margin in decades" in failed.measured


def test_verdicts_in_words():
    assert [Claim("", holds, "1").verdict for holds in (True, False, None)] == [
        "holds",
        "does not hold",
        "not decided",
    ]
    assert Claim("", None, "not measured").verdict == "not measured"
    assert (Claim.by("", 0.1, 0.3, "").holds, Claim.by("", -0.3, -0.1, "").holds) == (True, False)
    assert Claim.by("", -0.1, 0.3, "").holds is None


def rows_of(rows, panel, curve, k):
    return [
        r for r in rows if (r["panel"], r["method"], int(r["iteration"])) == (panel, curve.name, k)
    ]


def test_grids_are_those_of_the_appendix():
    assert grid(2e-4, 1e-1) == pytest.approx([2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1])
    assert grid(1e-4, 5e-3) == pytest.approx([1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3])
    assert {1, 10, 50, 100, 1000, 2000} <= set(recorded_iterations(2000))
    assert max(recorded_iterations(60)) == 60


def bowls(*curvatures):
    problem = Quadratic(torch.stack([c * torch.eye(1) for c in curvatures]), torch.zeros(1))
    x0 = torch.ones(len(curvatures), 1)
    return Contest(
        problem, x0, torch.zeros(len(curvatures), dtype=torch.float64), 50, recorded_iterations(50)
    )


def test_tuning_picks_the_best_of_the_grid():
    contest = bowls(1.0, 1.0)
    assert contest.tune(TunableSolver("GD", GD, [0.01, 0.9, 2.5]), at=20) == 0.9


def test_a_failed_run_has_no_gap_afterwards():
    curve = bowls(1.0, 100.0).run("GD", GD(0.5))
    assert math.isnan(curve.mean_at(50))
    assert curve.values[-1, 0] >= 0
    lost = bowls(100.0).run("GD", GD(0.5))
    assert math.isnan(lost.mean_at(50))


def test_claims_are_written_as_they_came_out():
    result = Result("x", "X", {}, claims=[Claim("a", True, "1 < 2"), Claim("b", False, "3 > 2")])
    assert "| a | holds | 1 < 2 |" in result.markdown()
    assert "| b | **does not hold** | 3 > 2 |" in result.markdown()


def test_unknown_experiments_get_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'inpaint'"):
        reproduce("inpait")
