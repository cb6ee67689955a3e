"""The shipped spectral methods: ahead of PDHG where they were learned, harmless where they were not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mirrordescent import PDHG, TVDenoising, TVInpainting, certify, data, solve, zoo
from mirrordescent.learn import DenoisingFamily, Pooled
from mirrordescent.methods import Safeguarded
from mirrordescent.zoo import recipes

SIDE = 12


def odd_problems():
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(2, 3, SIDE, SIDE, generator=generator)
    mask = torch.rand(SIDE, SIDE, generator=generator) >= 0.2
    one = torch.zeros(SIDE, SIDE).index_fill_(0, torch.tensor(5), 1.0)
    one[:, 1:] = 0
    constant = torch.full_like(image, 0.3)
    board = (torch.arange(SIDE)[:, None] + torch.arange(SIDE)) % 2 + 0.0 * image
    return {
        "constant": TVInpainting(constant, mask),
        "noise": TVInpainting(torch.randn(image.shape, generator=generator), mask),
        "one pixel known": TVInpainting(image, one),
        "small weight": TVInpainting(image, mask, 0.0015),
        "large weight": TVInpainting(image, mask, 15.0),
        "bytes": TVInpainting(255 * image, mask),
        "checkerboard": TVDenoising(board),
        "large weight, nothing missing": TVDenoising(image, 15.0),
        "one row": TVDenoising(image[..., :1, :].contiguous()),
        "one pixel": TVDenoising(image[..., :1, :1].contiguous()),
    }


@pytest.mark.parametrize("name", odd_problems())
@pytest.mark.parametrize("fill", [False, True])
def test_never_worse_than_the_start(name, fill):
    problem = odd_problems()[name]
    entry = "photo-inpaint-spectral" if problem.mask is not None else "ellipse-denoise-spectral"
    solution = solve(problem, Safeguarded(zoo.load(entry)), problem.start(fill=fill), iterations=400, check_every=10)
    assert solution.ok
    assert (solution.trace.values.diff(dim=0) <= 0).all()


def photographs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    clean = data.photographs("bundled", "test", 64)[::5][:3]
    return clean + 0.05 * torch.randn(clean.shape, generator=generator), torch.rand(64, 64, generator=generator) >= 0.2


@pytest.mark.parametrize(
    ("entry", "make", "fill"),
    [
        ("photo-inpaint-spectral", lambda y, mask: TVInpainting(mask * y, mask), True),
        ("photo-inpaint-spectral", lambda y, mask: TVInpainting(mask * y, mask), False),
        ("ellipse-denoise-spectral", lambda y, mask: TVDenoising(y), False),
    ],
    ids=["inpainting, filled", "inpainting", "denoising"],
)
def test_ahead_of_pdhg_at_equal_iterations(entry, make, fill):
    problem = make(*photographs())
    lower, x0, at = certify(problem, 1e-5).lower, problem.start(fill=fill), (5, 10, 20, 40)

    def gaps(method):
        values = solve(problem, method, x0, iterations=40, trace=at).trace.values
        return (values.double() - lower).mean(1)

    best = torch.stack([gaps(PDHG(ratio)) for ratio in (0.2, 0.4, 0.7, 1.0, 1.5, 2.0)]).amin(0)
    assert (gaps(zoo.load(entry)) < best / 2).all()


def test_they_work_in_double_precision():
    problem = TVDenoising(photographs()[0].double())
    solution = solve(problem, zoo.load("ellipse-denoise-spectral").double(), iterations=20)
    single = solve(TVDenoising(photographs()[0]), zoo.load("ellipse-denoise-spectral"), iterations=20)
    torch.testing.assert_close(single.value.double(), solution.value, rtol=1e-4, atol=1e-3)


def test_a_recipe_in_two_stages(tmp_path, monkeypatch):
    def small_noise(directory):
        """Noise."""
        pictures = list(torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(0)))
        return Pooled(DenoisingFamily(pictures, pictures, size=8), 4)

    recipe = replace(recipes.RECIPES["ellipse-denoise-spectral"], dataset=None, family=small_noise)
    monkeypatch.setitem(recipes.RECIPES, "tiny", recipe)
    changes = ["meta_steps=2", "batch=2", "validation_batch=2", "horizon=4", "curriculum=[]"]
    path = recipes.train("tiny", tmp_path / "runs", out=tmp_path, changes=changes, progress=False)
    card = zoo.card(path)
    assert (card["settings"]["meta_steps"], card["refinement"]["meta_steps"]) == (2, 2)
    assert card["best_refinement_step"] in range(3)
    assert card["parameters"] == 1 + 4 * 14
    assert zoo.load(path).method.t.counts[-1] == 200


def test_finer_schedules_are_the_same_to_begin_with():
    method = recipes.image_stencil(torch.Generator()).double()

    def sizes():
        return [method.method.t(k).item() for k in (1, 7, 20, 50, 100, 150)]

    before = sizes()
    assert {p.dtype for p in recipes.stencil_for_long(method).parameters()} == {torch.float64}
    assert sizes() == pytest.approx(before, rel=1e-5)
