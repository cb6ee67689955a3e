"""Inconsistency of a map, at points and over a box."""

from __future__ import annotations

import torch

from mirrordescent.domains import Simplex
from mirrordescent.mirrors import DenseICNN, Diagonal, Euclidean, LearnedPair, SimplexEntropy
from mirrordescent.theory.inverse_consistency import inconsistency, inconsistency_over_box


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair():
    return LearnedPair(
        *(DenseICNN(3, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
    )


def test_inconsistency_of_a_pair_in_both_directions():
    mirror = pair()
    points = [random(2, 3), random(4, 3, seed=1)]
    duals = [random(3, 3, seed=2)]
    found = inconsistency(mirror, points, duals)
    torch.testing.assert_close(found.primal, mirror.inconsistency(torch.cat(points), "l2"))
    torch.testing.assert_close(found.dual, mirror.dual_inconsistency(duals[0], "l2"))
    torch.testing.assert_close(found.relative_primal, found.primal / torch.cat(points).norm(dim=1))
    torch.testing.assert_close(found.relative_dual, found.dual / duals[0].norm(dim=1))


def test_exact_maps_are_consistent():
    found = inconsistency(Diagonal(3.0), [random(2, 3)])
    assert found.primal.max() < 1e-15
    assert found.dual.max() < 1e-14


def test_on_a_set_only_the_primal_inconsistency_vanishes():
    x = random(2, 3).softmax(-1)
    for mirror in (SimplexEntropy(), Euclidean(Simplex())):
        found = inconsistency(mirror, [x], [random(2, 3)])
        assert found.primal.max() < 1e-15
        assert found.dual.min() > 1e-3


def test_at_the_origin_the_relative_inconsistency_is_zero_if_the_absolute_is():
    assert inconsistency(Euclidean(), [torch.zeros(1, 2)]).relative_primal.item() == 0


def test_a_box_is_sampled_inside():
    seen = {}

    class Spy(Diagonal):
        def _to_dual(self, x):
            seen.setdefault("primal", []).append(x)
            return super()._to_dual(x)

        def _to_primal(self, y):
            seen.setdefault("dual", []).append(y)
            return 0.9 * super()._to_primal(y)

    like = {"w": torch.zeros(5, 4, dtype=torch.float64)}
    found = inconsistency_over_box(
        Spy(2.0), -1.0, 3.0, like, torch.Generator().manual_seed(0), count=3
    )
    assert found.primal.shape == found.dual.shape == (15,)
    drawn = torch.cat(seen["primal"][:3])
    images = torch.cat(seen["dual"])
    assert drawn.min() >= -1
    assert drawn.max() <= 3
    assert drawn.min() < -0.5
    assert drawn.max() > 2.5
    assert images.min() >= -2
    assert images.max() <= 6
    torch.testing.assert_close(found.relative_primal, torch.full_like(found.primal, 0.1))
    torch.testing.assert_close(found.relative_dual, torch.full_like(found.dual, 0.1))


def test_a_box_on_a_simplex():
    like = torch.zeros(2, 3, dtype=torch.float64)
    found = inconsistency_over_box(
        Euclidean(Simplex()), 0.0, 1.0, like, torch.Generator().manual_seed(0)
    )
    assert found.primal.max() < 1e-15
