"""Reptile on bowls, where its fixed point is known, and its interruption."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.checkpoint import RunDamaged
from mirrordescent.learn.families import draw_seeds
from mirrordescent.problems.base import Function
from mirrordescent.problems.network_training import Initialisation
from mirrordescent.recipes.reptile import Reptile

CENTRES = torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=torch.float64)
CURVATURES = torch.tensor([[1.0, 0.3], [0.2, 2.0]], dtype=torch.float64)


class TwoBowls(ProblemFamily):
    """½(w − c)ᵀA(w − c) with two choices of (A, c), both in every batch of two."""

    def draw(self, seeds):
        which = torch.arange(len(seeds)) % 2
        c = CENTRES[which]
        a = CURVATURES[which]
        return Draw(
            Function(lambda x: 0.5 * (a * (x["w"] - c).square()).sum(1)), {"w": torch.zeros_like(c)}
        )

    def validation(self, count):
        return self.draw(torch.arange(count))


def start():
    return {"w": torch.zeros(2, dtype=torch.float64)}


def test_the_fixed_point():
    """n steps map w to c + (1 − ηa)ⁿ(w − c), so θ* is the mean of the c with weights 1 − (1
    − ηa)ⁿ.
    """
    weights = 1 - (1 - 0.1 * CURVATURES) ** 7
    expected = (weights * CENTRES).sum(0) / weights.sum(0)
    stage = Reptile(400, batch=2, inner_steps=7, inner_step_size=0.1, epsilon=0.5)
    theta = stage.learn(TwoBowls(), start(), progress=False)
    torch.testing.assert_close(theta["w"], expected)


def test_one_step_and_the_falling_rate():
    theta = {"w": torch.zeros(2, dtype=torch.float64)}
    shown = []
    for k in range(3):  # by hand, with ε_k = 0.6 (1 − k/3)
        moved = CENTRES + (1 - 0.1 * CURVATURES) ** 2 * (theta["w"] - CENTRES)
        theta = {"w": theta["w"] + 0.6 * (1 - k / 3) * (moved.mean(0) - theta["w"])}
        shown.append(theta["w"])
    stage = Reptile(3, batch=2, inner_steps=2, inner_step_size=0.1, epsilon=0.6)
    found = stage.learn(TwoBowls(), start(), progress=False)
    torch.testing.assert_close(found["w"], shown[-1])


class RandomBowls(TwoBowls):
    """One bowl for each seed."""

    def draw(self, seeds):
        c = torch.stack(
            [torch.randn(2, generator=torch.Generator().manual_seed(int(s))) for s in seeds]
        ).double()
        return Draw(
            Function(lambda x: 0.5 * (x["w"] - c).square().sum(1)), {"w": torch.zeros_like(c)}
        )


def test_an_interrupted_run_ends_where_it_would_have(tmp_path):
    stage = Reptile(20, batch=3, inner_steps=2, inner_step_size=0.1, epsilon=0.5, save_every=5)
    whole = stage.learn(RandomBowls(), start(), progress=False)

    class Interrupted(RandomBowls):
        draws = 0

        def draw(self, seeds):
            self.draws += 1
            if self.draws > 13:
                raise KeyboardInterrupt
            return super().draw(seeds)

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        stage.learn(Interrupted(), start(), folder=folder, progress=False)
    counted = Interrupted()
    resumed = stage.learn(counted, start(), folder=folder, progress=False)
    assert counted.draws == 10  # from the tenth step on
    assert torch.equal(resumed["w"], whole["w"])
    assert torch.equal(
        stage.learn(counted, start(), folder=folder, progress=False)["w"], whole["w"]
    )
    assert counted.draws == 10
    with pytest.raises(RunDamaged, match="other settings"):
        replace(stage, steps=30).learn(RandomBowls(), start(), folder=folder, progress=False)
    anew = stage.learn(RandomBowls(), start(), folder=folder, resume=False, progress=False)
    assert torch.equal(anew["w"], whole["w"])
    (folder / "checkpoint.safetensors").write_bytes(b"no tensors")
    with pytest.warns(UserWarning, match="Continuing from the previous checkpoint"):
        again = stage.learn(RandomBowls(), start(), folder=folder, progress=False)
    assert torch.equal(again["w"], whole["w"])
    for path in folder.glob("checkpoint*.safetensors"):
        path.write_bytes(b"no tensors")
    with pytest.raises(RunDamaged, match="cannot be resumed"):
        stage.learn(RandomBowls(), start(), folder=folder, progress=False)


def test_the_loss_along_the_way(tmp_path):
    """After n steps from w a bowl has the value ½a(1 − ηa)²ⁿ(w − c)²; an interrupted run has the
    same curve.
    """
    stage = Reptile(
        8,
        batch=2,
        inner_steps=2,
        inner_step_size=0.1,
        epsilon=0.5,
        save_every=3,
        looks=4,
        held_out=2,
    )
    _, record = stage.run(
        Initialisation(start()), TwoBowls(), folder=None, resume=True, progress=False
    )
    curve = record["loss_against_problems"]
    assert list(curve) == ["0", "4", "8", "12", "16"]
    left = (1 - 0.1 * CURVATURES) ** 2 * CENTRES
    assert curve["0"] == pytest.approx(
        float((0.5 * CURVATURES * left.square()).sum(1).mean()), abs=1e-4
    )
    assert curve["16"] < curve["0"]

    class Interrupted(TwoBowls):
        draws = 0

        def draw(self, seeds):
            self.draws += 1
            if self.draws == 7:
                raise KeyboardInterrupt
            return super().draw(seeds)

    work = {"folder": tmp_path, "resume": True, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        stage.run(Initialisation(start()), Interrupted(), **work)
    assert (
        stage.run(Initialisation(start()), TwoBowls(), **work)[1]["loss_against_problems"] == curve
    )


def test_the_start_helps():
    """After Reptile, the same few steps of gradient descent reach lower values than from zero."""
    family = TwoBowls()
    theta = Reptile(100, batch=2, inner_step_size=0.1, epsilon=0.5).learn(
        family, start(), progress=False
    )
    draw = family.draw(draw_seeds(2, torch.Generator().manual_seed(0)))
    before = md.solve(draw.problem, md.GD(0.1), draw.x0, iterations=5).value.mean()
    x0 = {"w": theta["w"].expand(2, 2).clone()}
    assert md.solve(draw.problem, md.GD(0.1), x0, iterations=5).value.mean() < 0.6 * before


def test_an_initialisation_can_be_stored(tmp_path):
    network = {
        "0.weight": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)),
        "0.bias": torch.ones(3),
    }
    md.zoo.save(Initialisation(network), tmp_path / "start")
    assert md.zoo.card(tmp_path / "start.safetensors").kind == "initialisation"
    loaded = md.zoo.load(tmp_path / "start.safetensors").network
    assert list(loaded) == list(network)
    assert all(torch.equal(loaded[name], network[name]) for name in network)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="epsilon must be in"):
        Reptile(5, epsilon=2.0)
    with pytest.raises(ValueError, match="must be at least 1"):
        Reptile(5, batch=0)
