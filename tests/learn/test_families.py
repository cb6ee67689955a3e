"""Families: a problem is a function of its seed, and held-out problems are not drawn."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent import certify
from mirrordescent.automatic.family_check import check_family
from mirrordescent.learn import Draw, InpaintingFamily, Pooled, ProblemFamily
from mirrordescent.learn.families import DenoisingFamily, SVMFamily, draw_seeds
from mirrordescent.recipes.task_families import TomographyFamily


def pictures(seed, count=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(3, 20 + i, 25, generator=generator) for i in range(count)]


def families():
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(30, 4, generator=generator)
    labels = torch.randn(30, generator=generator).sign()
    return {
        "inpainting": InpaintingFamily(
            pictures(0), pictures(1), size=12, missing=0.3, noise=0.1, weight=0.2
        ),
        "filled": InpaintingFamily(pictures(0), pictures(1), size=12, fill=True),
        "alternate": InpaintingFamily(pictures(0), pictures(1), size=12, fill="alternate"),
        "denoising": DenoisingFamily(pictures(0), pictures(1), size=12),
        "svm": SVMFamily(features, labels),
        "pooled": Pooled(DenoisingFamily(pictures(0), pictures(1), size=12), size=5),
    }


@pytest.mark.parametrize("name", families())
def test_a_problem_is_a_function_of_its_seed(name):
    family = families()[name]
    seeds = draw_seeds(4, torch.Generator().manual_seed(3))
    together = family.draw(seeds)
    apart = [family.draw(seed.unsqueeze(0)) for seed in seeds]
    assert torch.equal(together.x0, torch.cat([draw.x0 for draw in apart]))
    values = torch.cat([draw.problem.value(draw.x0) for draw in apart])
    torch.testing.assert_close(together.problem.value(together.x0), values)
    again = family.draw(seeds)
    assert torch.equal(again.x0, together.x0)


@pytest.mark.parametrize("name", families())
def test_validation_is_fixed_and_not_drawn(name):
    family = families()[name]
    first = family.validation(2)
    longer = family.validation(4)
    assert torch.equal(first.x0, longer.x0[:2])
    drawn = family.draw(torch.arange(50)).x0.flatten(1)
    assert torch.cdist(first.x0.flatten(1), drawn).min() > 1e-3


def test_the_damage_is_as_stated():
    family = families()["inpainting"]
    problem = family.draw(torch.arange(200)).problem
    assert float(1 - problem.mask.mean()) == pytest.approx(0.3, abs=0.02)
    holes = problem.y[(problem.mask == 0).expand_as(problem.y)]
    assert float(holes.std()) == pytest.approx(0.1, abs=0.005)
    assert problem.weight == 0.2


def test_starts_alternate_by_seed():
    draw = families()["alternate"].draw(torch.tensor([4, 7, 9, 2]))
    filled = draw.problem.start(fill=True)
    black = draw.problem.start()
    assert not torch.equal(filled, black)
    assert torch.equal(draw.x0, torch.stack([filled[0], black[1], black[2], filled[3]]))


def test_a_pool_knows_its_lower_bounds():
    family = families()["pooled"]
    draw = family.draw(torch.tensor([0, 7, 5]))
    assert torch.equal(draw.x0[0], draw.x0[2])  # 0 and 5 are the same problem of a pool of five
    reference = certify(draw.problem)
    assert (draw.lower <= reference.value + 1e-4).all()
    torch.testing.assert_close(draw.lower.double(), reference.lower, rtol=1e-2, atol=1e-2)
    assert family.validation(2).lower.shape == (2,)


class OfFunctions(ProblemFamily):
    """‖Ax − b‖² as a function that keeps its data to itself, in single precision; points may be
    dicts.
    """

    A = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]])

    def __init__(self, dicts=False):
        self.dicts = dicts

    def draw(self, seeds):
        b = torch.stack(
            [
                torch.randn(3, generator=torch.Generator().manual_seed(seed))
                for seed in seeds.tolist()
            ]
        )
        x0 = torch.zeros(len(seeds), 2)

        def value(x):
            return (x @ self.A.T - b).square().sum(-1)

        if not self.dicts:
            return Draw(md.Function(value), x0)
        return Draw(
            md.Function(lambda x: value(torch.cat([x["u"], x["v"]], -1))),
            {"u": x0[:, :1], "v": x0[:, 1:]},
        )


@pytest.mark.parametrize("dicts", [False, True], ids=["tensors", "dicts"])
def test_a_pool_of_functions_estimates_their_minima(dicts):
    """Against least squares; nothing of a function is proven."""
    family = OfFunctions(dicts)
    pool = Pooled(family, size=5, seed=3)
    found = pool.draw(torch.arange(5)).lower
    least = []
    for seed in pool.seeds.tolist():
        b = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        x = torch.linalg.lstsq(family.A, b[:, None]).solution[:, 0]
        least.append((family.A @ x - b).square().sum())
    assert not pool.proven
    torch.testing.assert_close(found, torch.stack(least), atol=1e-5, rtol=1e-4)
    check_family(family.draw(torch.arange(3)))


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="missing must be a share"):
        InpaintingFamily(pictures(0), pictures(1), missing=1.0)
    with pytest.raises(ValueError, match="must be at least 1"):
        Pooled(families()["denoising"], size=0)
    with pytest.raises(ValueError, match="too small for crops"):
        InpaintingFamily(pictures(0), pictures(1), size=64).draw(torch.arange(1))


def test_tomography_draws_counts_of_phantoms():
    family = TomographyFamily(16, 6, terms=3)
    seeds = torch.tensor([5, 9])
    phantoms, problem = family.simulate(seeds)
    assert torch.equal(problem.y, family.draw(seeds).problem.y)
    assert torch.equal(problem.y[1:], family.draw(seeds[1:]).problem.y)
    assert bool((problem.y == problem.y.round()).all())
    expected = problem.expected(phantoms)
    assert float((problem.y - expected).square().sum() / expected.sum()) == pytest.approx(
        1, abs=0.15
    )  # Poisson
    many = family.draw(torch.arange(60)).problem
    assert float(many.y.mean()) - many.background == pytest.approx(45, rel=0.1)
    assert not torch.equal(family.validation(2).problem.y, problem.y)
