"""One matrix, method × problem × map × dtype: the optimality condition at the limit."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import linprog

from mirrordescent import (
    AMD,
    ASMD,
    GD,
    MD,
    SGD,
    SMD,
    SVM,
    Adam,
    Averaged,
    LeastSquares,
    LogisticRegression,
    MatrixGame,
    Nesterov,
    ProjectedGradient,
    Quadratic,
    TVDenoising,
    certify,
    relative_gap,
    solve,
)
from mirrordescent.domains import Box, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.mirrors import (
    Burg,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    Logit,
    NegativeEntropy,
    PNorm,
    SimplexEntropy,
    SquaredPNorm,
)
from mirrordescent.schedules import RootReciprocal

MAPS = {
    "euclidean": lambda: Euclidean(),
    "diagonal": lambda: Diagonal(torch.tensor([1.0, 1.5, 2.0, 1.2])),
    "squared 1.7-norm": lambda: SquaredPNorm(1.7),
    "hyperbolic": lambda: HyperbolicEntropy(1.0),
    "logit": lambda: Logit(-4.0, 4.0),
    "entropy": lambda: NegativeEntropy(),
    "simplex": lambda: SimplexEntropy(),
}


def _gamma(mirror):
    """1/α, with α over the region the iterates visit for the maps that have none on their whole
    domain.
    """
    constant = mirror.strong_convexity
    return max(1.0, 1 / (constant.alpha if constant and constant.alpha else 0.25))


METHODS = {
    "MD": lambda mirror, t: MD(mirror, t),
    "SMD": lambda mirror, t: SMD(mirror, t),
    "AMD dual": lambda mirror, t: AMD(mirror, t, gamma=_gamma(mirror)),
    "AMD primal": lambda mirror, t: AMD(mirror, t, gamma=_gamma(mirror), storage="primal"),
    "ASMD": lambda mirror, t: ASMD(mirror, 5 * t),  # its own weights decay like 1/√k
    "Averaged MD": lambda mirror, t: Averaged(MD(mirror, t), weights=lambda k: float(k)),
}
ITERATIONS = {
    "MD": 1000,
    "SMD": 1000,
    "AMD dual": 300,
    "AMD primal": 300,
    "ASMD": 700,
    "Averaged MD": 1500,
}
BASELINES = {
    "GD": lambda t: GD(t),
    "Nesterov": lambda t: Nesterov(t),
    "Adam": lambda t: Adam(RootReciprocal(t)),
    "SGD": lambda t: SGD(t, momentum=0.5),
}


def quadratic(dtype):
    A = torch.diag(torch.tensor([0.3, 0.6, 1.0, 0.8])) + 0.05
    return Quadratic(
        A.to(dtype), torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.5, 0.2]], dtype=dtype)
    )


def least_squares(dtype):
    A = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 3
    b = torch.randn(2, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return LeastSquares(A.to(dtype), b.to(dtype))


def logistic(dtype):
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    labels = (
        features[:, 0]
        + 0.5 * torch.randn(30, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ).sign()
    return LogisticRegression(features.to(dtype), labels.to(dtype), ridge=0.3)


PROBLEMS = {"quadratic": quadratic, "least squares": least_squares, "logistic": logistic}
DTYPES = [torch.float32, torch.float64]


def optimality(problem, domain, x):
    """‖x − P(x − ∇f(x))‖_∞, which is 0 exactly at a minimiser over the domain."""
    return float((x - domain.project(x - problem.grad(x))).abs().max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("mirror", MAPS)
@pytest.mark.parametrize("method", METHODS)
def test_mirror_methods_reach_the_optimality_condition(method, mirror, problem, dtype):
    geometry = MAPS[mirror]().to(dtype)
    task = PROBLEMS[problem](dtype)
    x0 = torch.full((2, 4), 0.25, dtype=dtype)
    t = 0.9 / (task.smoothness() * _gamma(geometry))
    chosen = METHODS[method](geometry, t)
    solution = solve(task, chosen, x0.to(dtype), iterations=ITERATIONS[method])
    assert solution.ok, solution
    assert optimality(task, geometry.primal_domain, x0) > 0.1
    # Accelerated and averaged methods converge sublinearly; ASMD's theory promises no more than
    # 1/√k.
    tolerance = {"MD": 1e-4, "SMD": 1e-4, "ASMD": 2e-2}.get(method, 2e-3)
    assert optimality(task, geometry.primal_domain, solution.x) <= tolerance


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", BASELINES)
def test_baselines_reach_the_optimality_condition(method, problem, dtype):
    task = PROBLEMS[problem](dtype)
    solution = solve(
        task,
        BASELINES[method](0.9 / task.smoothness()),
        torch.zeros(2, 4, dtype=dtype),
        iterations=3000,
    )
    assert optimality(task, WholeSpace(), solution.x) <= (2e-2 if method == "Adam" else 1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(
    "domain", [Simplex(), Box(-0.1, 0.3), PositiveOrthant()], ids=lambda d: type(d).__name__
)
def test_projected_gradient_reaches_the_optimality_condition_on_sets(domain, problem, dtype):
    task = PROBLEMS[problem](dtype)
    solution = solve(
        task,
        ProjectedGradient(domain, 0.9 / task.smoothness()),
        torch.full((2, 4), 0.25, dtype=dtype),
    )
    assert solution.ok
    assert optimality(task, domain, solution.x) <= 1e-4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mirror", [Burg(), PNorm(1.5), PNorm(3.0)], ids=str)
@pytest.mark.parametrize("method", [MD, SMD], ids=lambda m: m.__name__)
def test_maps_with_unbounded_curvature_reach_an_inner_optimum(method, mirror, dtype):
    task = quadratic(dtype)
    solution = solve(
        task, method(mirror, 0.2), torch.full((2, 4), 0.25, dtype=dtype), iterations=8000
    )
    assert solution.ok
    assert optimality(task, mirror.primal_domain, solution.x) <= 2e-4


def images():
    return TVDenoising(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(4)))


def margins():
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(5))
    return SVM(features, (features[:, 0] + 0.3).sign())


NONSMOOTH = {
    "GD": lambda: GD(RootReciprocal(0.1)),
    "MD": lambda: MD(Diagonal(1.0), RootReciprocal(0.1)),
    "SMD": lambda: SMD(Logit(-20.0, 20.0), RootReciprocal(0.02)),
    "AMD": lambda: AMD(HyperbolicEntropy(1.0), RootReciprocal(0.02)),
    "ASMD": lambda: ASMD(Euclidean(), 0.3),
    "Adam": lambda: Adam(RootReciprocal(0.1)),
}


@pytest.mark.parametrize("problem", [images, margins], ids=["TV", "SVM"])
@pytest.mark.parametrize("method", NONSMOOTH)
def test_nonsmooth_problems_come_close_to_the_certified_optimum(method, problem):
    task = problem()
    reference = certify(task, 1e-7)
    solution = solve(task, NONSMOOTH[method](), iterations=3000)
    gap = relative_gap(solution.best_value.double(), reference.lower, reference.start_value)
    assert (gap >= -1e-5).all()
    assert (gap <= 1e-2).all()


@pytest.mark.parametrize(
    "method",
    [
        MD(SimplexEntropy(), 0.05),
        ProjectedGradient(Simplex(), 0.01),
        AMD(SimplexEntropy(), RootReciprocal(0.02)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_game_comes_close_to_its_value(method):
    """The value of a matrix game by linear programming: min v with Ax ≤ v, x on the simplex."""
    A = torch.randn(6, 5, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    programme = linprog(
        [0, 0, 0, 0, 0, 1],
        A_ub=torch.cat([A, -torch.ones(6, 1, dtype=torch.float64)], 1).numpy(),
        b_ub=[0] * 6,
        A_eq=[[1, 1, 1, 1, 1, 0]],
        b_eq=[1],
        bounds=[(0, None)] * 5 + [(None, None)],
    )
    game = MatrixGame(A)
    first = game.value(game.start())
    solution = solve(game, method, iterations=3000)
    assert float(solution.best_value) >= programme.fun - 1e-9
    assert float(solution.best_value) - programme.fun <= 0.03 * (float(first) - programme.fun)
