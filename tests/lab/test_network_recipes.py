"""Recipes of methods that train networks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mirrordescent as md
from mirrordescent import zoo
from mirrordescent.learn import Objective, Settings
from mirrordescent.learn.networks import moons_family
from mirrordescent.oracles import Minibatch
from mirrordescent_lab import recipes
from mirrordescent_lab.architectures import moons_network
from mirrordescent_lab.recipes import networks
from mirrordescent_lab.recipes.networks import (
    NETWORK_RECIPES,
    NetworkRecipe,
    ReptileRecipe,
    accelerated,
    descent,
    rescaled,
)


def half_circles(directory):
    """Forty points."""
    return moons_family(40)


TINY = NetworkRecipe(
    "a test", None, half_circles, accelerated(moons_network, (2,), [1, 5], [0.2, 0.1]),
    Settings(
        meta_steps=2, batch=2, horizon=6, objective=Objective("log_value"), validate_every=1, validation_batch=2,
        validation_horizons=(1.0,),
    ),
    minibatch=20, learning_minibatch=10,
)  # fmt: skip


def test_descent_and_rescaling_keep_the_geometry():
    method = TINY.method()
    plain, slower = descent(method, 3.0), rescaled(method, 0.5)
    assert plain.mirror is method.mirror
    assert slower.regulariser is slower.mirror
    for k in (1, 5, 50):
        t = float(method.t(k).detach())
        assert float(plain.t(k)) == pytest.approx(3 * t * (1 + min(k, 5) / 5))
        assert float(slower.t(k)) == pytest.approx(t / 2)
    late = accelerated(moons_network, (2,), [1, 80], [0.2, 0.2])()
    assert [float(descent(late, 1.0).t(k)) for k in (20, 80)] == pytest.approx([0.2 * 1.25, 0.4])
    assert float(descent(late, 1.0).t(1)) == pytest.approx(0.2 / 20 * (1 + 1 / 80))
    assert method.t.log_values.requires_grad  # the one that was given is left as it was


def test_shapes_of_plain_descent():
    """Beyond the warm-up, and but for the rising number, which is scale · (1 + k/horizon)."""
    method = accelerated(moons_network, (2,), [1, 2, 4], [0.2, 0.1, 0.8])()

    def sizes(shape):
        t = descent(method, 1.0, shape).t
        return [float(t(k)) / (1 + k / 4) for k in (1, 2, 4)]

    assert sizes("learned") == pytest.approx([0.2, 0.1, 0.8])
    assert sizes("falling") == pytest.approx([0.2, 0.1, 0.1])
    assert sizes("steady") == pytest.approx([0.016 ** (1 / 3)] * 3)


def test_schedules_are_learned_on_with_the_map_as_it_is(tmp_path):
    objective = Objective("log_value", every=9, differentiation="evolution", pairs=1)
    refinement = replace(TINY.settings, horizon=9, objective=objective, meta_steps=2)
    first, _ = TINY.learn("tiny", tmp_path, None)
    second, card = replace(TINY, refinement=refinement).learn("tiny", tmp_path, None)  # goes on from the first
    assert card["held_out"]["accelerated"]["steps"][-1] == 9
    assert card["refinement"]["objective"]["pairs"] == 1
    for p, q in zip(first.mirror.parameters(), second.mirror.parameters(), strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(first.gamma.log_values, second.gamma.log_values)


def test_a_recipe_makes_an_entry(tmp_path, monkeypatch):
    monkeypatch.setitem(networks.NETWORK_RECIPES, "tiny", TINY)
    path = recipes.train("tiny", tmp_path / "runs", out=tmp_path)
    method, card = zoo.load(path), zoo.card(path)
    assert card["map_parameters"] == 5
    assert card["descent_scale"] in networks.DESCENT_SCALES
    draw = half_circles(None).validation(2)
    solution = md.solve(
        draw.problem, method, draw.x0, iterations=6, oracle=Minibatch(20), generator=torch.Generator().manual_seed(0)
    )
    stated = card["held_out"]["accelerated"]
    assert float(solution.value.mean()) == pytest.approx(stated["loss"][-1], abs=1e-6)


def test_reptile_makes_an_entry(tmp_path, monkeypatch):
    letters = torch.rand(12, 7, 14, 14, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(md.data, "omniglot_characters", lambda split, size, directory: letters)
    recipe = ReptileRecipe("a test", 2, {"batch": 2, "inner_steps": 1})
    monkeypatch.setitem(networks.NETWORK_RECIPES, "tiny-start", recipe)
    path = recipes.train("tiny-start", tmp_path / "runs", tmp_path, tmp_path)
    network = zoo.load(path).network
    shapes = {name: tuple(leaf.shape) for name, leaf in network.items()}
    assert shapes == {"0.weight": (8, 1, 3, 3), "0.bias": (8,), "4.weight": (10, 288), "4.bias": (10,)}
    assert zoo.card(path)["kind"] == "initialisation"


@pytest.mark.parametrize("name", [name for name, recipe in NETWORK_RECIPES.items() if name in zoo.list()])
def test_shipped_entries_are_those_of_their_recipes(name):
    recipe, module = NETWORK_RECIPES[name], zoo.load(name)
    if isinstance(recipe, ReptileRecipe):
        assert sum(leaf.numel() for leaf in module.network.values()) == 2970
        return
    made = recipe.method()
    assert [tuple(p.shape) for p in module.parameters()] == [tuple(p.shape) for p in made.parameters()]
    card = zoo.card(name)
    assert card["settings"]["meta_steps"] == recipe.settings.meta_steps
    assert card["descent_shape"] == recipe.descent_shape
    assert card["held_out"]["accelerated"]["loss"][-1] < card["held_out"]["accelerated"]["loss"][0]
