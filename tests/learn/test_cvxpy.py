"""Problems of CVXPY as families: the same minima and variables as CVXPY finds."""

import numpy as np
import pytest
import torch

import mirrordescent as md

cp = pytest.importorskip("cvxpy")


def portfolio():
    n = 5
    x = cp.Variable(n, name="x")
    risk = cp.Variable((2, 3), name="risk")
    q = cp.Parameter(n, name="q")
    budget = cp.Parameter(name="budget")
    R = np.random.default_rng(0).normal(size=(6, n))
    factors = cp.vec(risk, order="F") == R @ x
    objective = cp.Minimize(cp.sum_squares(risk) + q @ x + 0.3 * cp.norm1(x) + 7)
    return cp.Problem(objective, [cp.sum(x) == budget, x >= -0.5, x <= 0.6, factors])


def sample(generator):
    return {
        "q": torch.randn(5, generator=generator),
        "budget": 0.5 + torch.rand((), generator=generator),
    }


def test_minima_and_variables_are_those_of_cvxpy():
    problem = portfolio()
    family = md.from_cvxpy(problem, sample, torch.float64)
    drawn = family.draw(range(4))
    assert drawn.problem.A.ndim == 2, "all programs share the matrix"
    solution = md.solve(drawn.problem, md.ADMM(), stop=md.gap(1e-6), iterations=20_000)
    assert set(solution.statuses) == {md.Status.CONVERGED}
    variables = family.unpack(solution.x)
    for i in range(4):
        values = sample(torch.Generator().manual_seed(i))
        for parameter in problem.parameters():
            parameter.value = values[parameter.name()].double().numpy()
        problem.solve(cp.CLARABEL)
        assert float(drawn.problem.objective(solution.x)[i]) + 7 == pytest.approx(
            problem.value, abs=1e-5
        )
        for variable in problem.variables():
            np.testing.assert_allclose(
                variables[variable.name()][i].numpy(), variable.value, atol=1e-3
            )


def test_given_parameters_make_a_batch():
    family = md.from_cvxpy(portfolio(), sample)
    program = family.program(q=np.ones((3, 5)), budget=np.array([1.0, 1.1, 1.2]))
    assert program.batch == 3


def test_linear_programs_have_no_quadratic_term():
    x = cp.Variable(3, name="x")
    c = cp.Parameter(3, name="c")
    problem = cp.Problem(cp.Minimize(c @ x), [cp.sum(x) == 1, x >= 0])
    family = md.from_cvxpy(problem, lambda g: {"c": torch.randn(3, generator=g)}, torch.float64)
    drawn = family.draw(range(4))
    assert drawn.problem.P is None
    solution = md.solve(drawn.problem, md.ADMM(), stop=md.gap(1e-5), iterations=20_000)
    expected = [
        float(torch.randn(3, generator=torch.Generator().manual_seed(i)).min()) for i in range(4)
    ]
    np.testing.assert_allclose(drawn.problem.objective(solution.x), expected, atol=1e-3)


def test_cones_that_are_not_supported_are_named():
    x = cp.Variable(3, name="x")
    q = cp.Parameter(3, name="q")
    for constraint, name in (
        (cp.sum(cp.exp(x)) <= 3, "exponential cones"),
        (cp.bmat([[x[0], 1], [1, x[1]]]) >> 0, "semidefinite cones"),
    ):
        family = md.from_cvxpy(
            cp.Problem(cp.Minimize(q @ x), [constraint]),
            lambda g: {"q": torch.randn(3, generator=g)},
        )
        with pytest.raises(ValueError, match=f"needs {name}, which are not supported"):
            family.draw(range(1))


@pytest.mark.parametrize("shared", [True, False])
def test_second_order_cones_are_those_of_cvxpy(shared):
    """‖Fx + f‖ ≤ 2 and ‖x₁, x₂‖ ≤ x₀ + 1, with parameters in f and, if not shared, in F."""
    x = cp.Variable(3, name="x")
    q = cp.Parameter(3, name="q")
    f = cp.Parameter(2, name="f")
    g = cp.Parameter(nonneg=True, name="g")
    F = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]])
    left = F @ x + f if shared else g * (F @ x) + f
    cones = [cp.norm(left) <= 2, cp.norm(x[1:]) <= x[0] + 1, x <= 3 + 0 * g, cp.sum(x) >= -g]
    problem = cp.Problem(cp.Minimize(q @ x + 0.1 * cp.sum_squares(x)), cones)

    def draw(generator):
        return {
            "q": torch.randn(3, generator=generator),
            "f": 0.3 * torch.randn(2, generator=generator),
            "g": 1 + torch.rand((), generator=generator),
        }

    family = md.from_cvxpy(problem, draw, torch.float64)
    drawn = family.draw(range(3))
    assert sum(drawn.problem.cones) == 6
    assert (drawn.problem.A.ndim == 2) == shared
    solution = md.solve(drawn.problem, md.ADMM(), stop=md.gap(1e-6), iterations=20_000)
    assert set(solution.statuses) == {md.Status.CONVERGED}
    found = family.unpack(solution.x)["x"].numpy()
    for i in range(3):
        values = draw(torch.Generator().manual_seed(i))
        for parameter in problem.parameters():
            parameter.value = values[parameter.name()].double().numpy()
        problem.solve(cp.CLARABEL)
        np.testing.assert_allclose(found[i], x.value, atol=2e-3)
        value = float(drawn.problem.objective(solution.x)[i])
        assert value == pytest.approx(problem.value, abs=1e-5)


def test_problems_that_break_the_rules_are_refused():
    x = cp.Variable(name="x")
    p = cp.Parameter(name="p")
    with pytest.raises(ValueError, match="disciplined parametrised programming"):
        md.from_cvxpy(cp.Problem(cp.Minimize(cp.square(p * p * x))), sample)
    with pytest.raises(TypeError, match=r"must be a cvxpy.Problem, got int"):
        md.from_cvxpy(3, sample)
    with pytest.raises(ValueError, match="integer variables"):
        md.from_cvxpy(cp.Problem(cp.Minimize(p * cp.Variable(integer=True))), sample)
    family = md.from_cvxpy(portfolio(), lambda g: {"q": torch.ones(5)})
    with pytest.raises(ValueError, match=r"parameters \['budget', 'q'\], got \['q'\]"):
        family.draw(range(1))
