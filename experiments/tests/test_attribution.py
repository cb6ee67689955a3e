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
    VERSION,
    Attribution,
    _counts,
    _key,
    _remembered,
    add_missing,
    contributions,
    controls_for,
    gains,
    gap_table,
)
from mirrordescent_experiments.attribution_bench import Bench, Choice, Measured, Problems
from mirrordescent_experiments.cards import write_controls
from mirrordescent_experiments.intervals import Estimate, paired, resampled
from mirrordescent_experiments.result import Result

CURVATURES = torch.tensor([1.0, 30.0], dtype=torch.float64)


def draw(seed, count=6):
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    problem = Quadratic(torch.diag(CURVATURES), centre)
    return Draw(problem, torch.zeros_like(centre), torch.zeros(count, dtype=torch.float64))


def problems(seed, count=6):
    return Problems(draw(seed, count))


def attributed(method, controls=None, counts=(3, 20)):
    bench = Bench(method, counts, controls=controls or {})
    found = bench.measure(problems(0), problems(1))
    means = {k: v.mean(1).tolist() for k, v in found.gaps.items()}
    return Attribution(
        "x",
        counts,
        6,
        means,
        found.controls,
        found.multiples,
        found.limited,
        contributions(found.gaps),
        [Estimate(0.0, 0.0, 0.0)] * len(counts),
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
    assert "strongest" in found.gaps


def test_the_multiple_is_tuned_at_every_count():
    """A step that is best at the end is too short at the beginning: its map is not geometry.

    The steps grow: 0.04 at first and 1 later, along the direction of curvature 1 only. A multiple
    of 1 is the best at the end; at the first counts a smaller one is, since its steps are longer.
    """
    centre = torch.randn(6, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = Quadratic(torch.ones(1, 1, dtype=torch.float64), centre)
    flat = Problems(Draw(problem, torch.zeros_like(centre), torch.zeros(6, dtype=torch.float64)))
    steps = Interpolated([1, 2, 3, 20], [0.1, 0.1, 1.2, 1.2])
    multiple = Diagonal(torch.full((1,), 0.2, dtype=torch.float64))
    found = Bench(MD(multiple, steps).double(), (2, 20)).measure(flat, flat)
    early, late = found.multiples
    assert early < late
    worth = contributions(found.gaps)["map"]
    assert max(each.high for each in worth) <= 1e-9, "as good a multiple is found at both counts"


def test_the_identity_itself_is_a_candidate_of_every_grid():
    bench = Bench(MD(Diagonal(CURVATURES), 0.05), (20,), every=14)
    _, ends = bench._tuned((8.0, 16.0), bench._multiple, problems(0), None, (1.0,))
    assert 1.0 in ends
    chosen, _ = bench.strongest(problems(0))
    assert chosen[0].multiple <= 1.0


def test_a_stronger_control_of_another_entry_takes_the_gain_away():
    """Of the same problems: a map that beats the identity is worth nothing against it."""
    mapped = MD(Diagonal(torch.tensor([1.0, 6.0], dtype=torch.float64)), 0.3)
    assert attributed(mapped).earned == "geometry"
    fast = MD(Diagonal(CURVATURES), 0.9)
    found = attributed(mapped, {"other-control": (fast, None)})
    assert found.controls[-1] == "other-control"
    assert found.earned != "geometry"


def test_the_control_is_chosen_on_tuning_problems():
    """The one that is better on the held-out problems only is not chosen."""
    method = MD(Diagonal(CURVATURES), 0.9)
    zero = torch.zeros(2, 2, dtype=torch.float64)
    tuning = Problems(Draw(Quadratic(torch.diag(CURVATURES), zero + 1), zero, zero[0]))
    held_out = Problems(Draw(Quadratic(torch.eye(2).double(), zero + 1), zero, zero[0]))
    slow = MD(Diagonal(torch.ones(2).double()), 0.03)
    fast = MD(Diagonal(torch.ones(2).double()), 1.0)
    controls = {"slow": (slow, None), "fast": (fast, None)}
    found = Bench(method, (5,), controls=controls, every=20).measure(tuning, held_out)
    assert found.gaps["fast"].sum() < 1e-6 < found.gaps["strongest"].min()
    assert found.controls != ["fast"]


@pytest.mark.parametrize(
    ("worth", "learned_control", "label"),
    [
        ([(0.5, 0.4, 0.6), (0.0, -0.1, 0.1)], True, "geometry"),
        ([(0.5, 0.4, 0.6), (-0.5, -0.6, -0.4)], True, "mixed"),
        ([(0.5, 0.4, 0.6), (0.0, -0.1, 0.1)], False, "no learned control"),
        ([(0.0, -0.1, 0.1), (0.0, -0.1, 0.1)], False, "schedules"),
        ([(-0.5, -0.6, -0.4), (0.0, -0.1, 0.1)], True, "schedules"),
    ],
)
def test_geometry_needs_a_control_and_no_count_at_which_the_map_harms(
    worth, learned_control, label
):
    parts = {"map": [Estimate(*each) for each in worth]}
    own = parts["map"] if learned_control else ()
    assert Attribution("x", (10, 100), parts=parts, against_control=own).earned == label


def test_intervals_of_all_counts_hold_together():
    rows = torch.arange(1.0, 5.0, dtype=torch.float64)[None].repeat(3, 1)
    gaps = {"learned": torch.ones(3, 4, dtype=torch.float64), "strongest": rows}
    gaps |= {"strongest, given start": rows, "constant step": rows, "gradient descent": rows}
    three = contributions(gaps)["map"][0]
    one = contributions({name: each[:1] for name, each in gaps.items()})["map"][0]
    assert one == paired(rows[0].log10(), 0.95)
    assert three == paired(rows[0].log10(), 1 - 0.05 / 3)


def test_gaps_near_the_accuracy_of_the_reference_are_marked():
    exact = draw(1)
    wide = Problems(exact, torch.full((6,), 1e-7, dtype=torch.float64))
    bench = Bench(MD(Diagonal(CURVATURES), 0.9), (1, 20))
    assert bench.measure(problems(0), wide).limited == [False, True]
    assert bench.measure(problems(0), Problems(exact)).limited == [False, False]


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRRORDESCENT_CACHE", str(tmp_path / "cache"))
    rivals = ["a-control", "b-control"]
    controls = ["b-control", str(Choice(multiple=0.5))]
    first = Measured({"learned": torch.ones(2, 3)}, controls, [2.0, 0.5], [False, True])
    key = _key(["moons-diagonal"], problems=1)
    _remembered(key, rivals, lambda: first)
    again = _remembered(key, rivals, lambda: pytest.fail("it was measured"))
    assert again.controls == controls
    assert again.multiples == [2.0, 0.5]
    assert again.limited == [False, True]
    assert torch.equal(again.gaps["learned"], first.gaps["learned"])
    assert again.gaps.keys() == {"learned"}


def test_controls_are_those_for_the_same_problems():
    assert controls_for("mnist49-svm-quadratic") == [
        f"mnist49-svm-{kind}-control" for kind in ("conjugate", "matrix", "pair", "quadratic")
    ]
    assert "image-tv-control" in controls_for("photo-inpaint-pair")
    assert controls_for("mnist-cnn-diagonal") == []
    assert controls_for("network-spectral") == ["network-spectral-control"]


def test_the_parts_add_up_to_the_gain_over_gradient_descent():
    found = Bench(AMD(Diagonal(CURVATURES), 0.3), (3, 20)).measure(problems(0), problems(1))
    parts = contributions(found.gaps)
    for i in range(2):
        gain = found.gaps["gradient descent"][i] / found.gaps["learned"][i]
        total = float(gain.log10().mean())
        assert sum(part[i].mean for part in parts.values()) == pytest.approx(total)


def test_a_learned_start_is_told_from_the_map():
    mirror = Conjugate(DenseICNN(2).double(), "scaled").double()
    with torch.no_grad():
        mirror.log_scale.fill_(1.0)
    drawn = problems(1).started_at(torch.ones(6, 2, dtype=torch.float64))
    gaps = Bench(SMD(mirror, 0.01), (1, 2)).measure(drawn, drawn).gaps
    assert "exact start" in gaps
    assert not torch.equal(gaps["strongest"], gaps["strongest, given start"])
    assert not torch.equal(gaps["exact start"], gaps["learned"])


def test_a_pair_stored_in_the_dual_begins_somewhere_else():
    pair = LearnedPair(DenseICNN(2).double(), DenseICNN(2).double())
    with torch.no_grad():
        pair.forward_potential.scale.add_(1.0)
    drawn = problems(1).started_at(torch.ones(6, 2, dtype=torch.float64))
    gaps = Bench(SMD(pair, 0.01), (1, 2)).measure(drawn, drawn).gaps
    assert not torch.equal(gaps["strongest"], gaps["strongest, given start"])
    assert not torch.equal(gaps["exact start"], gaps["learned"]), (
        "with the exact inverse of its second network"
    )
    stored = Bench(MD(pair, 0.01), (1, 2)).measure(drawn, drawn).gaps
    assert torch.equal(stored["strongest"], stored["strongest, given start"])
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


def test_methods_are_looked_at_early_and_at_the_end_of_their_run():
    mirror = Diagonal(torch.ones(2))
    card = zoo.Card("x", "x", stages=[{"settings": {"horizon": 360}}])
    assert _counts("x", SMD(mirror, Interpolated([1, 90], [0.1, 0.2])), card) == (10, 90)
    assert _counts("x", SMD(mirror, Interpolated([1], [0.1])), card) == (10, 100, 360), (
        "one step size for the whole run"
    )
    assert _counts("x", SMD(mirror, 0.1), card) == (10, 100)
    assert _counts("photo-inpaint-pair", SMD(mirror, 0.1), card) == (10, 100, 2000), "as the paper"


def test_what_a_page_does_not_have_is_added_to_it(tmp_path, monkeypatch):
    # which has no map, so that nothing has to be run
    known = "moons-diagonal"
    new = "ellipse-denoise-lpd"
    parts = {part: [Estimate(1.0, 0.5, 1.5)] for part in PARTS}
    measured = Attribution(
        known, (10,), 2, {"learned": [1.0]}, ["identity × 1"], [1.0], [False], parts, parts["map"]
    )
    cards = {known: measured.on_card() | {"gaps": {}}}
    settings = {"scale": "standard", "version": VERSION, "cards": cards}
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
    assert summary["provenance"]["commit"] == "c", "an entry without a map is not measured"
    add_missing(path, say=lambda _: None)  # there is nothing left to add
    assert json.loads(path.read_text()) == summary
    summary["provenance"]["entries"][new] = "of another day"
    path.write_text(json.dumps(summary))
    add_missing(path, say=lambda _: None)
    again = json.loads(path.read_text())
    assert again["tables"] == summary["tables"]
    assert again["provenance"]["entries"][new] == zoo.fingerprint(new)


def test_guides_say_what_the_cards_say():
    """``image-tv`` is ahead of every method without a map; maps made of pairs are not."""
    assert zoo.card("image-tv").gain == "geometry"
    measured = zoo.card("image-tv").held_out["control"]["gaps"]
    assert all(measured[k]["map, log10"][1] > 0 for k in ("100", "1000"))
    others = ("photo-inpaint-dual-pair", "photo-inpaint-conjugate", "photo-inpaint-stencil")
    for name in others:
        assert zoo.card(name).gain == "mixed"
        late = zoo.card(name).held_out["control"]["gaps"]["2000"]
        assert late["map, log10"][2] < 0
        assert late["strongest without a map"] == "image-tv-control"


def test_no_card_claims_geometry_by_another_rule():
    """Geometry needs a learned control, and the strongest method without a map at every count."""
    claimed = [name for name in zoo.list() if zoo.card(name).gain == "geometry"]
    assert claimed
    for name in claimed:
        assert f"{name}-control" in zoo.list()
        rows = zoo.card(name).held_out["control"]["gaps"].values()
        assert all("strongest without a map" in row for row in rows)
        assert any(row["map, log10"][1] > 0 for row in rows)
        assert all(row["map, log10"][2] >= 0 for row in rows)
