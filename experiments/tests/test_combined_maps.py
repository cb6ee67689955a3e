"""Directions combined with second moments, against their formulas."""

from __future__ import annotations

import torch
from torch import nn

from mirrordescent.methods import AdaptivePreconditioned, Preconditioned
from mirrordescent.mirrors import spectral_by_kind
from mirrordescent.recipes.architectures import initialised, mlp
from mirrordescent.recipes.training_tasks import optimiser_of
from mirrordescent.schedules import OverRun
from mirrordescent_experiments.combined_maps import (
    Combined,
    CombinedOptimiser,
    Rows,
    TwoSides,
    without_second_moments,
)


class Same(Combined):
    def direction(self, d, v, g):
        return d


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_without_a_combination_steps_are_those_of_the_method():
    method = Preconditioned(
        spectral_by_kind(), OverRun(1), 0.9, normalised=True, decay=0.1
    ).requires_grad_(False)
    ours = initialised(mlp, 0).double()
    theirs = initialised(mlp, 0).double()
    combined = CombinedOptimiser(ours, method, 20, 0.01, lambda: Same(0.0))
    pairs = [(ours, combined), (theirs, optimiser_of(method, theirs, 20, 0.01))]
    images = numbers(32, 28, 28)
    labels = torch.arange(32) % 10
    for model, optimiser in pairs:
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-9)


def test_rows_are_divided_by_their_own_size():
    d = numbers(4, 6) * torch.tensor([1.0, 10.0, 100.0, 5.0])[:, None]
    new = Rows(0.9)(d, d, d)
    assert torch.allclose(new.norm(), d.norm())
    alike = new.square().mean(1)
    assert torch.allclose(alike, alike.mean().expand_as(alike), rtol=1e-3)


def test_moments_are_running_means():
    made = Rows(0.75)
    first = numbers(3, 5)
    second = numbers(3, 5, seed=1)
    made(first, first, first)
    new = made(second, second, second)
    n = 0.75 * 0.25 * first.square().mean(1) + 0.25 * second.square().mean(1)
    wanted = second / n.sqrt()[:, None]
    assert torch.allclose(new, wanted * second.norm() / wanted.norm())


def test_one_gradient_with_both_sides_is_its_polar_factor():
    g = numbers(5, 5)
    U, _, V = torch.linalg.svd(g)
    new = TwoSides(0.9)(g, g, g)  # (GGᵀ)^−¼ G (GᵀG)^−¼ = UVᵀ, but for the damping
    wanted = U @ V
    assert float((new / new.norm() - wanted / wanted.norm()).norm()) < 0.02


def test_without_second_moments_everything_else_is_as_it_was():
    adaptive = AdaptivePreconditioned(
        spectral_by_kind(), OverRun(7), 0.8, 0.9, lookahead=False, decay=0.1
    )
    plain = without_second_moments(adaptive)
    assert type(plain) is Preconditioned
    assert plain.normalised
    assert plain.mirror is adaptive.mirror
    assert plain.t is adaptive.t
    assert (plain.momentum, plain.lookahead, plain.decay) == (0.8, False, 0.1)
