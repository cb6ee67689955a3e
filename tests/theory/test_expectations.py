"""Theorems 2 and 3 in expectation (mean plus three standard errors), with true assumptions."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import AMD, ASMD, MD, SMD, SVM, LeastSquares, LogisticRegression, certify, solve
from mirrordescent.domains import Simplex
from mirrordescent.mirrors import Euclidean, SimplexEntropy
from mirrordescent.oracles import Noisy, Oracle, require_generator
from mirrordescent.schedules import RootReciprocal
from mirrordescent.theory import bounds, observe
from mirrordescent.theory.geometry import Coupling, NewtonInverse

SEEDS = 200
K = 60


class OneTermEach(Oracle):
    """The gradient of a random data point, drawn for every sample: many runs in one batch."""

    stochastic = True

    def forward(self, problem, x, k, generator=None):
        generator = require_generator(generator, self)
        rows = problem.signed[torch.randint(problem.terms, (len(x),), generator=generator)]
        slopes = problem._slope((rows * x).sum(1))
        return problem.ridge * x + problem.C * slopes[:, None] * rows


def data(rows=30, columns=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    labels = (features[:, 0] + torch.randn(rows, generator=generator, dtype=torch.float64)).sign()
    return features, labels


def logistic():
    """Slopes of at most 1, so ‖G‖ ≤ max‖φ‖ everywhere."""
    problem = LogisticRegression(*data())
    solution = solve(
        problem, AMD(Euclidean(), 1 / problem.smoothness(), returns="x_tilde"), iterations=5000
    )
    assert problem.grad(solution.x).abs().max() < 1e-8
    return problem, solution.x, problem.signed.square().sum(1).max(), OneTermEach()


def hinge():
    """The hinge alone, without the square that would make its gradients unbounded."""
    problem = SVM(*data())
    problem.ridge.zero_()
    generator = torch.Generator().manual_seed(1)
    # Any u will do in place of a minimiser; this one is better than where the runs start.
    u = solve(
        problem, AMD(Euclidean(), RootReciprocal(0.1)), iterations=2000, generator=generator
    ).best_x
    return problem, u, problem.signed.square().sum(1).max(), OneTermEach()


def simplex(squared_norm):
    """Bounded domain, Gaussian noise: E‖G‖_*² ≤ 2 max‖g‖_*² + 2 E‖Δ‖_*²."""
    generator = torch.Generator().manual_seed(2)
    A = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    u = torch.randn(1, 5, generator=generator, dtype=torch.float64).softmax(-1)
    problem = LeastSquares(A, (u @ A.T)[0], Simplex())
    vertices = problem.grad(
        torch.eye(5, dtype=torch.float64)
    )  # the gradient is affine, its norm largest at a vertex
    noise = torch.randn(100_000, 5, generator=generator, dtype=torch.float64)
    return (
        problem,
        u,
        2 * squared_norm(vertices).max() + 2 * squared_norm(noise).mean() * 1.02,
        Noisy(1.0),
    )


CASES = {
    "logistic": (logistic, Euclidean()),
    "hinge": (hinge, Euclidean()),
    "simplex, entropy": (lambda: simplex(lambda g: g.abs().amax(1).square()), SimplexEntropy()),
    "simplex, projection": (lambda: simplex(lambda g: g.square().sum(1)), Euclidean(Simplex())),
}


def observed(method, problem, u, oracle):
    x0 = problem.start(1).expand(SEEDS, -1).contiguous()
    generator = torch.Generator().manual_seed(3)
    return observe(
        problem, method, x0, minimiser=u, iterations=K, oracle=oracle, generator=generator
    ).record


def upper(series):
    """The mean over seeds, plus three standard errors."""
    return series.mean(1, keepdim=True) + 3 * series.std(1, keepdim=True) / series.shape[1] ** 0.5


@pytest.mark.parametrize("name", CASES)
def test_theorem_2_without_errors(name):
    make, mirror = CASES[name]
    problem, u, second_moment, oracle = make()
    record = observed(SMD(mirror, RootReciprocal(0.3)), problem, u, oracle)
    assert record["displacement"].mean(1).max() <= second_moment
    assert (record["noise"][0] > 0).all()
    bound = bounds.smd_bound(record["divergence"][0], record.steps, float(second_moment), alpha=1.0)
    assert (upper(bounds.weighted_mean_gap(record)) <= bound).all()


class Shifted(Euclidean):
    """An inverse that is off by a constant, ∇M*(y) = y + e."""

    exact = False
    error = 0.02

    def _to_primal(self, y):
        return y + self.error


def test_theorem_2_with_errors_in_both_cases():
    """Primal-stored with an inverse off by e: U = −e/t. C is the measured pairing, C' = ‖e‖²/t²."""
    problem, u, _, oracle = logistic()
    problem.ridge.fill_(0.2)
    u = solve(
        problem, AMD(Euclidean(), 1 / problem.smoothness(), returns="x_tilde"), iterations=3000
    ).x
    record = observed(MD(Shifted(), 0.2), problem, u, oracle)
    moment = float(record["displacement"].mean(1).max())
    n = u.shape[1]
    torch.testing.assert_close(
        record["error"], torch.full_like(record["error"], 0.02 * n**0.5 / 0.2)
    )
    gaps = upper(bounds.weighted_mean_gap(record))
    start = record["divergence"][0]
    pairing = float(-record["error_pairing"].mean(1).min())
    assert (gaps <= bounds.smd_bound(start, record.steps, moment, 1.0, max(0.0, pairing))).all()
    squared_error = float(record["error"].square().max())
    strong = bounds.smd_bound_strongly_convex(
        start, record.steps, moment, 1.0, squared_error, mu=0.2
    )
    assert (gaps <= strong).all()
    torch.testing.assert_close(
        strong - bounds.smd_bound(start, record.steps, moment, 1.0),
        torch.full_like(strong, squared_error / 0.4),
    )


@pytest.mark.parametrize("name", ["logistic", "simplex, projection", "simplex, entropy"])
@pytest.mark.parametrize("t", [1.0, 0.2])
def test_theorem_3(name, t):
    make, mirror = CASES[name]
    problem, u, _, oracle = make()
    record = observed(ASMD(mirror, t), problem, u, oracle)
    gradient = problem.grad(u)
    largest = float(
        torch.maximum(record["divergence"].max(), 0.5 * record["distance"].square().max())
    )
    bound = bounds.asmd_bound(
        K,
        record["energy"][0],
        largest,
        alpha=1.0,
        smoothness=problem.smoothness(),
        variance=float(record["noise"].mean(1).max()),
        squared_gradient=float(gradient.square().sum()),
        t=t,
    )
    by_moments = bounds.asmd_bound_by_moments(
        record["energy"][0],
        record.steps,
        largest,
        record["displacement"].mean(1, keepdim=True),
        alpha=1.0,
    )
    gaps = upper(record["gap"][1:])
    assert (gaps <= by_moments).all()
    assert (by_moments <= bound).all(), "the theorem's bound is the looser one"


def test_theorem_3_with_an_inexact_inverse():
    """A dual-stored pair compared with M.

    U is the constant error of the inverse, and K the largest ⟨∇f, U⟩.
    """
    problem, u, _, oracle = logistic()
    mirror = Shifted()
    x0 = problem.start(1).expand(SEEDS, -1).contiguous()
    record = observe(
        problem,
        ASMD(mirror, 0.5),
        x0,
        minimiser=u,
        iterations=K,
        oracle=oracle,
        generator=torch.Generator().manual_seed(0),
        geometry=NewtonInverse(mirror),
    ).record
    assert (record["error"] != 0).any()
    largest = float(
        torch.maximum(record["divergence"].max(), 0.5 * record["distance"].square().max())
    )
    bound = bounds.asmd_bound_by_moments(
        record["energy"][0],
        record.steps,
        largest,
        record["displacement"].mean(1, keepdim=True),
        1.0,
        error=max(0.0, float(record["error"].mean(1).max())),
    )
    assert (upper(record["gap"][1:]) <= bound).all()


def test_the_coupling_is_what_dual_storage_needs():
    """On a set with a boundary the step inequality holds for F(u, y), not for B_ψ(u, ∇ψ*(y))."""
    mirror = Euclidean(Simplex())
    u = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([[5.0, 0.0]], dtype=torch.float64)
    x = mirror.to_primal(y)
    coupling = Coupling(mirror, u)
    torch.testing.assert_close(coupling(y), coupling(y, x))
    g = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for t in (0.5, 1.0):
        allowed = -t * (g * (x - u)).sum(1) + 0.5 * t**2 * g.square().sum(1)
        after = y - t * g
        assert coupling(after) - coupling(y) <= allowed + 1e-12
        assert (
            mirror.divergence(u, mirror.to_primal(after)) - mirror.divergence(u, x) > allowed + 0.3
        )


def test_a_certificate_serves_as_a_minimiser():
    """One point serves all samples of a problem with shared data."""
    problem = SVM(*data())
    u = certify(problem, cache=False).x
    record = observed(SMD(Euclidean(), 0.05), problem, u, OneTermEach())
    assert record["gap"].shape == (K + 1, SEEDS)
    assert (record["gap"] >= -1e-6).all()
