"""Dual-space preconditioning held against its theorem."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import LogisticRegression, Quadratic, certify, solve
from mirrordescent.methods import GD, Preconditioned
from mirrordescent.mirrors import Diagonal, Euclidean, HyperbolicEntropy, PNorm, SoftSign
from mirrordescent.theory.dual_preconditioning import DualDescent, dual_descent, dual_smoothness


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_the_constant_of_the_euclidean_map_is_the_largest_eigenvalue():
    problem = Quadratic(torch.tensor([0.5, 3.0]).double(), torch.zeros(1, 2).double())
    axes = [
        torch.tensor([[1.0, 0.0]]).double(),
        torch.tensor([[0.0, 1.0]]).double(),
        torch.zeros(1, 2).double(),
    ]
    assert dual_smoothness(problem, Euclidean(), axes).estimate == pytest.approx(3.0)


def test_the_constant_of_a_power_on_a_quadratic_is_the_curvature_of_the_composition():
    """For f = a x²/2 and ψ* = |y|^3/3, D_ψ*(ax, ay)/D_f(y, x) at y → x is ψ*″(ax)·a = 2a²|x|."""
    problem = Quadratic(torch.tensor([2.0]).double(), torch.zeros(1, 1).double())
    points = [torch.tensor([[1.0]]).double(), torch.tensor([[1.0 + 1e-4]]).double()]
    assert dual_smoothness(problem, PNorm(1.5), points).estimate == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize(
    "mirror", [Euclidean(), SoftSign(0.3), HyperbolicEntropy(1.0), PNorm(1.7)], ids=repr
)
def test_it_falls_and_stays_below_the_bound(mirror):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    labels = (
        A[:, 0] + 0.5 * torch.randn(30, generator=generator, dtype=torch.float64) > 0
    ).double()
    problem = LogisticRegression(A, 2 * labels - 1, ridge=0.1)
    x0 = torch.ones(1, 4).double()
    least = solve(problem, GD(0.5), x0, iterations=3000).best_value
    points = [
        x0,
        torch.zeros(1, 4).double(),
        *(torch.randn(1, 4, generator=generator).double() for _ in range(4)),
    ]
    t = 1 / dual_smoothness(problem, mirror, points).value
    found = dual_descent(problem, Preconditioned(mirror, t), x0, 60, least)
    assert found.non_increasing
    assert found.below_bound
    assert found.measured[-1] < 0.5 * found.measured[0]


def test_steps_that_are_too_long_do_not_fall():
    problem = Quadratic(torch.tensor([0.5, 3.0]).double(), torch.zeros(1, 2).double())
    x0 = torch.ones(1, 2).double()
    assert not dual_descent(problem, Preconditioned(Euclidean(), 0.8), x0, 10, 0.0).non_increasing
    assert dual_descent(
        problem, Preconditioned(Euclidean(), 0.33), x0, 10, certify(problem).value
    ).non_increasing


def test_what_the_theorem_does_not_speak_of_is_refused():
    problem = Quadratic(torch.ones(2), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="no momentum"):
        dual_descent(
            problem, Preconditioned(Euclidean(), 0.1, momentum=0.9), torch.ones(1, 2), 3, 0.0
        )


def test_the_constant_of_a_diagonal_map_by_hand():
    """f = Σ ax²/2 and ψ* = Σ y²/2d: D_ψ*(∇f(x), ∇f(y))/D_f(y, x) = a/d along each axis."""
    points = [double([1.0, 0.0]), double([0.0, 1.0]), double([0.0, 0.0])]
    problem = Quadratic(double(2.0, 3.0), double([0.0, 0.0]))
    found = dual_smoothness(problem, Diagonal(double(0.5, 6.0)), points)
    assert (found.estimate, found.safety, found.source) == (pytest.approx(4.0), 1.25, "sampled")
    assert dual_smoothness(problem, Diagonal(double(6.0, 0.5)), points).estimate == pytest.approx(
        6.0
    )
    # D_ψ* with ψ* = Σ|y|³/3 from 0 to p: |p|³/3, or 2|p|³/3 the other way; D_f = p²/2a.
    cubes = dual_smoothness(
        Quadratic(double(2.0), double([0.0])), PNorm(1.5), [double([1.0]), double([0.0])]
    )
    assert cubes.estimate == pytest.approx((2 * 8 / 3) / 1.0)


def test_a_run_of_dual_descent_by_hand():
    """x⁺ = (1 − ta/d)x, with ψ*(∇f(x)) = Σ a²x²/2d and the bound (f(x₀) − f*)/(tk)."""
    a = double(2.0, 3.0)
    d = double(4.0, 6.0)
    t = 0.5
    problem = Quadratic(a, double([0.0, 0.0]))
    x = double([1.0, -2.0])
    found = dual_descent(problem, Preconditioned(Diagonal(d), t), x, 4, -0.5)
    for k in range(5):
        torch.testing.assert_close(found.measured[k], (a**2 * x**2 / (2 * d)).sum(1))
        if k:
            torch.testing.assert_close(found.bound[k - 1], double((1.0 + 6.0 + 0.5) / (t * k)))
        x = (1 - t * a / d) * x
    for options in ({"momentum": 0.5}, {"decay": 0.1}, {"normalised": True}):
        with pytest.raises(ValueError, match="no momentum, no decay, no normalised"):
            dual_descent(problem, Preconditioned(Diagonal(d), t, **options), x, 2, 0.0)


def test_what_counts_as_falling_and_as_below():
    eps = torch.finfo(torch.float64).eps

    def descent(measured, bound):
        return DualDescent(double(*([m] for m in measured)), double(*([b] for b in bound)))

    assert descent([4.0, 1.0, 1.0 + 3.5e3 * eps], [9.0, 9.0]).non_increasing
    assert not descent([4.0, 1.0, 1.0 + 5e3 * eps], [9.0, 9.0]).non_increasing
    assert descent([9.0, 1.0, 1.0], [1.0 - 0.8e-6, 1.0]).below_bound, "the start is not bounded"
    assert not descent([9.0, 1.0, 1.0], [1.0, 1.0 - 1.3e-6]).below_bound
    assert descent([9.0, 0.9e-12], [0.0]).below_bound
    assert not descent([9.0, 1.3e-12], [0.0]).below_bound
