"""Recipes of methods that restore images."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from mirrordescent import recipes, zoo
from mirrordescent.learn import Pooled
from mirrordescent.learn.families import DenoisingFamily
from mirrordescent.learn.trainer import NothingLearned
from mirrordescent.recipes import image_maps as imaging


def small_noise(directory):
    pictures = list(torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(0)))
    return Pooled(DenoisingFamily(pictures, pictures, size=8), 4)


def test_a_recipe_in_two_stages(tmp_path):
    recipe = replace(
        recipes.recipe("ellipse-denoise-stencil"), name="tiny", family=small_noise, problems=2
    )
    changes = [
        "meta_steps=2",
        "batch=2",
        "settings.validation.batch=2",
        "horizon=4",
        "curriculum=[]",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NothingLearned)  # two meta-steps may be too few
        path = recipe.train(tmp_path / "runs", tmp_path, changes=changes, progress=False)
    card = zoo.card(path)
    assert [stage["stage"] for stage in card.stages] == ["unrolled", "refined"]
    assert [stage["settings"]["meta_steps"] for stage in card.stages] == [2, 2]
    assert card.stages[1]["settings"]["objective"]["differentiation"] == {
        "type": "evolution",
        "pairs": 8,
        "spread": 0.04,
        "apart": False,
    }
    assert all(stage["best_meta_step"] in range(3) for stage in card.stages)
    assert card.parameters == 1 + 4 * 14
    assert card.held_out["problems"] == 2
    assert list(card.held_out["gap"]) == ["start", "1", "5", "10", "20", "50", "100"]
    assert zoo.load(path).method.t.counts[-1] == 200
    assert {folder.name for folder in (tmp_path / "runs" / "tiny").iterdir()} == {
        "unrolled",
        "refined",
    }


@pytest.mark.parametrize("name", sorted(recipes.RECIPES.keys() & set(zoo.list())))
def test_shipped_cards_say_what_their_recipes_say(name):
    recipe = recipes.recipe(name)
    card = zoo.card(name)
    assert recipe.name == name
    assert (card.description, card.family, card.data) == (
        recipe.description,
        recipe.on,
        recipe.data,
    )


def test_every_entry_has_a_recipe():
    entries = set(zoo.list())
    assert {recipes.recipe(name).name for name in entries} == entries
    with pytest.raises(ValueError, match="did you mean 'photo-inpaint-pair'"):
        recipes.recipe("photo-inpaint-par")
    with pytest.warns(
        FutureWarning, match="the entry photo-inpaint is called photo-inpaint-pair now"
    ):
        assert recipes.recipe("photo-inpaint").name == "photo-inpaint-pair"


def test_finer_schedules_are_the_same_to_begin_with():
    method = imaging.image_stencil(torch.Generator(), None).double()

    def sizes():
        return [method.method.t(k).item() for k in (1, 7, 20, 50, 100, 150)]

    before = sizes()
    assert {p.dtype for p in imaging.stencil_for_long(method).parameters()} == {torch.float64}
    assert sizes() == pytest.approx(before, rel=1e-5)
