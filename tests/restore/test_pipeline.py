"""Restoring: the optimum within the proven gap, whatever method, channels or memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mirrordescent as md
from mirrordescent.methods import Conditioned
from mirrordescent.restore import (
    available_memory,
    needed_memory,
    pipeline,
    plan_restoration,
    restore,
)
from mirrordescent.restore.tiling import windows


def inpainting(height=24, width=20, channels=3, batch=1):
    generator = torch.Generator().manual_seed(0)
    rows = torch.linspace(0, 3, height)[:, None]
    columns = torch.linspace(0, 2, width)
    image = (0.5 + 0.4 * torch.sin(rows + columns)).expand(batch, channels, -1, -1)
    mask = torch.rand(batch, 1, height, width, generator=generator) > 0.3
    return md.TVInpainting(
        mask * (image + 0.05 * torch.randn(image.shape, generator=generator)), mask
    )


def denoising(**shape):
    return md.TVDenoising(inpainting(**shape).y)


@pytest.mark.parametrize(("task", "make"), [("inpaint", inpainting), ("denoise", denoising)])
@pytest.mark.parametrize(
    "options", [{}, {"method": "lamd", "tolerance": 1e-4}, {"tolerance": 1e-7}]
)
def test_the_gap_is_proven_and_reached(task, make, options):
    problem = make(batch=2)
    found = restore(problem, plan_restoration(task, **options))
    reference = md.certify(problem, 1e-8, cache=False)
    gap = md.relative_gap(
        problem.double().value(found.x.double()), reference.lower, reference.start_value
    )
    assert (found.gap <= options.get("tolerance", 1e-3)).all()
    assert (gap <= found.gap + 1e-6).all()
    assert found.statuses == [md.Status.CONVERGED] * 2


def test_what_was_learned_begins_and_a_primal_dual_method_finishes():
    problem = inpainting(batch=2)
    how = plan_restoration("inpaint")
    found = restore(problem, how)
    assert isinstance(how.method, Conditioned)
    assert isinstance(how.method.method, md.Switch)
    assert found.steps["image-tv"] == [20, 20]
    assert min(found.steps["condat-vu"]) > 0
    assert found.trace.iterations[-1] >= 20 + max(found.steps["condat-vu"])
    rough = restore(
        denoising(), plan_restoration("denoise", tolerance=5e-2)
    )  # it proves that by itself
    assert rough.steps["condat-vu"] == [0]
    assert rough.steps["image-tv"] == [20]


def test_an_entry_without_a_tolerance_gives_its_own_answer():
    problem = denoising()
    how = plan_restoration("denoise", mirror="ellipse-denoise-stencil")
    own = md.solve(problem, md.zoo.load("ellipse-denoise-stencil"), iterations=how.iterations)
    found = restore(problem, how)
    torch.testing.assert_close(found.x, own.x)
    assert list(found.steps.values()) == [[20]]
    assert 0 < float(found.gap) < 1e-2


@pytest.mark.parametrize(
    ("task", "make", "options"),
    [
        ("inpaint", inpainting, {}),
        ("denoise", denoising, {}),
        ("inpaint", inpainting, {"method": "pdhg"}),
        ("inpaint", inpainting, {"mirror": "photo-inpaint-stencil", "iterations": 5}),
    ],
)
def test_kernels_give_the_same(compiled, task, make, options):
    problem = make(height=70, batch=2)
    fused = restore(problem, plan_restoration(task, **options, fused=True))
    plain = restore(problem, plan_restoration(task, **options, fused=False))
    assert fused.steps == plain.steps
    torch.testing.assert_close(
        fused.value, plain.value, rtol=1e-4, atol=0
    )  # roundings add up over the iterations
    torch.testing.assert_close(fused.lower, plain.lower, rtol=1e-4, atol=0)


def test_a_chosen_method_gives_its_own_answer():
    problem = inpainting()
    entry = md.zoo.load("photo-inpaint-conjugate")
    own = md.solve(problem, md.AMD(entry.mirror, entry.t), problem.start(fill=True), iterations=7)
    found = restore(problem, plan_restoration("inpaint", "lamd", iterations=7))
    torch.testing.assert_close(found.x, own.x)
    assert list(found.steps.values()) == [[7]]
    assert 0 < float(found.gap) < 1
    assert found.trace.iterations[-1] == 7
    torch.testing.assert_close(found.trace.values[-1], own.value)


@pytest.mark.parametrize(
    "method", ["lsmd", "lasmd", "smd", "asmd", "md", "gd", "nesterov", "adam", "pdhg"]
)
def test_every_method_improves(method):
    problem = inpainting()
    found = restore(problem, plan_restoration("inpaint", method))
    assert found.value < problem.value(problem.start(fill=True))
    assert not found.statuses[0].failed


def test_a_grey_map_takes_colours_one_by_one():
    problem = denoising(batch=2)
    together = restore(problem, plan_restoration("denoise", "lsmd", iterations=5))
    assert together.x.shape == problem.y.shape
    for channel in range(3):
        alone = restore(
            md.TVDenoising(problem.y[:, channel : channel + 1]),
            plan_restoration("denoise", "lsmd", iterations=5),
        )
        torch.testing.assert_close(together.x[:, channel : channel + 1], alone.x)
    torch.testing.assert_close(together.trace.values[-1], together.value)


def test_a_colour_map_takes_grey_thrice():
    grey = inpainting(channels=1)
    found = restore(grey, plan_restoration("inpaint", "lsmd", iterations=5))
    thrice = md.TVInpainting(grey.y.expand(-1, 3, -1, -1).contiguous(), grey.mask)
    torch.testing.assert_close(
        found.x,
        restore(thrice, plan_restoration("inpaint", "lsmd", iterations=5)).x.mean(1, keepdim=True),
    )
    with pytest.raises(ValueError, match="is for images of 3 channels, not of 2"):
        restore(inpainting(channels=2), plan_restoration("inpaint", "lsmd"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Choice", "WeightChoice"),
        ("Plan", "RestorationPlan"),
        ("available", "available_memory"),
        ("needed", "needed_memory"),
        ("plan", "plan_restoration"),
    ],
)
def test_old_names_warn_and_name_the_new_ones(old, new):
    with pytest.warns(DeprecationWarning, match=f"renamed to mirrordescent.restore.{new}"):
        assert getattr(md.restore, old) is getattr(md.restore, new)


def test_windows_cover_an_image_once():
    for height, width, side in ((100, 80, 128), (70, 300, 130), (64, 64, 1000)):
        covered = torch.zeros(height, width)
        for outer, inner, core in windows(height, width, side):
            covered[core] += 1
            assert all(s.stop - s.start <= side for s in outer)
            positions = [
                torch.arange(length)[o][i]
                for length, o, i in zip((height, width), outer, inner, strict=True)
            ]
            assert all(
                torch.equal(p, torch.arange(p[0], c.stop))
                for p, c in zip(positions, core, strict=True)
            )
        assert (covered == 1).all()


def test_an_image_too_large_for_the_memory_is_solved_in_tiles():
    problem = inpainting(height=220, width=180, channels=1)
    how = plan_restoration("inpaint", tolerance=1e-5)
    at_once = restore(problem, how)
    memory = int(0.8 * needed_memory(problem, how.method))
    tiled = restore(problem, how, memory=memory)
    assert tiled.tiles > 1
    assert (tiled.gap <= 1e-5).all()
    assert (tiled.x - at_once.x).square().mean().sqrt() < 2e-3
    torch.testing.assert_close(tiled.value, at_once.value, rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match=r"180×220 pixels needs about .* make it smaller"):
        restore(problem, how, memory=memory // 4)


def test_the_memory_is_known_here():
    assert available_memory() > 1 << 20
    grey = inpainting(channels=1)
    colour = inpainting()
    assert needed_memory(colour, md.PDHG()) == 3 * needed_memory(grey, md.PDHG())
    assert (
        needed_memory(colour, md.zoo.load("photo-inpaint-conjugate"))
        > needed_memory(colour, md.PDHG())
        > needed_memory(colour, None)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "lamdd"}, "did you mean 'lamd'"),
        ({"method": "pdhg", "mirror": "photo-inpaint-pair"}, "pdhg takes no mirror map"),
        ({"method": "lamd", "mirror": "photo-inpaint-lpd"}, "no mirror map with step sizes"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"tolerance": float("nan")}, r"tolerance must be in \(0, 1\)"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        plan_restoration("inpaint", **options)


def test_iterations_are_the_budget_in_all():
    problem = inpainting(batch=2)
    for iterations, own in ((5, 5), (30, 20)):
        found = restore(problem, plan_restoration("inpaint", iterations=iterations, tolerance=1e-6))
        assert found.steps["image-tv"] == [own, own]
        assert found.steps["condat-vu"] == [iterations - own] * 2
        assert found.statuses == [md.Status.BUDGET] * 2
    enough = restore(
        problem,
        plan_restoration("inpaint", mirror="photo-inpaint-stencil", iterations=600, tolerance=1e-3),
    )
    assert (enough.gap <= 1e-3).all()


def test_a_tile_that_lies_in_a_hole_is_filled():
    problem = inpainting(height=300, width=280, channels=1)
    mask = problem.mask.clone()
    mask[..., 60:250, 60:240] = 0
    deep = md.TVInpainting(problem.y * mask, mask)
    how = plan_restoration("inpaint", tolerance=1e-3)
    told = []
    tiled = restore(
        deep,
        how,
        memory=int(0.35 * needed_memory(deep, how.method)) + needed_memory(deep, None),
        announce=told.append,
    )
    assert tiled.tiles > 4
    assert told == [
        f"280×300 pixels: in {tiled.tiles} tiles, each solved by itself with a margin of 32 pixels"
    ]
    assert float(tiled.x.min()) >= float(problem.y[problem.mask.bool()].min()) - 1e-3
    assert torch.isfinite(tiled.x).all()
    whole = restore(deep, how)
    known = mask.bool()
    assert (tiled.x - whole.x)[known].square().mean().sqrt() < 0.01


def test_the_value_of_strips_is_the_value_of_the_whole(monkeypatch):
    monkeypatch.setattr(pipeline, "STRIP", 7)
    for variant in (
        {},
        {"isotropic": True},
        {"isotropic": True, "coupled": True},
        {"coupled": True, "huber": 0.05},
    ):
        plain = inpainting(height=30)
        problem = md.TVInpainting(plain.y, plain.mask, torch.tensor([0.2]), **variant).double()
        x = torch.rand(problem.y.shape, generator=torch.Generator().manual_seed(1)).double()
        torch.testing.assert_close(pipeline._value_by_strips(problem, x), problem.value(x))


def test_what_was_not_proven_in_time_is_proven_as_well_as_possible(monkeypatch):
    """Without kernels, with which every bound is as good as possible."""
    monkeypatch.setattr("mirrordescent.problems.tv.available", lambda: False)
    problem = inpainting(batch=2)
    how = plan_restoration("inpaint", iterations=5, tolerance=2e-5)
    short = replace(how, iterations=60)
    own = md.solve(problem, short.method, problem.start(fill=True), iterations=60)
    found = restore(problem, short)
    assert md.Status.BUDGET in found.statuses
    assert (found.lower >= own.lower).all()
    assert (found.lower <= md.certify(problem, 1e-7, cache=False).value).all()
    assert (found.lower > own.lower).any()
