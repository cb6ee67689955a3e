"""Recipes of the shipped priors and of their steps: derivatives, resumed runs, and entries."""

from dataclasses import replace

import pytest
import torch

import mirrordescent as md
from mirrordescent import recipes, zoo
from mirrordescent.learn import Draw
from mirrordescent.methods.ridge_momentum import RidgeMomentum
from mirrordescent.problems import Anchor, RidgePrior, RidgeTable, prior_denoising
from mirrordescent.problems.prior_problems import ANCHOR, UNDOING_ANCHOR
from mirrordescent.recipes import prior_recipes
from mirrordescent.recipes.damaged_pictures import DamagedPictures
from mirrordescent.recipes.prior_recipes import PriorPictures, PriorStage, first_prior
from mirrordescent.recipes.ridge_priors import PatchBatch, PriorSettings
from mirrordescent.recipes.ridge_steps import (
    RIDGE_STEP_RECIPES,
    GradientStage,
    Steps,
    StepSettings,
    gradient_losses,
)
from mirrordescent.schedules import Prefix

TINY = PriorSettings(
    channels=1,
    minutes=0.003,
    size=3,
    patches=PatchBatch(2, 24),
    iterations=4,
    solves=3,
    checks=1,
)


def smooth_pictures(count, side=32):
    row = torch.linspace(0, 1, side).reshape(1, -1, 1)
    column = torch.linspace(0, 1, side).reshape(1, 1, -1)
    return [(0.3 + 0.1 * i * row + 0.2 * (row > column)).expand(3, -1, -1) for i in range(count)]


def small_family():
    return PriorPictures(smooth_pictures(3), smooth_pictures(2), first_prior(TINY), size=16)


def test_derivatives_of_the_loss_are_those_of_finite_differences():
    prior = first_prior(replace(TINY, modulus=0.5)).double()
    y = torch.rand(2, 1, 10, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draw = Draw(prior_denoising(y, 0.1, prior), y)
    t = Prefix(torch.tensor([1.2, 0.9, 1.4], dtype=torch.float64), extension="last")
    momentum = Prefix(torch.tensor([0.3, 0.5, 0.4], dtype=torch.float64), extension="last")
    method = RidgeMomentum(t, momentum)
    gradient_losses(method, draw, (2, 4)).sum().backward()
    for schedule in (t, momentum):
        for index in range(3):
            with torch.no_grad():
                values = []
                for change in (1e-5, -1e-5):
                    schedule.values[index] += change
                    values.append(float(gradient_losses(method, draw, (2, 4)).sum()))
                    schedule.values[index] -= change
            expected = (values[0] - values[1]) / 2e-5
            assert float(schedule.values.grad[index]) == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_the_loss_is_the_norm_of_gradients_of_a_run():
    family = small_family()
    draw = family.validation(2)
    method = RidgeMomentum(1.1, 0.4)
    x = md.solve(draw.problem, method, draw.x0, iterations=3, progress=False).x
    square = draw.problem.grad(x).square().sum((1, 2, 3))
    first = draw.problem.grad(draw.x0).square().sum((1, 2, 3))
    found = gradient_losses(method, draw, (3,))
    torch.testing.assert_close(found, (square / first).log(), rtol=1e-4, atol=1e-4)


def with_convex_profiles(prior):
    """Return a prior whose convex profiles are Huber functions."""
    ends = torch.ones(1, len(prior.filters), 1)
    table = RidgeTable(torch.tensor([0.05]), ends[..., 0] * 0, torch.ones(1), 0.5 * ends)
    return RidgePrior(prior.filters, prior.weak, table)


def damaged_family(damage):
    pictures = smooth_pictures(3)
    prior = with_convex_profiles(first_prior(TINY))
    return DamagedPictures(pictures, smooth_pictures(2), prior, damage, size=24)


@pytest.mark.parametrize("damage", ["holes", "blur"])
def test_damaged_pictures_are_restored(damage):
    """The minimiser is nearer to the picture than the start, and the derivatives are right."""
    family = damaged_family(damage)
    draw = family.validation(2)
    (anchor,) = [float(part.weight) for part in draw.problem.parts if isinstance(part, Anchor)]
    assert anchor == {"holes": ANCHOR, "blur": UNDOING_ANCHOR}[damage], "as in restoration"
    momentum = 0.8 if damage == "holes" else 0.93
    run = md.solve(draw.problem, RidgeMomentum(1.0, momentum, share=1.0), draw.x0, iterations=400)
    assert bool((run.value < draw.problem.value(draw.x0)).all())
    assert float(draw.problem.grad(run.x).norm()) < 1e-3 * float(draw.problem.grad(draw.x0).norm())
    draw = Draw(draw.problem.double(), draw.x0.double())
    t = Prefix(torch.tensor([1.0, 0.9], dtype=torch.float64), extension="last")
    method = RidgeMomentum(t, 0.5, share=1.0)
    gradient_losses(method, draw, (3,)).sum().backward()
    values = []
    for change in (1e-5, -1e-5):
        with torch.no_grad():
            t.values[1] += change
            values.append(float(gradient_losses(method, draw, (3,)).sum()))
            t.values[1] -= change
    expected = (values[0] - values[1]) / 2e-5
    assert float(t.values.grad[1]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("steps", [Steps(4, 1.3, 0.55), Steps(4, 1.3, 0.55, scheduled=False)])
def test_schedules_are_learned_and_an_interrupted_run_continues(steps, tmp_path):
    family = small_family()
    settings = StepSettings(meta_steps=6, batch=2, targets=(3,), save_every=3)
    work = {"oracle": None, "resume": True, "progress": False}
    stage = GradientStage(settings)
    start = steps.method(None, family)
    draw = family.validation(4)

    @torch.no_grad()
    def loss(method):
        return float(gradient_losses(method.method, draw, (3,)).mean())

    before = loss(start)
    whole, record = stage.run(start, family, folder=tmp_path / "whole", **work)
    assert loss(whole) < before
    assert record["settings"]["targets"] == (3,)

    class Interrupted(Exception):
        pass

    class ThreeDraws(PriorPictures):
        draws = 0

        def draw(self, seeds):
            if self.draws == 3:
                raise Interrupted
            self.draws += 1
            return super().draw(seeds)

    some = ThreeDraws(family.training, family.held_out, family.prior, size=16)
    with pytest.raises(Interrupted):
        stage.run(steps.method(None, family), some, folder=tmp_path / "parts", **work)
    again, _ = stage.run(steps.method(None, family), family, folder=tmp_path / "parts", **work)
    for expected, found in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(expected, found)
    other = GradientStage(replace(settings, seed=1))
    with pytest.raises(ValueError, match="other settings"):
        other.run(steps.method(None, family), family, folder=tmp_path / "parts", **work)


@pytest.mark.parametrize(
    ("name", "family", "parameters"),
    [
        ("photo-prior-denoise", small_family, 24),
        ("photo-prior-inpaint", lambda: damaged_family("holes"), 82),
        ("photo-prior-deblur-control", lambda: damaged_family("blur"), 162),
    ],
)
def test_a_recipe_makes_the_entry_of_the_steps(name, family, parameters, tmp_path):
    recipe = replace(recipes.recipe(name), family=lambda directory: family(), problems=2)
    path = recipe.train(
        tmp_path / "runs",
        tmp_path,
        changes=["meta_steps=2", "batch=1", "targets=[2]"],
        progress=False,
    )
    card = zoo.card(path)
    assert card.parameters == parameters
    assert card.stages[0]["settings"]["meta_steps"] == 2
    assert len(card.held_out["steps to 0.001"]) == 2
    assert isinstance(zoo.load(path), md.methods.TangentBound)


def test_a_recipe_makes_the_entry_of_a_prior(tmp_path):
    recipe = replace(
        recipes.recipe("photo-prior-grey"),
        family=lambda directory: small_family(),
        method=lambda generator, family: first_prior(TINY),
        stages=[PriorStage("both", TINY), PriorStage("convex", replace(TINY, convex_share=1.0))],
    )
    path = recipe.train(tmp_path / "runs", tmp_path, progress=False)
    prior = zoo.load(path)
    assert isinstance(prior, RidgePrior)
    assert prior.convex.at(0.05).convex
    card = zoo.card(path)
    assert [stage["stage"] for stage in card.stages] == ["both", "convex"]
    assert card.parameters == sum(buffer.numel() for buffer in prior.buffers())
    first, second = card.stages
    assert first["parts"][1]["steps"] > 0
    assert second["parts"][0]["steps"] == 0


@pytest.mark.parametrize("name", prior_recipes.PRIOR_RECIPES)
def test_recipes_of_priors_have_the_shape_of_the_shipped_entries(name):
    shipped = zoo.load(name)
    first = recipes.recipe(name).method(None, None)
    assert first.filters.shape == shipped.filters.shape
    assert first.weak.heights.shape == shipped.weak.heights.shape


@pytest.mark.parametrize("changes", [{"targets": ()}, {"targets": (0,)}, {"batch": 0}])
def test_wrong_settings_of_steps_are_refused(changes):
    with pytest.raises(ValueError, match="at least 1"):
        StepSettings(**changes)


@pytest.mark.parametrize("name", sorted(RIDGE_STEP_RECIPES))
def test_steps_are_stable_however_long_a_run_takes(name):
    """The last step size and momentum are used for ever: t(1 + 2β) < 2(1 + β) for curvature 1."""
    for version in zoo.versions(name):
        method = zoo.load(f"{name}@{version}").method
        t = float(method.t(10_000))
        momentum = float(method.momentum(10_000))
        assert t * (1 + 2 * momentum) < 2 * (1 + momentum)
        assert 0 <= momentum < 1
