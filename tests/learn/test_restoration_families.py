"""Families that damage pictures in every way, and what learning on them needs."""

import math

import pytest
import torch

from mirrordescent import AMD, mirrors
from mirrordescent.data.random_masks import SHAPES
from mirrordescent.learn import Draw, Objective, Pooled, Settings, Validation
from mirrordescent.learn.families import DeblurringFamily, RestorationFamily
from mirrordescent.learn.trainer import validation_score
from mirrordescent.problems import TVDenoising

PICTURES = [
    torch.rand(3, 40, 50, generator=torch.Generator().manual_seed(seed)) for seed in range(3)
]


@pytest.mark.parametrize("shape", SHAPES)
def test_holes_leave_something_and_differ_from_seed_to_seed(shape):
    masks = [SHAPES[shape](32, torch.Generator().manual_seed(seed)) for seed in range(12)]
    for mask in masks:
        assert mask.shape == (32, 32)
        assert set(mask.unique().tolist()) <= {0.0, 1.0}
    assert all(float(mask.mean()) > 0 for mask in masks)
    assert min(float(mask.mean()) for mask in masks) < 1  # something is missing
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) > 6
    again = SHAPES[shape](32, torch.Generator().manual_seed(3))
    assert torch.equal(again, masks[3])


def test_restoration_problems_are_functions_of_their_seeds_and_cover_the_range():
    family = RestorationFamily(PICTURES, PICTURES, size=24, weights=(1e-3, 10.0))
    drawn = family.draw(torch.arange(60))
    weights = drawn.problem.weight
    assert 1e-3 <= float(weights.min()) < 1e-2
    assert 1 < float(weights.max()) <= 10.0
    shares = drawn.problem.mask.flatten(1).mean(1)
    assert bool((shares == 1).any())  # nothing missing
    assert float(shares.min()) < 0.5
    black = (drawn.x0 == drawn.problem.start()).flatten(1).all(1)
    assert bool(black.any())
    assert bool((~black).any())
    alone = family.draw(torch.tensor([7]))
    assert torch.equal(alone.problem.y[0], drawn.problem.y[7])
    assert torch.equal(alone.x0[0], drawn.x0[7])
    assert family.draw(torch.arange(2)).problem.isotropic is False
    assert (
        RestorationFamily(PICTURES, PICTURES, size=24, isotropic=True)
        .draw(torch.arange(2))
        .problem.isotropic
    )


def test_deblurring_problems_have_a_blur_each():
    family = DeblurringFamily(PICTURES, PICTURES, size=24, noise=0.0)
    drawn = family.draw(torch.arange(6))
    kernel = drawn.problem.operator.kernel
    assert kernel.shape == (6, family.SIDE, family.SIDE)
    torch.testing.assert_close(kernel.sum((1, 2)), torch.ones(6))
    assert not torch.equal(kernel[0], kernel[1])
    assert torch.equal(family.draw(torch.tensor([4])).problem.y[0], drawn.problem.y[4])
    assert bool((drawn.problem.features()["passed"] < -0.1).all())


def test_a_pool_takes_other_references():
    family = RestorationFamily(PICTURES, PICTURES, size=16)
    pool = Pooled(family, 5, reference=lambda draw: draw.problem.weight + 1)
    drawn = pool.draw(torch.tensor([0, 3]))
    assert torch.equal(drawn.lower, drawn.problem.weight + 1)
    assert torch.equal(pool.validation(2).lower, family.validation(2).problem.weight + 1)


def drawn_with_gaps():
    problem = TVDenoising(torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)))
    x0 = problem.start()
    return Draw(problem, x0, problem.value(x0) - torch.tensor([1.0, 100.0]))


def test_gaps_below_the_floor_count_as_much_as_it():
    # which does not move
    draw = drawn_with_gaps()
    method = AMD(mirrors.Euclidean(), 1e-9)
    plain, floored = (
        Objective("log_gap", floor=floor).losses(method, draw, 1, 0)[0] for floor in (0.0, 10.0)
    )
    torch.testing.assert_close(plain, torch.tensor([0.0, math.log(100.0)]), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        floored, torch.tensor([math.log(10.0), math.log(1000.0)]), atol=1e-4, rtol=0
    )


def test_a_geometric_mean_over_problems():
    draw = drawn_with_gaps()
    method = AMD(mirrors.Euclidean(), 0.05)
    scores = {}
    for geometric in (False, True):
        validation = Validation(horizons=(1.0,), geometric=geometric)
        scores[geometric] = validation_score(
            method, draw, Settings(horizon=4, validation=validation)
        )
    state = method.init(draw.x0)
    for _ in range(4):
        state = method.update(state, draw.problem.grad(state.x))
    gaps = (draw.problem.value(state.x) - draw.lower) / (draw.problem.value(draw.x0) - draw.lower)
    assert scores[False] == pytest.approx(float(gaps.mean()), rel=1e-4)
    assert scores[True] == pytest.approx(float(gaps.log().mean().exp()), rel=1e-4)
    assert scores[True] < scores[False]
