"""Poisson tomography: value, gradient, proximal operators, and a valid and tight bound."""

from __future__ import annotations

import math

import pytest
import torch

from mirrordescent import PDHG, certify, solve
from mirrordescent.data import ellipse_phantoms
from mirrordescent.problems import ParallelBeam, PoissonTomography
from mirrordescent.problems.composite import DATA
from mirrordescent.problems.fingerprint import fingerprint

DOUBLE = torch.float64


def tomography(weight=2.0, batch=2, terms=3, size=12, angles=7):
    generator = torch.Generator().manual_seed(3)
    beam = ParallelBeam(size, angles, detectors=17)
    expected = 30 * beam.A(ellipse_phantoms(batch, size, generator=generator).to(DOUBLE)) + 1.5
    return PoissonTomography(
        torch.poisson(expected, generator=generator), beam, 30.0, 1.5, weight, terms
    )


def positive(problem, seed=0):
    shape = (problem.batch, *problem.sample_shape)
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE) + 0.01


both = pytest.mark.parametrize(
    "problem", [tomography(), tomography(weight=0.0)], ids=["smooth", "likelihood"]
)


@both
def test_the_value_is_a_likelihood_ratio(problem):
    x = positive(problem)
    likelihood = torch.distributions.Poisson(problem.expected(x)).log_prob(problem.y).sum((1, 2, 3))
    saturated = (
        torch.distributions.Poisson(problem.y.clamp(min=1e-300)).log_prob(problem.y).sum((1, 2, 3))
    )
    rough = sum(x.diff(dim=d).square().sum((1, 2, 3)) for d in (-2, -1))
    torch.testing.assert_close(
        problem.value(x), saturated - likelihood + problem.weight / 2 * rough
    )


@both
def test_the_gradient_is_that_of_the_value(problem):
    x = positive(problem).requires_grad_()
    (expected,) = torch.autograd.grad(problem.value(x).sum(), x)
    torch.testing.assert_close(problem.grad(x.detach()), expected)
    direction = positive(problem, 5)
    (curvature,) = torch.autograd.grad((problem.grad(x) * direction).sum(), x)
    moved = (
        problem.grad(x.detach() + 1e-6 * direction) - problem.grad(x.detach() - 1e-6 * direction)
    ) / 2e-6
    torch.testing.assert_close(curvature, moved, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("angles", [6, 7])
def test_the_mean_over_groups_of_angles_is_the_gradient(angles):
    problem = tomography(angles=angles)
    x = positive(problem)
    single = torch.stack([problem.grad_of_terms(x, torch.tensor([i])) for i in range(3)])
    torch.testing.assert_close(single.mean(0), problem.grad(x))
    torch.testing.assert_close(
        problem.grad_of_terms(x, torch.tensor([2, 0])), single[[0, 2]].mean(0)
    )
    assert not torch.allclose(single[0], single[1])


def test_the_start_explains_the_number_of_counts():
    problem = tomography()
    x = problem.start()
    torch.testing.assert_close(problem.expected(x).sum((1, 2, 3)), problem.y.sum((1, 2, 3)))
    assert bool((x == x[..., :1, :1]).all())
    dark = PoissonTomography(torch.zeros_like(problem.y), problem.beam)
    assert bool((dark.start() > 0).all())


@pytest.mark.parametrize("sigma", [0.01, 0.7, 20.0])
def test_proximal_points_minimise(sigma):
    """The convex function −y log(1 − u') − bu' + (u' − u)²/(2σ) is stationary at the prox.

    Where y = 0, the minimiser may be u' = 1.
    """
    problem = tomography()
    problem.y[:, :, :2] = 0
    u = 3 * torch.randn(problem.y.shape, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    found = problem.prox_data_conjugate(u, sigma)
    slope = problem.y / (1 - found) - problem.background + (found - u) / sigma
    inside = found < 1
    assert bool((slope[inside].abs() < 1e-6 * (1 + 1 / sigma)).all())
    assert bool(
        (problem.y[~inside] == 0).all()
        and ((1 - u) / sigma <= problem.background + 1e-9)[~inside].all()
    )
    torch.testing.assert_close(
        problem.prox_data_conjugate(u[:, :, 1::3], sigma, 1), found[:, :, 1::3]
    )


@both
def test_the_saddle_point_is_the_problem(problem):
    """F(x) + G(Kx) = f(x), where G(Kx) = max_u ⟨Kx, u⟩ − G*(u) is attained at u = ∇G(Kx)."""
    x = positive(problem)
    Kx = problem.K(x)
    norm = problem.K_norm
    u = {
        name: torch.randn(v.shape, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
        for name, v in Kx.items()
    }
    forward = sum(float((Kx[name] * u[name]).sum()) for name in u)
    assert forward == pytest.approx(float((x * problem.K_adjoint(u)).sum()))
    length = math.sqrt(sum(float(v.square().sum()) for v in Kx.values()))
    assert length <= norm * float(x.norm())
    # Moreau: prox of σG* at σKx + u is u exactly where u is a subgradient of G at Kx.
    slopes = {DATA: 1 - problem.y / problem.expected(x)}
    slopes |= {
        name: problem.weight / problem.block_scales[0] ** 2 * v
        for name, v in Kx.items()
        if name != DATA
    }
    fixed = problem.prox_G_conjugate({name: slopes[name] + 0.3 * Kx[name] for name in Kx}, 0.3)
    for name in Kx:
        torch.testing.assert_close(fixed[name], slopes[name])


@both
def test_any_dual_point_bounds_from_below(problem):
    """No bound is above the value of any image, including the best of a long run."""
    best = solve(problem, PDHG(0.3), iterations=600)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        scale = 10.0 ** (seed % 4 - 2)
        u = {
            name: scale * torch.randn(v.shape, generator=generator, dtype=DOUBLE)
            for name, v in problem.K(best.x).items()
        }
        assert bool((problem.lower_bound(u) <= best.best_value).all())
        assert bool((problem.bound_at(positive(problem, seed)) <= best.best_value).all())
    assert bool((best.lower <= best.best_value + 1e-9).all())


def test_the_bound_is_tight_and_the_certificate_optimal():
    problem = tomography()
    reference = certify(problem, 1e-9)
    assert bool((reference.relative_gap <= 1e-9).all())
    assert bool((reference.value - problem.bound_at(reference.x) < 1e-2 * reference.value).all())
    slope = problem.grad(reference.x)
    assert bool((slope > -1e-2).all())
    assert bool((slope[reference.x > 1e-3].abs() < 1e-2).all())


def test_single_precision_bounds_what_double_precision_finds():
    problem = tomography()
    lower = certify(problem).value
    low = PoissonTomography(problem.y.float(), problem.beam, 30.0, 1.5, 2.0, 3)
    found = solve(low, PDHG(0.3), iterations=500)
    assert bool((found.lower.double() <= lower * (1 + 1e-5)).all())
    assert torch.allclose(found.lower.double(), lower, rtol=1e-3)


def test_the_content_has_a_fingerprint():
    assert fingerprint(tomography(), "x") == fingerprint(tomography(), "x")
    assert fingerprint(tomography(), "x") != fingerprint(tomography(weight=3.0), "x")
    each = tomography(terms=7)  # groups of one angle, whose number is a view with a stride
    assert fingerprint(each, "x") is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exposure": 0.0}, "exposure must be positive"),
        ({"background": -1.0}, "background must be positive"),
        ({"weight": -1.0}, "weight must be finite"),
        ({"terms": 8}, "terms must be between 1"),
        ({"y": -torch.ones(1, 1, 7, 17)}, "counts ≥ 0"),
        ({"y": torch.ones(1, 2, 7, 17)}, "shape"),
        ({"beam": ParallelBeam(12, 7, 17, reach=0.05)}, "must be on a ray"),
    ],
)
def test_what_makes_no_sense_is_refused(change, message):
    arguments = {"y": torch.ones(1, 1, 7, 17), "beam": ParallelBeam(12, 7, 17)} | change
    with pytest.raises(ValueError, match=message):
        PoissonTomography(**arguments)
