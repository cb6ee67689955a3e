"""Dual-space preconditioning held against its theorem."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import LogisticRegression, Quadratic, certify, solve
from mirrordescent.methods import GD, Preconditioned
from mirrordescent.mirrors import Euclidean, HyperbolicEntropy, PNorm, SoftSign
from mirrordescent.theory import dual_descent, dual_smoothness


def test_the_constant_of_the_euclidean_map_is_the_largest_eigenvalue():
    problem = Quadratic(torch.tensor([0.5, 3.0]).double(), torch.zeros(1, 2).double())
    axes = [torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double(), torch.zeros(1, 2).double()]
    assert dual_smoothness(problem, Euclidean(), axes).estimate == pytest.approx(3.0)


def test_the_constant_of_a_power_on_a_quadratic_is_the_curvature_of_the_composition():
    """For f = a x²/2 and ψ* = |y|^3/3, D_ψ*(ax, ay)/D_f(y, x) at y → x is ψ*″(ax)·a = 2a²|x|."""
    problem = Quadratic(torch.tensor([2.0]).double(), torch.zeros(1, 1).double())
    points = [torch.tensor([[1.0]]).double(), torch.tensor([[1.0 + 1e-4]]).double()]
    assert dual_smoothness(problem, PNorm(1.5), points).estimate == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize("mirror", [Euclidean(), SoftSign(0.3), HyperbolicEntropy(1.0), PNorm(1.7)], ids=repr)
def test_it_falls_and_stays_below_the_bound(mirror):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    labels = (A[:, 0] + 0.5 * torch.randn(30, generator=generator, dtype=torch.float64) > 0).double()
    problem = LogisticRegression(A, 2 * labels - 1, ridge=0.1)
    x0 = torch.ones(1, 4).double()
    least = solve(problem, GD(0.5), x0, iterations=3000).best_value
    points = [x0, torch.zeros(1, 4).double(), *(torch.randn(1, 4, generator=generator).double() for _ in range(4))]
    t = 1 / dual_smoothness(problem, mirror, points).value
    found = dual_descent(problem, Preconditioned(mirror, t), x0, 60, least)
    assert found.falls
    assert found.below
    assert found.measured[-1] < 0.5 * found.measured[0]


def test_steps_that_are_too_long_do_not_fall():
    problem = Quadratic(torch.tensor([0.5, 3.0]).double(), torch.zeros(1, 2).double())
    x0 = torch.ones(1, 2).double()
    assert not dual_descent(problem, Preconditioned(Euclidean(), 0.8), x0, 10, 0.0).falls
    assert dual_descent(problem, Preconditioned(Euclidean(), 0.33), x0, 10, certify(problem).value).falls


def test_what_the_theorem_does_not_speak_of_is_refused():
    problem = Quadratic(torch.ones(2), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="no momentum"):
        dual_descent(problem, Preconditioned(Euclidean(), 0.1, momentum=0.9), torch.ones(1, 2), 3, 0.0)
