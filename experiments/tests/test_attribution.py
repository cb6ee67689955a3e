"""Where gains come from: on problems whose best map is known."""

from __future__ import annotations

import json

import pytest
import torch

from mirrordescent import AMD, MD, SMD, Quadratic, zoo
from mirrordescent.learn import Draw
from mirrordescent.mirrors import Conjugate, DenseICNN, Diagonal, LearnedPair
from mirrordescent.schedules import Interpolated
from mirrordescent_experiments import learned_again
from mirrordescent_experiments.attribution import (
    PARTS,
    Attribution,
    Bench,
    _counts,
    _parts,
    add_missing,
    gains,
    gap_table,
)
from mirrordescent_experiments.cards import write_controls
from mirrordescent_experiments.intervals import Estimate, paired, resampled
from mirrordescent_experiments.result import Result

CURVATURES = torch.tensor([1.0, 30.0], dtype=torch.float64)


def draw(seed, count=6):
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    problem = Quadratic(torch.diag(CURVATURES), centre)
    return Draw(problem, torch.zeros_like(centre), torch.zeros(count, dtype=torch.float64))


def attributed(method):
    gaps, multiple = Bench(method, (3, 20), None).all_gaps(draw(0), draw(1), "no-control")
    parts = _parts(gaps)
    return Attribution(
        "x", (3, 20), 6, {k: v.mean(1).tolist() for k, v in gaps.items()}, multiple, parts
    )


def test_a_geometry_that_fits_is_found_to_earn_its_gain():
    found = attributed(MD(Diagonal(CURVATURES), 0.9))
    assert found.earned == "geometry"
    assert found.parts["map"][1].low > 3, "decades"
    assert found.parts["momentum"][1].mean == 0


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_multiple_of_the_identity_earns_nothing(scale):
    """Whatever the multiple: the best one is put in its place."""
    found = attributed(AMD(Diagonal(torch.full((2,), scale, dtype=torch.float64)), 0.02))
    assert found.earned == "schedules"
    assert max(each.low for each in found.parts["map"]) <= 0
    assert "same start" in found.gaps


def test_the_parts_add_up_to_the_gain_over_gradient_descent():
    gaps, _ = Bench(AMD(Diagonal(CURVATURES), 0.3), (3, 20), None).all_gaps(
        draw(0), draw(1), "no-control"
    )
    parts = _parts(gaps)
    for i in range(2):
        total = float((gaps["gradient descent"][i] / gaps["learned"][i]).log10().mean())
        assert sum(part[i].mean for part in parts.values()) == pytest.approx(total)


def test_a_learned_start_is_told_from_the_map():
    mirror = Conjugate(DenseICNN(2).double(), "scaled").double()
    with torch.no_grad():
        mirror.log_scale.fill_(1.0)
    drawn = Draw(
        draw(1).problem, torch.ones(6, 2, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    )
    gaps, _ = Bench(SMD(mirror, 0.01), (1, 2), None).all_gaps(drawn, drawn, "no-control")
    assert {"exact start", "same start"} <= gaps.keys()
    assert not torch.equal(gaps["same start"], gaps["scaled identity"])
    assert not torch.equal(gaps["exact start"], gaps["learned"])


def test_a_map_is_worth_what_it_adds_to_the_stronger_control():
    """By a factor of 10 over one, of 100 over the other: one decade, and at the second count the
    other way round.
    """
    ones = torch.ones(2, 4, dtype=torch.float64)
    gaps = {
        "learned": ones,
        "same start": ones * torch.tensor([[10.0], [100.0]]),
        "scaled identity": 1000 * ones,
    }
    gaps |= {"constant step": 1e4 * ones, "gradient descent": 1e4 * ones}
    alone = _parts(gaps)
    assert [each.mean for each in alone["map"]] == pytest.approx([1, 2])
    control = {
        "learned control": 1000 * ones,
        "learned control, same start": ones * torch.tensor([[100.0], [10.0]]),
    }
    both = _parts(gaps | control)
    assert [each.mean for each in both["map"]] == pytest.approx([1, 1])
    assert [each.mean for each in both["start"]] == pytest.approx([2, 2])
    assert [each.mean for each in both["schedules"]] == pytest.approx([1, 1])


def test_a_pair_stored_in_the_dual_begins_somewhere_else():
    pair = LearnedPair(DenseICNN(2).double(), DenseICNN(2).double())
    with torch.no_grad():
        pair.forward_potential.scale.add_(1.0)
    drawn = Draw(
        draw(1).problem, torch.ones(6, 2, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    )
    gaps, _ = Bench(SMD(pair, 0.01), (1, 2), None).all_gaps(drawn, drawn, "no-control")
    assert not torch.equal(gaps["same start"], gaps["scaled identity"])
    assert not torch.equal(gaps["exact start"], gaps["learned"]), (
        "with the exact inverse of its second network"
    )
    stored, _ = Bench(MD(pair, 0.01), (1, 2), None).all_gaps(drawn, drawn, "no-control")
    assert torch.equal(stored["same start"], stored["scaled identity"])
    assert "exact start" not in stored


def test_what_is_not_known_is_said_to_be_unknown():
    row = gains([Attribution("x", why_not="it has no map")]).rows[0]
    assert row[2:6] == ("unknown",) * 4
    assert "it has no map" in row[-1]
    assert Attribution("x", why_not="it has no map").on_card() == {
        "gain": "unknown",
        "why": "it has no map",
    }


def test_cards_get_their_control_and_entries_stay_as_they_are(tmp_path):
    name = "photo-inpaint-lpd"
    zoo.save(zoo.load(name), tmp_path / name, zoo.card(name))
    before = zoo.fingerprint(name)
    cards = {name: {"gain": "schedules"}}
    summary = tmp_path / "summary.json"
    summary.write_text(
        json.dumps({"provenance": {"entries": {name: before}}, "settings": {"cards": cards}})
    )
    assert write_controls(summary, tmp_path) == [name]
    path = tmp_path / f"{name}.safetensors"
    assert zoo.fingerprint(path) == before
    assert zoo.card(path).gain == "schedules"
    assert zoo.card(path).held_out["gap"] == zoo.card(name).held_out["gap"]
    summary.write_text(
        json.dumps({"provenance": {"entries": {name: "0"}}, "settings": {"cards": cards}})
    )
    with pytest.raises(ValueError, match="other weights"):
        write_controls(summary, tmp_path)


def test_intervals():
    """Student's, against tables; resampled ones around the truth."""
    assert paired(torch.tensor([2.0])) == Estimate(2.0, -torch.inf, torch.inf)
    drawn = torch.randn(400, generator=torch.Generator().manual_seed(0)) + 3
    by_formula = paired(drawn)
    by_resampling = resampled(lambda x: float(x.mean()), drawn)
    assert by_formula.low < 3 < by_formula.high
    assert by_resampling.low == pytest.approx(by_formula.low, abs=0.03)
    assert by_resampling.high == pytest.approx(by_formula.high, abs=0.03)


def test_what_learning_again_must_give():
    """A dual pair is to be worth 1.5 times its control, a pair anything; a wide interval decides
    nothing.
    """

    def verdicts(name, *worth):
        return [claim.holds for claim in learned_again._claims(name, {10: Estimate(*worth)})]

    assert verdicts("photo-inpaint-dual-pair", 0.5, 0.3, 0.7) == [True]
    assert verdicts("photo-inpaint-dual-pair", 0.1, 0.05, 0.15) == [False]
    assert verdicts("photo-inpaint-pair", 0.1, 0.05, 0.15) == [True]
    assert verdicts("photo-inpaint-pair", -0.1, -0.2, -0.05) == [False]
    assert verdicts("mnist49-svm-pair", 0.1, -0.3, 0.5) == [None]


def test_the_search_begins_with_what_the_paper_does():
    tried = list(learned_again.trials())
    assert tried[0].through == "LMD"
    assert tried[0].objective.weights == "sum"
    assert len({str(trial) for trial in tried}) == len(tried), "names tell them apart"
    method = tried[-1].method(1, torch.Generator().manual_seed(0))
    assert isinstance(method, SMD)
    assert method.mirror.forward_potential.layers == 2


def test_methods_are_looked_at_where_learning_ended():
    mirror = Diagonal(torch.ones(2))
    card = zoo.Card("x", "x", stages=[{"settings": {"horizon": 360}}])
    assert _counts(SMD(mirror, Interpolated([1, 90], [0.1, 0.2])), card) == (30, 90)
    assert _counts(SMD(mirror, Interpolated([1], [0.1])), card) == (120, 360), (
        "one step size for the whole run"
    )
    assert _counts(SMD(mirror, 0.1), card) == (10, 100)


def test_what_a_page_does_not_have_is_added_to_it(tmp_path, monkeypatch):
    # which has no map, so that nothing has to be run
    known = "moons-diagonal"
    new = "ellipse-denoise-lpd"
    parts = {part: [Estimate(1.0, 0.5, 1.5)] for part in PARTS}
    measured = Attribution(known, (10,), 2, {"learned": [1.0]}, 1.0, parts)
    settings = {"scale": "standard", "cards": {known: measured.on_card() | {"gaps": {}}}}
    stored = Result("attribution", "Where gains come from", settings)
    stored.tables = {"gains": gains([measured]), "gaps": gap_table([measured])}
    stored.provenance = {"commit": "c", "date": "d", "machine": "m", "seeds": "s"}
    stored.provenance["entries"] = {known: zoo.fingerprint(known)}
    stored.write(tmp_path / "attribution")
    monkeypatch.setattr(zoo, "list", lambda: [new, known])
    path = tmp_path / "attribution" / "summary.json"
    add_missing(path, say=lambda _: None)
    summary = json.loads(path.read_text())
    assert [row[0] for row in summary["tables"]["gains"]["rows"]] == [new, known]
    assert summary["tables"]["gaps"]["rows"] == [list(row) for row in gap_table([measured]).rows]
    assert summary["provenance"]["entries"].keys() == {known, new}
    assert summary["provenance"]["commit"].startswith("c, and ")
    add_missing(path, say=lambda _: None)  # there is nothing left to add
    assert json.loads(path.read_text()) == summary
    summary["provenance"]["entries"][new] = "of another day"
    path.write_text(json.dumps(summary))
    add_missing(path, say=lambda _: None)
    again = json.loads(path.read_text())
    assert again["tables"] == summary["tables"]
    assert again["provenance"]["entries"][new] == zoo.fingerprint(new)
