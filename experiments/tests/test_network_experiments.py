"""Moons and few-shot learning: what is learned, what is counted, and that claims can fail."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.nn import functional as F

from mirrordescent import optim
from mirrordescent.contests.training_runs import LOSS, QUANTITIES, TEST_ACCURACY, TRAIN_ACCURACY
from mirrordescent.learn.network_families import moons_family
from mirrordescent.methods import SGD
from mirrordescent.mirrors import layerwise
from mirrordescent.mirrors.symmetry import permute, symmetries
from mirrordescent.recipes.architectures import initialised, mlp, moons_network, small_cnn
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.task_families import FewShotFamily
from mirrordescent_experiments import (
    fewshot,
    moons,
    network_training_curves as networks,
    resnet,
    transfer,
)
from mirrordescent_experiments.contestants import adamw_grid
from mirrordescent_experiments.learned_networks import map_claims
from mirrordescent_experiments.ledger import in_turn
from mirrordescent_experiments.network_time import at_the_same_second
from mirrordescent_experiments.paper_claims import AT_THIS_BUDGET, paper_claims
from mirrordescent_experiments.result import Curve, Panel, Result


def ending(name, values):
    return Curve(
        name,
        [0, 10, 50, 100],
        [0.0] * 4,
        torch.as_tensor(values, dtype=torch.float64).expand(4, -1),
    )


class Permuted:
    """The networks of a family with their hidden units renumbered."""

    def __init__(self, family, g, symmetry):
        self.family = family
        self.g = g
        self.symmetry = symmetry

    def draw(self, seeds):
        drawn = self.family.draw(seeds)
        return type(drawn)(drawn.problem, permute(drawn.x0, self.g, self.symmetry))


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(moons, "STEPS", 10)
    return moons_family(points=40)


def test_meta_descent_is_equivariant(short):
    """Networks renumbered by g make multipliers renumbered by g."""
    symmetry = symmetries(moons_network())
    g = symmetry.random(torch.Generator().manual_seed(0))
    plain = moons.untied_map()
    renumbered = moons.untied_map()
    moons.learn_multipliers(plain, short, 3, 100.0, 2)
    moons.learn_multipliers(renumbered, Permuted(short, g, symmetry), 3, 100.0, 2)
    learned = {
        name: part.multipliers.reshape(plain.shapes[name]) for name, part in plain.by_name.items()
    }
    for name, w in permute(learned, g, symmetry).items():
        assert (learned[name] - 1).abs().max() > 0.01
        torch.testing.assert_close(
            renumbered[name].multipliers.reshape(w.shape), w, rtol=1e-4, atol=1e-5
        )


def test_tied_multipliers_move_by_the_mean_over_the_orbit(short):
    """One meta-step from the same start on the same networks."""
    untied = moons.untied_map()
    tied = layerwise(moons_network(), "diagonal", "orbit")
    for mirror in (untied, tied):
        moons.learn_multipliers(mirror, short, 1, 100.0, 3)
    together = moons.by_orbit(tied)
    for name, each in moons.by_orbit(untied).items():
        assert len(each) == len(together[name]) == (1 if name == "b₂" else 50)
        assert float(each.mean()) == pytest.approx(float(together[name][0]), rel=1e-5)
    for name, each in moons.by_orbit(moons.averaged(untied)).items():
        torch.testing.assert_close(each, moons.by_orbit(untied)[name].mean().expand(len(each)))


def test_multipliers_fall_to_the_floor_and_not_below(short):
    """A negative rate pushes down what wants to grow."""
    mirror = moons.untied_map()
    moons.learn_multipliers(mirror, short, 1, -1e6, 1)
    assert min(float(w.min()) for w in moons.by_orbit(mirror).values()) == pytest.approx(
        moons.FLOOR
    )


def test_moons_claims_can_fail():
    def verdicts(distance, spread, tied, ours):
        noise = spread * torch.tensor([-1.0, 1.0]).repeat(25)
        groups = {"A₁, input 1": 1 + noise, "A₁, input 2": 1 + distance + noise}
        losses = {moons.UNTIED: ours, moons.TIED: tied, "GD (0.05)": 0.4, "tuned GD (5)": 0.1}
        losses |= {"capped LAMD (x)": ours, "capped LAMD, no map (x)": 0.1}
        panel = Panel([ending(name, [loss, loss]) for name, loss in losses.items()])
        return [claim.holds for claim in moons.claims(groups, panel)]

    assert verdicts(1.0, 0.05, 0.0102, 0.01) == [True] * 6
    assert verdicts(1.0, 0.2, 0.6, 0.5) == [False] * 6
    assert verdicts(-1.0, 0.05, 0.2, 0.2) == [True, True, True, False, False, False]


BASELINES = ("SGD (0.1)", "Adam (0.01)", "tuned SGD (1)", "tuned Adam (1)", "falling Adam (1)")
NO_MAPS = ("LMD, no map", "capped LAMD, no map")
LEARNED = ("LMD", "LAMD* as printed", "capped LAMD", "polar factors (1)")


def few_shot_panels(learned_loss, baseline_loss, accuracies, reptile_factor=2.0):
    losses = []
    shares = []
    for start in fewshot.STARTS:
        for name in (*BASELINES, *NO_MAPS, *LEARNED):
            loss = torch.tensor(learned_loss if name in LEARNED else baseline_loss)
            losses.append(ending(start + name, loss * (reptile_factor if start else 1.0)))
            shares.append(
                ending(start + name, accuracies.get(start + name.split(" (")[0], [0.7, 0.71, 0.72]))
            )
    return {LOSS: Panel(losses), TRAIN_ACCURACY: Panel(shares), TEST_ACCURACY: Panel(shares)}


def few_shot_claims(*numbers, **others):
    panels = few_shot_panels(*numbers, **others)
    return [*fewshot.paper_claims(panels), *fewshot.claims(panels)]


def test_few_shot_claims_can_fail():
    better = few_shot_claims([1e-4] * 3, [1e-2] * 3, {"Adam": [0.8, 0.81, 0.82]})
    assert all(claim.holds for claim in better)
    spoiled = ("Reptile as printed + LMD", "polar factors", "Reptile + polar factors")
    worse = few_shot_claims(
        [1e-2] * 3, [1e-4] * 3, dict.fromkeys(spoiled, [0.5] * 3), reptile_factor=0.5
    )
    assert not any(claim.holds for claim in worse)


def test_every_run_counts_in_the_mean_and_failures_are_named():
    """One dead network in thirty: the median does not see it, the mean does; one without a number
    spoils the mean.
    """
    dead = {
        claim.statement: claim for claim in few_shot_claims([1e-4] * 29 + [2.3026], [1e-2] * 30, {})
    }
    assert dead["median training loss at the end: LAMD* as printed is below Adam"].holds
    mean = dead["mean training loss at the end: LAMD* as printed is below Adam"]
    assert not mean.holds
    assert "1 of 30 failed" in mean.measured
    lost = {
        claim.statement: claim
        for claim in few_shot_claims([1e-4] * 29 + [math.nan], [9.0] * 30, {})
    }
    assert not lost["mean training loss at the end: LMD is below SGD"].holds
    assert lost["median training loss at the end: LMD is below SGD"].holds
    assert fewshot.failures(torch.tensor([1.0, 2.31, math.nan, math.inf])) == 3


def network_panels(losses, share=0.9):
    names = (
        "SGD (0.1)",
        "Adam (0.01)",
        "tuned Adam (1)",
        "AdamW (1)",
        "tuned SGD with momentum (1)",
        ENTRY,
    )
    names += (
        f"tuned {ENTRY} (1)",
        "polar factors (1)",
        "no geometry (1)",
        "falling Adam (1)",
        *NO_MAPS,
    )
    all_losses = dict.fromkeys(names, 0.1) | {"SGD (0.1)": 0.9} | losses
    curves = [ending(name, [loss, 1.01 * loss]) for name, loss in all_losses.items()]
    shares = [ending(name, [share, share]) for name in all_losses]
    return {
        LOSS: Panel(curves, QUANTITIES[LOSS]),
        TEST_ACCURACY: Panel(shares, QUANTITIES[TEST_ACCURACY]),
    }


NEED_CURVES = ("is due to its learned", "training loss is below Adam's")
"""Parts of claims that are judged by curves and not by claims of an experiment."""


@pytest.mark.parametrize(
    ("end", "verdict"), [(0.1, "holds"), (0.5, AT_THIS_BUDGET), (math.inf, AT_THIS_BUDGET)]
)
def test_the_papers_claims_on_networks_find_their_statements(tmp_path, end, verdict):
    """Judged on LAMD* as printed, with tuned steps; one that diverges is not decided at the budget
    of the printed maps, whatever the capped one does.
    """
    as_printed = {"LAMD* as printed": 0.01, "LAMD* as printed, steps tuned (0.1)": end}
    measured = network_panels({"LMD": 0.1, "capped LAMD": 0.01, **as_printed})
    few_shot = few_shot_claims([1e-4] * 3, [1e-2] * 3, {})
    found = {"fewshot": few_shot} | {
        name: each.claims(measured) for name, each in networks.ARCHITECTURES.items()
    }
    for name, stated in found.items():
        (tmp_path / name).mkdir()
        summary = Result(name, name, {}, claims=stated).summary()
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    judged = {
        claim.statement: claim
        for claim in paper_claims(tmp_path)
        if claim.statement.endswith(tuple(f"({n})" for n in found))
        and not any(text in claim.statement for text in NEED_CURVES)
    }
    assert len(judged) == 9
    assert "not measured" not in {claim.verdict for claim in judged.values()}
    (near,) = [claim for statement, claim in judged.items() if "nearly matches Adam" in statement]
    assert near.verdict == verdict
    assert [c.verdict for s, c in judged.items() if "competitive" in s] == [verdict]


def test_maps_are_judged_by_their_controls():
    panel = network_panels({"LMD": 0.2, "capped LAMD": 0.05})[LOSS]
    assert [claim.holds for claim in map_claims(panel)] == [False, True]
    without = Panel([curve for curve in panel.curves if "no map" not in curve.name], panel.quantity)
    assert map_claims(without) == []


def test_chunks_are_the_same_tasks_side_by_side(monkeypatch):
    """Tasks trained in chunks give the numbers of one batch, up to rounding."""
    characters = fewshot.load_characters("quick", None)[1]
    family = FewShotFamily(small_cnn(), characters, characters)
    size = fewshot.Size(tasks=5, tuning_tasks=1, steps=3, looks=3, further=0)
    whole = fewshot._run("SGD", SGD(0.1), family, size)
    monkeypatch.setattr(fewshot, "CHUNK", 2)
    chunked = fewshot._run("SGD", SGD(0.1), family, size)
    assert whole[LOSS].values.shape == (4, 5)
    torch.testing.assert_close(chunked[LOSS].values, whole[LOSS].values, rtol=1e-5, atol=1e-6)
    assert len({round(v, 9) for v in whole[LOSS].values[-1].tolist()}) == 5


def test_test_drawings_are_others_than_training_ones():
    """Of twenty drawings five are learned from and fifteen are left to test with."""
    characters = fewshot.load_characters("quick", None)[0]
    assert characters.shape == (10, 20, 14, 14)
    family = FewShotFamily(small_cnn(), characters, characters)
    training = fewshot._training(family, torch.arange(2), fewshot.SIZES["quick"], held_out=True)
    assert training.problem.inputs.shape == (2, 50, 1, 14, 14)
    assert training.test_inputs.shape == (2, 150, 1, 14, 14)
    distances = torch.cdist(training.problem.inputs.flatten(2), training.test_inputs.flatten(2))
    assert distances.min() > 0.1


def test_claims_on_time_are_taken_at_the_same_second():
    """A method of the same pace is judged by its steps, a slower one by the fewer that it has
    taken.
    """

    def claims(falls, pace):
        def curve(name, slope, seconds):
            values = torch.tensor(
                [[1.0 - slope * k + 0.01 * run for run in range(4)] for k in range(5)]
            )
            return Curve(name, list(range(5)), [seconds * k for k in range(5)], values)

        def panel(sign):
            rivals = [curve(name, 0.1 * sign, 1.0) for name in ("Adam (0.01)", "tuned Adam (0.1)")]
            return Panel([curve("capped LAMD", falls * sign, pace), *rivals], "loss", "seconds")

        pairs = (("capped LAMD", "Adam"), ("capped LAMD", "tuned Adam"))
        return [
            claim.holds
            for claim in at_the_same_second({LOSS: panel(1), TEST_ACCURACY: panel(-1)}, pairs)
        ]

    assert all(claims(0.2, 1.0))
    assert all(claims(0.2, 1.9))
    assert not any(claims(0.2, 2.1))
    assert not any(claims(0.05, 1.0))


def test_a_transferred_map_is_that_of_its_entry_where_it_was_learned():
    """Optimisers of the transferred method and of the entry by name take the same steps."""
    inputs = torch.rand(20, 784, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(20) % 10

    def trained(make):
        model = initialised(mlp, 0)
        optimiser = make(model)
        for _ in range(3):
            optimiser.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimiser.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    method = transfer.transferred(transfer.TARGETS[0], "mnist-mlp-spline", inputs[:1])
    found = trained(lambda model: transfer.steps_of(method)(model, 3)[0])
    wanted = trained(
        lambda model: optim.AMD(model.named_parameters(), lr=1.0, mirror="mnist-mlp-spline")
    )
    start = torch.cat([p.detach().flatten() for p in initialised(mlp, 0).parameters()])
    assert (wanted - start).abs().max() > 1e-3
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_claims_on_transfer_can_fail():
    def verdicts(learned, entry, rival):
        losses = dict.fromkeys(transfer.LEARNED, learned) | {ENTRY: entry}
        losses |= dict.fromkeys(
            ["AdamW (1)", "Muon with AdamW (1)", "the identity in its place (1)"], rival
        )
        panel = Panel([ending(name, [loss, loss + 0.01, loss]) for name, loss in losses.items()])
        return [claim.holds for claim in transfer.target_claims("MLP", panel)]

    assert verdicts(0.1, 0.1, 0.5) == [True] * 5
    assert verdicts(0.9, 0.1, 0.5) == [False, False, True, True, True]
    assert verdicts(0.9, 0.9, 0.5) == [False] * 5


def test_settings_tuned_in_turn_ask_for_few_runs():
    """The rate beyond the end of its grid, then the shape, then β₂; nothing is asked twice."""
    seen = []

    def loss(setting):
        seen.append(setting)
        rate, shape, beta = setting
        return abs(math.log(rate / 9)) + (shape == "linear") + (beta == 0.999)

    found = in_turn(adamw_grid((1.0, 3.0), ("linear", "cosine")), loss)
    assert found == (9.0, "cosine", 0.95)
    assert len(seen) == len(set(seen)) == 6


def test_claims_on_the_residual_network_can_fail():
    def verdicts(ours, theirs):
        accuracy = {
            name: torch.tensor(theirs, dtype=torch.float64)
            for name in ("AdamW", "Muon with AdamW", resnet.CONTROL)
        }
        accuracy |= {name: torch.tensor(ours, dtype=torch.float64) for name in (resnet.AMD, ENTRY)}
        return [claim.holds for claim in resnet.accuracy_claims(accuracy)]

    assert verdicts([0.96, 0.961, 0.962], [0.95, 0.951, 0.953]) == [True] * 5
    assert verdicts([0.95, 0.951, 0.952], [0.955, 0.956, 0.958]) == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert verdicts([0.93, 0.931, 0.932], [0.955, 0.956, 0.958]) == [False] * 5
    assert verdicts([0.93, 0.96, 0.99], [0.95, 0.961, 0.972])[2:] == [None] * 3


def test_an_interrupted_run_ends_as_an_uninterrupted_one():
    task = resnet._Task(resnet.Size(2, 100, 1, 300), "digits", None)
    ends = [
        task.train(resnet._amd(0.05, "linear"), 0, interrupted) for interrupted in (True, False)
    ]
    assert ends[0] == ends[1] != task.train(resnet._amd(0.05, "cosine"), 0)
