"""FISTA, L-BFGS and relays: against scipy, closed forms and optimality conditions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch

import mirrordescent as md
from mirrordescent.domains import Box, PositiveOrthant, Simplex
from mirrordescent.methods import FISTA, GD, LBFGS, MD, PDHG, Switch
from mirrordescent.mirrors import Euclidean
from mirrordescent.oracles import Minibatch

DOUBLE = torch.float64


def least_squares(domain=None, batch=3, m=12, n=5):
    generator = torch.Generator().manual_seed(0)
    A, b = (
        torch.randn(batch, *shape, generator=generator, dtype=DOUBLE) for shape in ((m, n), (m,))
    )
    return md.LeastSquares(A * torch.logspace(0, 1, n, dtype=DOUBLE), b, domain)


@pytest.mark.parametrize("method", [FISTA(), LBFGS()], ids=lambda m: type(m).__name__)
def test_least_squares(method):
    problem = least_squares()
    found = md.solve(problem, method, iterations=500, progress=False)
    torch.testing.assert_close(
        found.x, torch.linalg.lstsq(problem.A, problem.b[..., None]).solution[..., 0]
    )


def test_non_negative_least_squares_as_scipy_has_it():
    problem = least_squares(PositiveOrthant())
    found = md.solve(problem, FISTA(), iterations=1000, progress=False)
    for A, b, x in zip(problem.A, problem.b, found.x, strict=True):
        np.testing.assert_allclose(x, scipy.optimize.nnls(A.numpy(), b.numpy())[0], atol=1e-6)


@pytest.mark.parametrize("domain", [Box(-0.1, 0.1), Simplex()], ids=lambda d: type(d).__name__)
def test_a_fixed_point_of_projected_gradients(domain):
    problem = least_squares(domain)
    x = md.solve(problem, FISTA(), iterations=2000, progress=False).x
    torch.testing.assert_close(domain.project(x - 1e-3 * problem.grad(x)), x, atol=1e-9, rtol=0)


def test_rosenbrock_as_fast_as_scipy():
    def rosenbrock(x):
        return 100 * (x[:, 1:] - x[:, :-1].square()).square().sum(1) + (1 - x[:, :-1]).square().sum(
            1
        )

    start = torch.tensor([[-1.2, 1.0, 0.5], [2.0, -1.0, 0.0]], dtype=DOUBLE)
    found = md.solve(
        md.Function(rosenbrock),
        LBFGS(),
        start,
        iterations=120,
        check_every=1,
        progress=False,
        stop=md.gradient_norm(1e-8),
    )
    torch.testing.assert_close(found.x, torch.ones_like(start), atol=1e-6, rtol=0)
    theirs = [
        scipy.optimize.minimize(
            lambda x: float(rosenbrock(torch.tensor(x)[None])), each, method="L-BFGS-B", tol=1e-14
        ).nit
        for each in start.numpy()
    ]
    assert int(found.steps.max()) <= 2 * max(theirs)


def test_samples_do_not_see_each_other():
    problem = least_squares()
    alone = md.LeastSquares(problem.A[1:2], problem.b[1:2])
    for method in (FISTA(), LBFGS()):
        together, single = (
            md.solve(each, method, iterations=25, progress=False).x for each in (problem, alone)
        )
        torch.testing.assert_close(together[1:2], single, rtol=1e-9, atol=1e-11)


def test_flat_and_finished_problems_stay_where_they_are():
    flat = md.Quadratic(torch.zeros(2, dtype=DOUBLE), torch.zeros(1, 2, dtype=DOUBLE))
    start = torch.ones(1, 2, dtype=DOUBLE)
    for method in (FISTA(), LBFGS()):
        assert torch.equal(md.solve(flat, method, start, iterations=5, progress=False).x, start)


def test_random_gradients_are_refused():
    problem = least_squares()
    generator = torch.Generator()
    for method in (FISTA(), LBFGS()):
        with pytest.raises(TypeError, match="cannot use the stochastic oracle Minibatch"):
            md.solve(problem, method, oracle=Minibatch(2), generator=generator)


def test_a_relay_is_both_in_turn():
    problem = least_squares()
    x0 = torch.zeros(3, 5, dtype=DOUBLE)
    first = md.solve(problem, GD(1e-4), x0, iterations=4, progress=False)
    both = md.solve(problem, Switch(GD(1e-4), 4, LBFGS()), x0, iterations=9, progress=False)
    second = md.solve(problem, LBFGS(), first.x, iterations=5, progress=False)
    torch.testing.assert_close(both.x, second.x)
    early = md.solve(problem, Switch(GD(1e-4), 4, LBFGS()), x0, iterations=4, progress=False)
    assert torch.equal(early.x, first.x)


def test_a_warm_start_keeps_the_dual_variable():
    """A problem that hardly changes is solved in a fraction of the steps, and proven so."""
    image = torch.rand(2, 1, 24, 24, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    first, second = (md.TVInpainting(image + change, None, 0.2) for change in (0.0, 1e-3))
    options = {"iterations": 4000, "stop": md.gap(1e-4), "check_every": 5, "progress": False}
    solved = md.solve(first, PDHG(0.3), **options)
    cold = md.solve(second, PDHG(0.3), **options)
    warm = md.solve(
        second,
        PDHG(0.3),
        state=solved.state,
        iterations=4000,
        check_every=5,
        progress=False,
        stop=md.gap(1e-4, start_value=second.value(second.start())),
    )
    assert int(warm.steps.max()) <= int(cold.steps.max()) / 3
    assert bool((warm.lower <= warm.value).all())
    with pytest.raises(ValueError, match="either x0 or state"):
        md.solve(second, PDHG(0.3), second.start(), state=solved.state)


def test_a_warm_start_without_duals_begins_at_the_answer():
    problem = least_squares()
    method = MD(Euclidean(), 1e-4)
    solved = md.solve(problem, method, iterations=5, progress=False)
    on = md.solve(problem, method, state=solved.state, iterations=5, progress=False)
    torch.testing.assert_close(on.x, md.solve(problem, method, iterations=10, progress=False).x)
