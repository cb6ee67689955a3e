"""Recipes of methods that train networks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mirrordescent as md
from mirrordescent import data, zoo
from mirrordescent.learn import Evolution, Objective, Settings, Unrolled, Validation
from mirrordescent.learn.network_families import moons_family
from mirrordescent.oracles import Minibatch
from mirrordescent.recipes import network_maps as networks
from mirrordescent.recipes.architectures import moons_network
from mirrordescent.recipes.network_maps import (
    NETWORK_RECIPES,
    REPTILE_RECIPES,
    ChooseScale,
    accelerated,
    descent,
    network_recipe,
    rescaled,
)
from mirrordescent.recipes.reptile import Reptile

METHOD = accelerated(moons_network, (2,), [1, 5], [0.2, 0.1])
SETTINGS = Settings(
    meta_steps=2,
    batch=2,
    horizon=6,
    objective=Objective("log_value"),
    validation=Validation(every=1, batch=2, horizons=(1.0,)),
)


def half_circles(directory):
    return moons_family(40)


def tiny(refinement=None):
    return network_recipe(
        "tiny",
        "a test",
        METHOD,
        SETTINGS,
        refinement,
        minibatch=20,
        learning_minibatch=10,
        family=half_circles,
    )


def test_descent_and_rescaling_keep_the_geometry():
    method = METHOD()
    plain = descent(method, 3.0)
    slower = rescaled(method, 0.5)
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
    objective = Objective("log_value", every=9, differentiation=Evolution(pairs=1))
    refinement = replace(SETTINGS, horizon=9, objective=objective, meta_steps=2)
    first = zoo.load(tiny().train(tmp_path, tmp_path / "first", progress=False))
    path = tiny(refinement).train(
        tmp_path, tmp_path / "second", progress=False
    )  # goes on from the first
    second = zoo.load(path)
    card = zoo.card(path)
    assert card.held_out["accelerated"]["steps"][-1] == 9
    assert [stage["stage"] for stage in card.stages] == ["unrolled", "schedules", "scales"]
    assert card.stages[1]["settings"]["objective"]["differentiation"]["pairs"] == 1
    for p, q in zip(first.mirror.parameters(), second.mirror.parameters(), strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(first.gamma.log_values, second.gamma.log_values)


def test_a_recipe_makes_an_entry(tmp_path):
    path = tiny().train(tmp_path / "runs", tmp_path, progress=False)
    method = zoo.load(path)
    card = zoo.card(path)
    assert card.use["map_parameters"] == 5
    assert card.use["descent_scale"] in networks.DESCENT_SCALES
    assert (card.use["minibatch"], card.use["learning_minibatch"]) == (20, 10)
    assert list(card.held_out) == ["accelerated", "descent", "Adam 1e-2"]
    draw = half_circles(None).validation(2)
    solution = md.solve(
        draw.problem,
        method,
        draw.x0,
        iterations=6,
        oracle=Minibatch(20),
        generator=torch.Generator().manual_seed(0),
    )
    stated = card.held_out["accelerated"]
    assert float(solution.value.mean()) == pytest.approx(stated["loss"][-1], abs=1e-6)


def test_reptile_makes_an_entry(tmp_path, monkeypatch):
    letters = torch.rand(12, 7, 14, 14, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(data, "omniglot_characters", lambda split, size, directory: letters)
    (recipe,) = REPTILE_RECIPES.values()
    changes = ["steps=2", "batch=2", "inner_steps=1"]
    path = recipe.train(tmp_path / "runs", tmp_path, tmp_path, changes=changes, progress=False)
    network = zoo.load(path).network
    card = zoo.card(path)
    shapes = {name: tuple(leaf.shape) for name, leaf in network.items()}
    assert shapes == {
        "0.weight": (8, 1, 3, 3),
        "0.bias": (8,),
        "4.weight": (10, 288),
        "4.bias": (10,),
    }
    assert card.kind == "initialisation"
    assert card.stages[0]["settings"]["steps"] == 2
    assert isinstance(recipe.stages[0], Reptile)
    with pytest.raises(ValueError, match="did you mean 'inner_steps'"):
        recipe.train(tmp_path / "runs", tmp_path, tmp_path, changes=["inner_step=1"])


@pytest.mark.parametrize("name", [name for name in NETWORK_RECIPES if name in zoo.list()])
def test_shipped_entries_are_those_of_their_recipes(name):
    recipe = NETWORK_RECIPES[name]
    module = zoo.load(name)
    card = zoo.card(name)
    made = recipe.method(torch.Generator(), None)
    assert [tuple(p.shape) for p in module.parameters()] == [
        tuple(p.shape) for p in made.parameters()
    ]
    *unrolled, chosen = recipe.stages
    assert all(isinstance(stage, Unrolled) for stage in unrolled)
    assert isinstance(chosen, ChooseScale)
    for stage, record in zip(unrolled, card.stages, strict=False):
        assert record["settings"]["meta_steps"] == stage.settings.meta_steps
    assert card.use["descent_shape"] == chosen.shape
    assert recipe.use.items() <= card.use.items()
    assert card.held_out["accelerated"]["loss"][-1] < card.held_out["accelerated"]["loss"][0]


def test_the_shipped_start_is_that_of_its_recipe():
    ((name, recipe),) = REPTILE_RECIPES.items()
    made = recipe.method(torch.Generator(), None).network
    shipped = zoo.load(name).network
    assert {key: leaf.shape for key, leaf in made.items()} == {
        key: leaf.shape for key, leaf in shipped.items()
    }
    assert sum(leaf.numel() for leaf in shipped.values()) == 2970
    settings = zoo.card(name).stages[0]["settings"]
    assert all(settings[key] == getattr(recipe.stages[0], key) for key in settings)
