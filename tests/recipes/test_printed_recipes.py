"""Maps of networks learned as the paper prints it, and LAMD* as printed."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import zoo
from mirrordescent.learn import Objective, Settings, Unrolled, Validation
from mirrordescent.learn.network_families import moons_family
from mirrordescent.mirrors import Euclidean
from mirrordescent.recipes.architectures import moons_network
from mirrordescent.recipes.printed_maps import (
    FIRST_STEP,
    PRINTED_RECIPES,
    PRINTED_REPTILE_RECIPES,
    accelerated_as_printed,
    plain,
    printed_recipe,
)

SETTINGS = Settings(
    meta_steps=2,
    batch=2,
    horizon=6,
    objective=Objective("sum"),
    validation=Validation(every=1, batch=2, horizons=(1.0,)),
)
METHOD = plain(moons_network, (2,))


def tiny():
    return printed_recipe(
        "tiny",
        "a test",
        METHOD,
        SETTINGS,
        minibatch=20,
        learning_minibatch=10,
        family=lambda _: moons_family(40),
    )


@pytest.mark.parametrize("control", [False, True])
def test_a_recipe_learns_map_and_step_through_mirror_descent(tmp_path, control):
    recipe = tiny().control() if control else tiny()
    path = recipe.train(tmp_path / "runs", tmp_path, progress=False)
    method = zoo.load(path)
    card = zoo.card(path)
    assert float(method.t(1)) == float(method.t(99)) != pytest.approx(FIRST_STEP, rel=1e-4)
    assert isinstance(method.mirror, Euclidean) == control
    assert sum(p.numel() for p in method.parameters()) == (1 if control else 6)
    assert list(card.held_out) == ["descent", "accelerated as printed", "Adam 1e-2"]
    assert (card.use["minibatch"], card.use["learning_minibatch"]) == (20, 10)


def test_lamd_as_printed_has_the_weights_of_the_paper():
    """λ_k = 3/(3 + k) and k/3 for k = 0, 1, …, however long the run; schedules count from 1."""
    method = METHOD()
    accelerated = accelerated_as_printed(method)
    assert accelerated.cap is None
    assert accelerated.mirror is method.mirror
    assert isinstance(accelerated.regulariser, Euclidean)
    for k in (0, 1, 50, 3000):
        assert float(accelerated.mixing(k + 1)) == pytest.approx(3 / (3 + k))
        assert float(accelerated.dual_weight(k + 1)) == pytest.approx(k / 3)
        assert float(accelerated.gamma(k + 1)) == 1
        assert float(accelerated.t(k + 1)) == pytest.approx(FIRST_STEP)


@pytest.mark.parametrize("name", [name for name in PRINTED_RECIPES if name in zoo.list()])
def test_shipped_entries_are_those_of_their_recipes(name):
    recipe = PRINTED_RECIPES[name]
    module = zoo.load(name)
    card = zoo.card(name)
    made = recipe.method(torch.Generator(), None)
    assert [tuple(p.shape) for p in module.parameters()] == [
        tuple(p.shape) for p in made.parameters()
    ]
    (stage,) = recipe.stages
    assert isinstance(stage, Unrolled)
    settings = card.stages[0]["settings"]
    assert settings["meta_steps"] == stage.settings.meta_steps
    assert settings["optimiser"]["learning_rate"] == stage.settings.optimiser.learning_rate
    assert recipe.use.items() <= card.use.items()


def test_reptile_has_the_steps_of_the_paper():
    ((name, recipe),) = PRINTED_REPTILE_RECIPES.items()
    (stage,) = recipe.stages
    assert (stage.batch, stage.inner_steps, stage.inner_step_size, stage.epsilon) == (
        1,
        10,
        0.01,
        0.1,
    )
    if name in zoo.list():
        (record,) = zoo.card(name).stages
        curve = list(record["loss_against_problems"].values())
        assert (
            record["settings"]["steps"]
            == stage.steps
            == int(list(record["loss_against_problems"])[-1])
        )
        assert curve[-1] < curve[0]
