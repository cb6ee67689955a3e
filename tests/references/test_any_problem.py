"""Certificates beyond total variation: gradients, games, registered certifiers, estimates."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.optimize
import torch

import mirrordescent as md
from mirrordescent.domains import Box, PositiveOrthant, Simplex
from mirrordescent.problems import Problem
from mirrordescent.references import certify, estimate, register

DOUBLE = torch.float64


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


PROBLEMS = {
    "least squares": lambda: md.LeastSquares(data(3, 9, 4), data(3, 9, seed=1)),
    "least squares, one matrix": lambda: md.LeastSquares(data(9, 4), data(9, seed=1)),
    "underdetermined": lambda: md.LeastSquares(data(3, 4, 9), data(3, 4, seed=1)),
    "on a simplex": lambda: md.LeastSquares(data(3, 4, 9), data(3, 4, seed=1), Simplex()),
    "in a box": lambda: md.LeastSquares(data(3, 4, 9), data(3, 4, seed=1), Box(-0.1, 0.2)),
    "non-negative": lambda: md.LeastSquares(data(3, 9, 4), data(3, 9, seed=1), PositiveOrthant()),
    "non-negative, underdetermined": lambda: md.LeastSquares(
        data(3, 4, 9).abs(), data(3, 4, seed=1), PositiveOrthant()
    ),
    "logistic regression": lambda: md.LogisticRegression(
        data(3, 30, 4), data(3, 30, seed=1).sign(), 1e-2
    ),
    "game": lambda: md.MatrixGame(data(3, 5, 4)),
    "quadratic": lambda: md.Quadratic(data(4).abs() + 0.1, data(3, 4, seed=1)),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_proven_to_a_millionth(name):
    problem = PROBLEMS[name]()
    found = certify(problem, 1e-5, cache=False)
    assert found.proven
    assert bool((found.lower <= found.value).all())
    assert float(found.relative_gap.max()) <= 1e-5
    assert bool(problem.domain.contains(found.x, closed=True).all())


def test_a_game_has_the_value_of_its_linear_program():
    A = data(3, 5, 4)
    found = certify(md.MatrixGame(A), 1e-5, cache=False)
    for matrix, lower, value in zip(A.numpy(), found.lower, found.value, strict=True):
        program = scipy.optimize.linprog(
            np.r_[np.zeros(4), 1.0],
            A_ub=np.c_[matrix, -np.ones(5)],
            b_ub=np.zeros(5),
            A_eq=np.r_[np.ones(4), 0.0][None],
            b_eq=[1.0],
            bounds=[(0, None)] * 4 + [(None, None)],
        )
        assert float(lower) <= program.fun + 1e-12
        assert program.fun <= float(value) + 1e-9


@pytest.mark.parametrize(
    "name", ["on a simplex", "in a box", "non-negative", "logistic regression"]
)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_bounds_at_any_point_hold(name, dtype):
    problem = PROBLEMS[name]()
    least = certify(problem, 1e-6, cache=False).value
    single = problem.to(dtype)
    for seed in range(20):
        x = problem.domain.project(data(*least.shape, *problem.sample_shape, seed=seed).to(dtype))
        assert bool((single.bound_at(x).double() <= least + 1e-9).all())


def test_there_is_no_bound_where_nothing_is_known():
    x = torch.zeros(1, 2)
    assert md.Function(lambda x: x.square().sum(-1)).bound_at(x) is None
    assert md.LogisticRegression(torch.eye(2), torch.ones(2)).bound_at(x) is None
    with pytest.raises(TypeError, match="estimate=True"):
        certify(md.LogisticRegression(torch.eye(2), torch.ones(2)), cache=False)


def test_an_estimate_says_that_it_is_one():
    problem = md.Function(lambda x: (x - 1).square().sum(-1) - 100)
    found = certify(problem, estimate=True, x0=torch.zeros(2, 3), cache=False)
    assert not found.proven
    torch.testing.assert_close(
        found.value, torch.full((2,), -100.0, dtype=DOUBLE), atol=1e-6, rtol=0
    )
    assert bool((found.lower < found.value).all())


def test_estimates_respect_constraints():
    problem = PROBLEMS["non-negative"]()
    x, value, lower = estimate(problem, problem.start(), iterations=300)
    assert bool((x >= 0).all())
    reference = certify(problem, 1e-6, cache=False)
    assert bool(
        (value <= reference.value + 1e-5 * (problem.value(problem.start()) - reference.value)).all()
    )
    assert bool((lower <= value).all())


class Tilted(Problem):
    """A class of a user's: a linear function that only its author knows the minimum of."""

    def __init__(self, batch):
        super().__init__(batch, (2,), slope=torch.ones(batch, 2))

    def value(self, x):
        return (self.slope * x).sum(-1).square()

    def grad(self, x):
        return 2 * (self.slope * x).sum(-1, keepdim=True) * self.slope


def test_users_can_certify_their_classes():
    with pytest.raises(TypeError, match="cannot be certified"):
        certify(Tilted(2), cache=False)
    register(
        Tilted,
        lambda problem, tolerance: (torch.zeros(2, 2, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE)),
    )
    found = certify(Tilted(2), cache=False)
    assert not found.proven, "it is as good as the user's function"
    assert found.conditional_on == ("the certifier registered for Tilted returns lower bounds",)
    assert not found.estimated
    checked = found.verify(Tilted(2))
    assert (checked.lower, checked.confirmed) == (None, False)
    assert "cannot be checked" in str(checked)


def test_a_program_without_feasible_points_gets_a_warning():
    """Its penalised value is certified, but is no optimum of the program."""
    q = torch.tensor([[1.0, -1.0]])
    A = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    upper = torch.tensor([-1.0, 2.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        certify(md.QP(None, q, A, torch.tensor([-2.0, -2.0, 0.0]), upper), cache=False)
    with pytest.warns(UserWarning, match="x violates constraints of QP"):
        certify(md.QP(None, q, A, torch.tensor([-2.0, 1.0, 0.0]), upper), cache=False)
