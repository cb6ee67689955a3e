"""Expectation maximisation and SPDHG: monotone, optimal in the end, and what they claim per
pass.
"""

from __future__ import annotations

import pytest
import torch

from mirrordescent import Quadratic, certify, solve
from mirrordescent.data import ellipse_phantoms
from mirrordescent.oracles import spread_out
from mirrordescent.problems import ParallelBeam, PoissonTomography
from mirrordescent_experiments.emission import MLEM, OSEM, SPDHG


def tomography(weight):
    generator = torch.Generator().manual_seed(1)
    beam = ParallelBeam(10, 12, detectors=15)
    expected = 60 * beam.A(ellipse_phantoms(2, 10, generator=generator).double()) + 1.0
    return PoissonTomography(
        torch.poisson(expected, generator=generator), beam, 60.0, 1.0, weight, terms=4
    )


@pytest.fixture(params=[0.0, 2.0], ids=["likelihood", "smooth"])
def problem(request):
    return tomography(request.param)


def test_expectation_maximisation_descends_to_a_kkt_point(problem):
    solution = solve(problem, MLEM(), iterations=2500, check_every=1)
    values = solution.trace.values
    assert bool((values[1:] <= values[:-1] + 1e-9 * values[0]).all())
    slope = problem.grad(solution.x)
    x = solution.x
    assert bool((slope > -0.3).all())
    assert bool((x * slope).abs().max() < 2e-2)


def test_without_roughness_a_step_multiplies():
    problem = tomography(0.0)
    x = problem.start()
    back = problem.exposure * problem.beam.A_adjoint(problem.y / problem.expected(x))
    expected = x * back / problem.sensitivity
    state = MLEM().step(problem, MLEM().init(x), None)
    torch.testing.assert_close(state.x, expected)
    # The same as x − (x/s)∇f.
    torch.testing.assert_close(state.x, x - x / problem.sensitivity * problem.grad(x))


def test_the_step_minimises_the_majorant(problem):
    """It touches f at x, lies above it at other points, and is stationary at the next iterate."""
    x = (
        torch.rand(2, 1, 10, 10, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        + 0.1
    )
    explained = problem.sensitivity * x * problem.multiplier(x)

    def majorant(z):
        data = problem.sensitivity * (z - x) - explained * (z / x).log()
        rough = (
            problem.roughness_grad(x) * (z - x) + problem.roughness_curvature / 2 * (z - x).square()
        )
        return problem.value(x) + (data + rough).sum((1, 2, 3))

    following = MLEM().step(problem, MLEM().init(x), None).x.requires_grad_()
    (slope,) = torch.autograd.grad(majorant(following).sum(), following)
    assert float(slope.abs().max()) < 1e-8
    for factor in (0.3, 0.9, 1.1, 2.0):
        z = x * factor ** torch.randn(
            x.shape, generator=torch.Generator().manual_seed(5), dtype=x.dtype
        )
        assert bool((majorant(z) >= problem.value(z) - 1e-9).all())


def test_all_agree_with_the_certified_optimum():
    problem = tomography(2.0)
    reference = certify(problem, 1e-8)
    generator = torch.Generator().manual_seed(0)
    for method, tolerance in ((MLEM(), 1e-4), (SPDHG(1.0), 1e-5)):
        solution = solve(problem, method, iterations=1500, generator=generator)
        gap = (solution.value - reference.lower) / (reference.start_value - reference.lower)
        assert bool((gap < tolerance).all()), type(method)


def test_a_pass_of_ordered_subsets_is_worth_several_steps(problem):
    lower = certify(problem, 1e-4).lower if problem.weight else torch.zeros(2)
    ordered = solve(problem, OSEM(), iterations=2 * problem.terms).value - lower
    assert bool((ordered < solve(problem, MLEM(), iterations=4).value - lower).all())


def test_a_single_group_is_everything(problem):
    whole = PoissonTomography(
        problem.y, problem.beam, problem.exposure, problem.background, problem.weight, terms=1
    )
    torch.testing.assert_close(
        solve(whole, OSEM(), iterations=5).x, solve(whole, MLEM(), iterations=5).x
    )


@pytest.mark.parametrize("terms", range(1, 20))
def test_a_cycle_meets_every_term_once_and_neighbours_are_apart(terms):
    order = [spread_out(k, terms) for k in range(2 * terms)]
    assert sorted(order[:terms]) == list(range(terms))
    assert order[terms:] == order[:terms]


def test_other_problems_are_refused():
    bowl = Quadratic(torch.ones(2), torch.zeros(2))
    for method in (MLEM(), SPDHG()):
        with pytest.raises(TypeError, match="Quadratic has none"):
            solve(bowl, method, torch.ones(1, 2), iterations=1)


def test_randomness_has_to_be_given(problem):
    with pytest.raises(ValueError, match="SPDHG is random"):
        solve(problem, SPDHG(), iterations=1)
    with pytest.raises(ValueError, match="ratio must be positive"):
        SPDHG(0.0)
