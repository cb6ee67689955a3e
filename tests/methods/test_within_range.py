"""A learned method is used in the range of its features, and the fallback outside of it."""

import pytest
import torch

import mirrordescent as md
from mirrordescent.methods import OutOfRange, WithinRange
from mirrordescent.methods.within_range import feature_ranges, problem_features


def bowls(scales):
    A = torch.stack([scale * torch.diag(torch.tensor([1.0, 4.0])) for scale in scales])
    return md.Quadratic(A, torch.ones(len(scales), 2))


def test_features_are_the_gradient_and_the_curvature_along_it():
    problem = bowls([1.0, 9.0])
    found = problem_features(problem, problem.start())
    g = torch.tensor([1.0, 4.0])
    curvature = (g * torch.tensor([1.0, 4.0]) * g).sum() / g.square().sum()
    torch.testing.assert_close(
        found["curvature"].float(), (curvature * torch.tensor([1.0, 9.0])).log(), rtol=1e-2, atol=0
    )
    torch.testing.assert_close(
        found["steepness"].float(), (g.norm() * torch.tensor([1.0, 9.0])).log()
    )


def test_data_scaled_by_100_use_the_fallback_and_say_so():
    known = bowls([1.0, 1.5, 2.0])
    method = WithinRange(md.GD(0.1), md.LBFGS(), feature_ranges(known, known.start()))
    inside = md.solve(known, method, iterations=50)
    torch.testing.assert_close(inside.x, md.solve(known, md.GD(0.1), iterations=50).x)
    mixed = bowls([1.0, 100.0])
    assert not md.solve(mixed, md.GD(0.1), iterations=50).ok, "the steps are too long"
    with pytest.warns(OutOfRange, match=r"1 of 2 problems differ.*solved by LBFGS"):
        solution = md.solve(mixed, method, iterations=50)
    assert solution.ok
    assert float(solution.value.max()) < 1e-4
    torch.testing.assert_close(solution.x[:1], md.solve(bowls([1.0]), md.GD(0.1), iterations=50).x)
