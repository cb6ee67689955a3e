"""The judges of the paper's claims, on curves whose verdict is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mirrordescent import zoo
from mirrordescent.recipes import recipe
from mirrordescent_experiments import paper_claims as judging
from mirrordescent_experiments.claims import by_margin
from mirrordescent_experiments.extensions import with_controls
from mirrordescent_experiments.paper_claims import (
    AT_THIS_BUDGET,
    CLAIMS,
    JudgedClaim,
    PaperClaim,
    Summary,
    due_to_map,
    ends_below,
    meta_steps,
    paper_claims,
    paper_table,
    robust,
)
from mirrordescent_experiments.result import Claim, Curve, Panel, Result

WOBBLE = torch.tensor([1.0, 1.05, 0.95, 1.02, 0.98], dtype=torch.float64)
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def curve(name, *gaps):
    return Curve(name, [50, 100], [0.0, 1.0], torch.stack([gap * WOBBLE for gap in gaps]))


def summary(curves, controls, **more):
    panels = {"comparison from y": Panel(curves), "controls from y": Panel(controls)}
    result = Result("denoise", "x", {"scale": "standard", "problems": 5, "side": 8}, panels, **more)
    return Summary(json.loads(result.as_json()))


@pytest.mark.parametrize(
    ("control", "rival", "verdict"),
    [
        (90.0, 100.0, True),  # the map accounts for nearly all of two decades
        (2.0, 100.0, False),  # for .3 of two decades
        (10.0, 0.5, False),  # there is no lead
        (0.5, 100.0, False),  # the control is ahead
    ],
)
def test_a_lead_is_due_to_the_map_if_its_control_does_not_have_it(control, rival, verdict):
    judge = due_to_map("LAMD", ("Nesterov", "Adam"), (50, 100))
    curves = [curve("LAMD (mean)", 1.0, 1.0), curve("Nesterov (1)", rival, rival)]
    curves.append(curve("Adam (1)", 1e3, 1e3))
    found = judge(summary(curves, [curve("LAMD, no map (mean)", control, control)]))
    assert found is not None
    assert found[0] is verdict
    assert "of its control" in found[1]


def test_a_lead_at_one_count_alone_is_not_enough():
    judge = due_to_map("LAMD", ("GD",), (50, 100))
    curves = [curve("LAMD", 1.0, 1.0), curve("GD", 100.0, 100.0)]
    holds, _ = judge(summary(curves, [curve("LAMD, no map", 90.0, 1.5)]))
    assert holds is False


def test_without_single_runs_or_a_control_there_is_no_verdict():
    judge = due_to_map("LAMD", ("GD",), (50, 100))
    curves = [curve("LAMD", 1.0, 1.0), curve("GD", 100.0, 100.0)]
    assert judge(summary(curves, [])) is None, "no control"
    stored = summary([*curves, curve("LAMD, no map", 90.0, 90.0)], [])
    stored.data["runs"] = {}
    holds, measured = judge(stored)
    assert holds is None
    assert "interval not known" in measured


def test_gaps_near_the_accuracy_of_the_reference_are_marked():
    found = summary([curve("a", 1.0, 1e-3), curve("b", 2.0, 2.0)], [])
    judge = judging.ordered("comparison from y", ("a", "b"), 100)
    assert "limited" not in judge(found)[1]
    found.data["settings"]["reference width"] = 2e-4
    assert "limited by the reference, whose interval is 0.0002 wide" in judge(found)[1]
    assert "limited" in judging.fall("comparison from y", "a", most=2.0)(found)[1]
    assert "limited" not in judging.fall("comparison from y", "b", most=2.0)(found)[1]
    found.data["settings"]["reference width"] = 5e-5
    assert "limited" not in judge(found)[1]


def test_claims_of_experiments_mark_them_too():
    panel = Panel([curve("LAMD", 1.0, 1e-3), curve("LAMD, no map", 2.0, 2e-3)])
    wide = by_margin("x", panel["LAMD"].values[1], [panel["LAMD, no map"].values[1]], "1", 1, 2e-4)
    narrow = by_margin(
        "x", panel["LAMD"].values[1], [panel["LAMD, no map"].values[1]], "1", 1, 5e-5
    )
    assert wide.holds is narrow.holds is True
    assert "limited by the reference" in wide.measured
    assert "limited" not in narrow.measured


def test_a_mean_loss_below_another_is_judged_with_its_interval():
    found = summary([curve("a", 1.0, 1.0), curve("b", 2.0, 2.0)], [])
    assert ends_below("comparison from y", "a", "b", 100)(found)[0] is True
    assert ends_below("comparison from y", "b", "a", 100)(found)[0] is False
    assert ends_below("comparison from y", "a", "c", 100)(found) is None


def test_a_claim_is_robust_if_it_holds_everywhere():
    def judged(*verdicts):
        claims = [
            Claim(f"from y, {i}²: at k = 100, A is below B", each, "1")
            for i, each in enumerate(verdicts)
        ]
        claims.append(Claim("from y: at k = 10, A is below B", False, "1"))
        return robust("A is below B", 100)(summary([], [], claims=claims))

    assert judged(True, True)[0] is True
    assert judged(True, None)[0] is None
    holds, text = judged(True, False, None)
    assert holds is False
    assert text == "holds on 1 of 3; not: from y, 1²"
    assert robust("C is below B", 100)(summary([], [])) is None


def test_a_failure_after_a_short_budget_is_not_a_refutation(tmp_path, monkeypatch):
    """Of the same failing claim, the one about a map learned in few steps is not decided."""
    claims = [Claim("it is fast", False, "2 against 1")]
    (tmp_path / "denoise").mkdir()
    text = Result("denoise", "x", {"problems": 5, "side": 8}, claims=claims).as_json()
    (tmp_path / "denoise" / "summary.json").write_text(text)

    def verdict(*entries, **options):
        claim = PaperClaim("x", "denoise", judging.stated("it is fast"), entries=entries, **options)
        monkeypatch.setattr(judging, "CLAIMS", (claim,))
        (found,) = paper_claims(tmp_path)
        return found

    short = verdict("mnist-mlp-spline-printed")
    assert short.verdict == AT_THIS_BUDGET
    assert short.holds is None
    assert "20 meta-steps of 2" in short.conditions
    assert verdict(short=True).verdict == AT_THIS_BUDGET
    long = verdict("ellipse-denoise-pair")
    assert long.verdict == "does not hold"
    assert "5 ellipse phantoms, 8²; ellipse-denoise-pair: 1200 meta-steps of 8" in long.conditions
    assert paper_table([long]).columns[-1] == "on"


def test_budgets_are_those_on_the_cards():
    stages = zoo.card("image-tv").stages
    assert meta_steps("image-tv")[0] == sum(stage["settings"]["meta_steps"] for stage in stages)
    assert meta_steps("omniglot-reptile-init") == (0, 0)


def test_printed_maps_can_be_learned_for_longer():
    """As docs/results-differences.md says."""
    commands = (RESULTS.parent / "results-differences.md").read_text()
    lines = [line.split() for line in commands.splitlines() if "mirrordescent learn" in line]
    assert len(lines) == 5
    for _, _, name, _, change in lines:
        key, number = change.removeprefix("settings.").split("=")
        (stage,) = recipe(name).stages
        changed = stage.changed({key: int(number)})
        assert getattr(getattr(changed, "settings", changed), key) == int(number)
        shipped = meta_steps(name)[0] or stage.steps
        assert int(number) >= 5 * shipped


def test_guides_state_the_budgets_of_the_cards():
    guide = (RESULTS.parent / "results-training.md").read_text().replace("\n", " ")
    budgets = {}
    for name, noun in (
        ("mnist-mlp-spline-printed", "networks"),
        ("mnist-cnn-diagonal-printed", "networks"),
        ("omniglot-diagonal-printed", "tasks"),
    ):
        budgets[name] = meta_steps(name)
        steps, batch = budgets[name]
        assert f"{steps} meta-steps of {batch} {noun}" in guide
    summary = (RESULTS.parent / "results.md").read_text()
    steps, batches = zip(*budgets.values(), strict=True)
    total = (
        f"in {min(steps)} to {max(steps)} meta-steps of {min(batches)} to {max(batches)} networks"
    )
    assert total in summary
    assert f"fewer than {judging.ADEQUATE} meta-steps" in summary


def test_every_experiment_of_the_paper_is_asked_for_the_source_of_its_speed_up():
    asked = [claim for claim in CLAIMS if "is due to its learned mirror map" in claim.statement]
    assert {claim.experiment for claim in asked} == {
        "denoise",
        "inpaint",
        "svm",
        "moons",
        "mlp",
        "cnn",
        "fewshot",
    }


def test_every_claim_says_what_it_was_measured_on():
    for claim in paper_claims(RESULTS):
        assert any(character.isdigit() for character in claim.conditions), claim.statement
        assert isinstance(claim, JudgedClaim)


def test_only_the_entries_of_a_claim_make_it_stale(tmp_path, monkeypatch):
    (tmp_path / "mlp").mkdir()
    entries = {"network-spectral": "0" * 16, "mnist-mlp-spline-printed": ""}
    entries["mnist-mlp-spline-printed"] = zoo.fingerprint("mnist-mlp-spline-printed")
    claims = [Claim("it is fast", True, "1 against 2")]
    result = Result("mlp", "x", {}, claims=claims, provenance={"entries": entries})
    (tmp_path / "mlp" / "summary.json").write_text(result.as_json())

    def measured(**options):
        claim = PaperClaim("x", "mlp", judging.stated("it is fast"), **options)
        monkeypatch.setattr(judging, "CLAIMS", (claim,))
        return paper_claims(tmp_path)[0].measured

    assert "stale" not in measured()
    assert "stale" in measured(entries=("network-spectral",))


def test_figures_of_the_paper_have_the_curve_of_the_control():
    panel = Panel([curve("LAMD (mean)", 1.0, 1.0)], "gap")
    controls = [curve("LAMD, no map (mean)", 2.0, 2.0), curve("LSMD, no map (mean)", 2.0, 2.0)]
    assert with_controls(panel, controls, ("LAMD",)).names == ["LAMD", "LAMD, no map"]
    for experiment, figure, where in (
        ("denoise", "comparison from y", "controls from y"),
        ("inpaint", "comparison from y", "controls from y"),
        ("inpaint", "comparison from y filled", "controls from y filled"),
        ("svm", "hinge loss", "controls"),
    ):
        means = json.loads((RESULTS / experiment / "summary.json").read_text())["means"]
        control = next(name for name in means[figure] if name.startswith("LAMD, no map"))
        assert means[figure][control] == means[where][control], "the same run"
