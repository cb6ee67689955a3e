"""Recipes of methods that restore images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mirrordescent import zoo
from mirrordescent.learn import DenoisingFamily, Pooled
from mirrordescent_lab.recipes import imaging


def test_a_recipe_in_two_stages(tmp_path, monkeypatch):
    def small_noise(directory):
        """Noise."""
        pictures = list(torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(0)))
        return Pooled(DenoisingFamily(pictures, pictures, size=8), 4)

    recipe = replace(imaging.RECIPES["ellipse-denoise-stencil"], dataset=None, family=small_noise)
    monkeypatch.setitem(imaging.RECIPES, "tiny", recipe)
    changes = ["meta_steps=2", "batch=2", "validation_batch=2", "horizon=4", "curriculum=[]"]
    path = imaging.train("tiny", tmp_path / "runs", out=tmp_path, changes=changes, progress=False)
    card = zoo.card(path)
    assert (card["settings"]["meta_steps"], card["refinement"]["meta_steps"]) == (2, 2)
    assert card["best_refinement_step"] in range(3)
    assert card["parameters"] == 1 + 4 * 14
    assert zoo.load(path).method.t.counts[-1] == 200


def test_finer_schedules_are_the_same_to_begin_with():
    method = imaging.image_stencil(torch.Generator()).double()

    def sizes():
        return [method.method.t(k).item() for k in (1, 7, 20, 50, 100, 150)]

    before = sizes()
    assert {p.dtype for p in imaging.stencil_for_long(method).parameters()} == {torch.float64}
    assert sizes() == pytest.approx(before, rel=1e-5)
