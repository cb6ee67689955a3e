"""Accelerated steps in the spectral geometry of a learned prior."""

import math

import pytest
import torch

import mirrordescent as md
from mirrordescent.methods import RidgeMomentum, TangentBound
from mirrordescent.problems import (
    Blur,
    Composite,
    LearnedRidges,
    RidgePrior,
    RidgeProfile,
    RidgeTable,
    SquaredError,
    gaussian_kernel,
    prior_denoising,
    prior_restoration,
)
from mirrordescent.problems.filter_banks import bank_bound

DOUBLE = torch.float64


@pytest.fixture
def prior():
    generator = torch.Generator().manual_seed(0)
    filters = torch.randn(8, 2, 3, 3, generator=generator, dtype=DOUBLE)
    filters = filters - filters.mean((-2, -1), keepdim=True)
    filters = filters / math.sqrt(bank_bound(filters))
    levels = torch.tensor([0.1], dtype=DOUBLE)
    nodes = torch.tensor([0.2, 0.5, 1.5], dtype=DOUBLE)
    heights = torch.tensor([0.8, 1.0, 0.4], dtype=DOUBLE).expand(1, 8, 3).clone()
    rising = torch.tensor([0.8, 1.0, 1.2], dtype=DOUBLE).expand(1, 8, 3).clone()
    scales = torch.zeros(1, 8, dtype=DOUBLE)
    return RidgePrior(
        filters,
        RidgeTable(levels, scales, nodes, heights),
        RidgeTable(levels, scales, nodes, rising),
    )


def noisy():
    generator = torch.Generator().manual_seed(1)
    return torch.rand(2, 2, 14, 16, generator=generator, dtype=DOUBLE)


def test_without_a_share_it_is_nesterovs_method():
    problem = md.Quadratic(torch.tensor([1.0, 4.0], dtype=DOUBLE), torch.ones(1, 2, dtype=DOUBLE))
    method = RidgeMomentum(0.7, 0.4)
    state = method.init(torch.zeros(1, 2, dtype=DOUBLE), problem)
    u = x = torch.zeros(1, 2, dtype=DOUBLE)
    for _ in range(4):
        state = method.update(state, problem.grad(state.x))
        new = x - 0.7 / 4 * problem.grad(x)
        x = new + 0.4 * (new - u)
        u = new
    torch.testing.assert_close(state.x, x)


def test_the_geometry_inverts_the_hessian_of_a_periodic_quadratic(prior):
    """Far from the border, P is the inverse of I + sWᵀ diag(m) W for profiles of constant slope."""
    generator = torch.Generator().manual_seed(2)
    slopes = torch.rand(8, 1, generator=generator, dtype=DOUBLE)
    profile = RidgeProfile(torch.full((8, 1), 1e3, dtype=DOUBLE), 1e3 * slopes)
    flat = torch.zeros(1, 2, 40, 40, dtype=DOUBLE)
    problem = Composite(SquaredError(flat), [LearnedRidges(prior.filters, profile)])
    method = RidgeMomentum(1.0, 0.5, share=1.0)
    g = torch.zeros(1, 2, 40, 40, dtype=DOUBLE)
    g[..., 18:22, 18:22] = torch.randn(1, 2, 4, 4, generator=generator, dtype=DOUBLE)
    state = method.init(torch.zeros_like(g), problem)
    d = -method.update(state, g).iterate
    torch.testing.assert_close(problem.grad(d), g, rtol=0, atol=1e-5)


def test_steps_of_length_one_are_safe(prior):
    """P⁻¹ is at least the Hessian, so f falls by half of ⟨g, Pg⟩ from every point."""
    y = noisy()
    mask = torch.rand(2, 1, 14, 16, generator=torch.Generator().manual_seed(3)) > 0.3
    kernel = gaussian_kernel(0.8).double()
    inside = torch.zeros(2, 1, 14, 16, dtype=torch.bool)
    rows, columns = (side // 2 for side in kernel.shape)
    inside[..., rows:-rows, columns:-columns] = True
    method = RidgeMomentum(1.0, 0.5, share=1.0)  # the iterate does not depend on the momentum
    for problem in (
        prior_restoration(y, 0.1, prior, mask=mask, anchor=0.05),
        prior_restoration(y, 0.1, prior, operator=Blur(kernel), mask=inside, anchor=0.05),
    ):
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            x = y + 10.0 ** (seed % 4 - 3) * torch.randn(y.shape, generator=generator, dtype=DOUBLE)
            g = problem.grad(x)
            after = method.update(method.init(x, problem), g).iterate
            decrease = 0.5 * (g * (x - after)).sum((1, 2, 3))
            bound = problem.value(x) - decrease
            assert bool((problem.value(after) <= bound + 1e-12 * problem.value(x)).all())


@pytest.mark.parametrize("share", [0.0, 0.7])
def test_denoising_ends_with_a_proof(prior, share):
    problem = prior_denoising(noisy(), torch.tensor([0.05, 0.1], dtype=DOUBLE), prior)
    method = TangentBound(RidgeMomentum(0.4 if share else 1.0, 0.3, share=share), first=2)
    run = md.solve(problem, method, iterations=200, stop=md.gap(1e-5), check_every=1)
    minimum = md.solve(problem, md.methods.LBFGS(), iterations=200).best_value
    assert set(run.statuses) == {md.Status.CONVERGED}
    assert bool((run.lower <= minimum).all())
    torch.testing.assert_close(run.value, minimum, rtol=1e-4, atol=0)


def test_other_data_terms_have_a_geometry_too(prior):
    y = noisy()
    mask = torch.rand(2, 1, 14, 16, generator=torch.Generator().manual_seed(3)) > 0.3
    blur = Blur(gaussian_kernel(0.8).double())
    for problem in (
        prior_restoration(y, 0.1, prior, mask=mask, anchor=0.05),
        prior_restoration(y, 0.1, prior, operator=blur, anchor=0.05),
    ):
        method = TangentBound(RidgeMomentum(0.35, 0.6, share=1.0), first=5, every=5)
        run = md.solve(problem, method, iterations=400, stop=md.gap(1e-3), check_every=5)
        assert set(run.statuses) == {md.Status.CONVERGED}


def test_what_the_method_needs_is_said(prior):
    quadratic = md.Quadratic(torch.ones(2), torch.ones(1, 2))
    with pytest.raises(TypeError, match="use share=0"):
        RidgeMomentum(1.0, 0.3, share=1.0).init(torch.zeros(1, 2), quadratic)
    with pytest.raises(TypeError, match="from the start"):
        RidgeMomentum(1.0, 0.3).init(torch.zeros(1, 2))
    with pytest.raises(TypeError, match="does not state"):
        RidgeMomentum(1.0, 0.3).init(torch.zeros(1, 2), md.Function(lambda x: x.square().sum(-1)))
