"""Entropic transport: minima of POT, bounds from any potential, and feasible plans."""

import math

import numpy as np
import pytest
import torch

import mirrordescent as md
from mirrordescent import EntropicTransport
from mirrordescent.references import certify

DOUBLE = torch.float64
EPSILON = 0.1


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def transport(**options):
    given = {"C": uniform(3, 5, 7), "a": uniform(3, 5, seed=1) + 0.1, "b": uniform(7, seed=2) + 0.1}
    return EntropicTransport(**(given | options), epsilon=EPSILON)


def primal_value(problem, P):
    """⟨C, P⟩ + ε KL(P | αβᵀ)."""
    product = problem.alpha.unsqueeze(-1) * problem.beta.unsqueeze(-2)
    return (P * (problem.C + EPSILON * (P / product).log())).sum((-2, -1))


def test_the_minimum_is_that_of_pot():
    ot = pytest.importorskip("ot")
    problem = transport()
    found = certify(problem, 1e-9, cache=False)
    assert found.proven
    for i in range(3):
        alpha = problem.alpha[i].numpy()
        beta = problem.beta.numpy()
        P = ot.sinkhorn(alpha, beta, problem.C[i].numpy(), EPSILON, stopThr=1e-12)
        np.testing.assert_allclose(problem.plan(found.x)[i], P, atol=1e-8)
        expected = float(primal_value(problem, torch.from_numpy(P))[i])
        assert -float(found.value[i]) == pytest.approx(expected, abs=1e-9)


def test_two_points_have_a_closed_form():
    """By symmetry the plan has entries p and ½ − p with p/(½ − p) = exp(1/ε)."""
    problem = EntropicTransport(1 - torch.eye(2, dtype=DOUBLE), torch.ones(2), torch.ones(2), 0.5)
    p = 0.5 / (1 + math.exp(-2))
    P = problem.plan(problem.start())
    torch.testing.assert_close(P[0, 0], torch.tensor([p, 0.5 - p], dtype=DOUBLE))
    least = (0.5 - p) * 2 + 0.5 * (2 * p * math.log(4 * p) + 2 * (0.5 - p) * math.log(2 - 4 * p))
    assert float(problem.value(problem.start())) == pytest.approx(-least)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("size", [0.0, 0.1, 10.0, 1e4])
def test_bounds_hold_at_any_potential(size, dtype):
    problem = transport()
    least = certify(problem, 1e-9, cache=False).value
    x = size * (uniform(3, 5, seed=3) - 0.5)
    given = transport().to(dtype)
    bound = given.bound_at(x.to(dtype))
    if dtype == torch.float32:  # rounded data are another problem
        least = certify(transport().to(dtype).double(), 1e-9, cache=False).value
    assert bool((bound <= least + 1e-12).all())


def test_plans_have_the_right_sums_and_prove_the_minimum():
    problem = transport()
    P = problem.plan(3 * uniform(3, 5, seed=3))
    assert bool((P >= 0).all())
    torch.testing.assert_close(P.sum(-1), problem.alpha)
    torch.testing.assert_close(P.sum(-2), problem.beta.expand(3, -1))
    least = certify(problem, 1e-9, cache=False).lower
    assert bool((-primal_value(problem, P) <= least + 1e-9).all())  # weak duality


def test_a_certificate_is_verified_without_the_bounds_of_the_class(monkeypatch):
    problem = transport()
    found = certify(problem, 1e-6, cache=False)
    for name in ("bound_at", "grad", "value", "_exponents"):
        monkeypatch.setattr(EntropicTransport, name, None)
    assert found.witness is not None
    again = md.references.verification.recompute(found.witness, problem)
    assert bool((again >= found.lower).all())


def test_a_changed_function_is_not_verified_by_the_formula_of_the_class():
    class Lower(EntropicTransport):
        def value(self, x):
            return super().value(x) - 1

    found = certify(transport(), 1e-6, cache=False)
    assert not found.verify(Lower(uniform(3, 5, 7), torch.ones(5), torch.ones(7), 0.1)).confirmed


def test_gap_stops_gradient_methods():
    problem = transport()
    solution = md.solve(problem, md.FISTA(), stop=md.gap(1e-3), iterations=2000, check_every=20)
    assert solution.statuses == [md.Status.CONVERGED] * 3
    least = certify(problem, 1e-9, cache=False).value
    gaps = (solution.value - least) / (problem.value(problem.start()) - least)
    assert float(gaps.max()) <= 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"C": torch.ones(3)}, "C must be"),
        ({"a": torch.ones(4)}, "a must be .5,. or"),
        ({"b": torch.zeros(7)}, "b must be positive"),
        ({"a": torch.ones(2, 5)}, "same batch size, got .2, 3."),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        transport(**options)
