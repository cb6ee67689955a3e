"""What each method must equal, to rounding, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from mirrordescent import AMD, ASMD, GD, MD, SMD, LeastSquares, Quadratic, solve
from mirrordescent.domains import Box, PositiveOrthant, Simplex
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
from mirrordescent.oracles import Exact
from mirrordescent.schedules import RootReciprocal

EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(1)
    A = torch.randn(3, 8, 5, generator=generator, dtype=torch.float64)
    b = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    return LeastSquares(A, b)


def inside(mirror, seed=0):
    raw = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    match mirror.primal_domain:
        case PositiveOrthant():
            return raw.exp()
        case Simplex():
            return raw.softmax(-1)
        case Box() as box:
            return box.lower + (box.upper - box.lower) * raw.sigmoid()
    return raw


def iterate(problem, method, x0, steps):
    """The points at which a method asks for gradients."""
    state = method.init(x0)
    points = []
    for _ in range(steps):
        points.append(state.x)
        state = method.step(problem, state, Exact())
    return torch.stack([*points, state.x])


def test_md_with_the_euclidean_map_is_gradient_descent(problem):
    x = x0 = inside(Euclidean())
    for _ in range(50):
        x = x - 0.01 * problem.grad(x)
    for method in (MD(Euclidean(), 0.01), GD(0.01)):
        torch.testing.assert_close(iterate(problem, method, x0, 50)[-1], x, **EXACT)


def test_md_on_the_simplex_is_exponentiated_gradient(problem):
    x = x0 = inside(SimplexEntropy())
    for k in range(50):
        x = x * torch.exp(-0.05 / (k + 1) ** 0.5 * problem.grad(x))
        x = x / x.sum(-1, keepdim=True)
    method = MD(SimplexEntropy(), RootReciprocal(0.05))
    torch.testing.assert_close(iterate(problem, method, x0, 50)[-1], x, **EXACT)


def test_md_with_a_diagonal_map_is_preconditioned_gradient_descent(problem):
    d = torch.tensor([0.5, 1.0, 2.0, 3.0, 10.0], dtype=torch.float64)
    x = x0 = inside(Euclidean())
    for _ in range(50):
        x = x - 0.01 * problem.grad(x) / d
    torch.testing.assert_close(iterate(problem, MD(Diagonal(d), 0.01), x0, 50)[-1], x, **EXACT)


STRONGLY_CONVEX = [
    Euclidean(),
    Diagonal(2.0),
    SquaredPNorm(1.5),
    SimplexEntropy(),
    Logit(-3.0, 3.0),
]


@pytest.mark.parametrize("mirror", STRONGLY_CONVEX, ids=lambda m: type(m).__name__)
def test_smd_equals_md_for_exact_maps(problem, mirror):
    x0 = inside(mirror.double())
    primal = iterate(problem, MD(mirror, 0.01), x0, 30)
    dual = iterate(problem, SMD(mirror, 0.01), x0, 30)
    torch.testing.assert_close(primal, dual, **EXACT)


@pytest.mark.parametrize("mirror", STRONGLY_CONVEX, ids=lambda m: type(m).__name__)
def test_amd_storages_agree_for_exact_maps(problem, mirror):
    x0 = inside(mirror.double())
    runs = [iterate(problem, AMD(mirror, 0.005, storage=s), x0, 30) for s in ("primal", "dual")]
    torch.testing.assert_close(*runs, **EXACT)


@pytest.mark.parametrize("cap", [None, 5])
def test_amd_follows_algorithm_1(problem, cap):
    """Against the algorithm as printed, with the logit map written out by hand and R Euclidean on
    the box.
    """
    mirror = Logit(-3.0, 3.0)
    t = 0.005
    r = 4.0
    gamma = 1.5
    x_tilde = z_tilde = inside(mirror)
    for k in range(20):
        k = k if cap is None else min(k, cap)
        lam = r / (r + k)
        x = lam * z_tilde + (1 - lam) * x_tilde
        g = problem.grad(x)
        y = torch.log((z_tilde + 3) / (3 - z_tilde)) - k * t / r * g
        z_tilde = -3 + 6 / (1 + torch.exp(-y))
        x_tilde = (x - gamma * t * g).clamp(-3, 3)
    lam = r / (r + (20 if cap is None else cap))
    final = lam * z_tilde + (1 - lam) * x_tilde
    method = AMD(mirror, t, r=r, gamma=gamma, storage="primal", cap=cap)
    solution = solve(problem, method, inside(mirror), iterations=20)
    torch.testing.assert_close(solution.x, final, **EXACT)
    method = AMD(mirror, t, r=r, gamma=gamma, returns="x_tilde", cap=cap)
    torch.testing.assert_close(
        solve(problem, method, inside(mirror), iterations=20).x, x_tilde, **EXACT
    )


def test_asmd_follows_algorithm_3(problem):
    """Against the algorithm as printed, with w = (A_{k+1} − A_k)/A_{k+1}: ½, ⅔, ½, 0.4 …"""
    x = inside(Euclidean())
    y = 2 * x  # ∇ψ of the diagonal map 2
    weights = []
    for k in range(20):
        A_k = k * (k + 1) / 2 if k else 0.5
        A_next = (k + 1) * (k + 2) / 2
        s = (k + 1) ** 1.5
        w = (A_next - A_k) / A_next
        weights.append(w)
        x = w * (y / 2) + (1 - w) * x
        y = y - 0.01 * (A_next - A_k) / s * problem.grad(x)
    assert weights[:4] == pytest.approx([1 / 2, 2 / 3, 1 / 2, 0.4])
    ours = iterate(problem, ASMD(Diagonal(2.0).double(), 0.01), inside(Euclidean()), 19)[-1]
    torch.testing.assert_close(ours, x, **EXACT)


def test_asmd_with_constant_t_runs_on_the_scaled_function():
    generator = torch.Generator().manual_seed(0)
    d, centre = (torch.rand(6, generator=generator, dtype=torch.float64) for _ in range(2))
    x0 = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    scaled = iterate(Quadratic(0.3 * d, centre), ASMD(Euclidean()), x0, 40)
    stepped = iterate(Quadratic(d, centre), ASMD(Euclidean(), 0.3), x0, 40)
    torch.testing.assert_close(scaled, stepped, **EXACT)


PROX_MAPS = [
    Euclidean(),
    Diagonal(3.0),
    PNorm(1.5),
    PNorm(3.0),
    SquaredPNorm(1.5),
    NegativeEntropy(),
    SimplexEntropy(),
    HyperbolicEntropy(0.5),
    Burg(),
    Logit(-1.0, 2.0),
    Euclidean(Simplex()),
]


@pytest.mark.parametrize("mirror", PROX_MAPS, ids=str)
def test_a_step_is_the_prox_mapping(mirror):
    """P_x(v) = argmin ⟨v, x'⟩ + B(x', x), minimised by a general-purpose constrained solver."""
    x = inside(mirror.double())[:1]
    v = 0.2 * torch.randn(1, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def objective(flat):
        point = torch.tensor(flat, dtype=torch.float64).unsqueeze(0).requires_grad_()
        value = ((v * point).sum() + mirror.divergence(point, x)).squeeze()
        value.backward()
        return value.item(), point.grad.squeeze(0).numpy()

    domain = mirror.primal_domain
    bounds = None
    constraints = ()
    if isinstance(domain, (PositiveOrthant, Simplex)):
        bounds = [(1e-9 if isinstance(domain, PositiveOrthant) else 0.0, None)] * 5
    if isinstance(domain, Box):
        bounds = [(domain.lower + 1e-9, domain.upper - 1e-9)] * 5
    if isinstance(domain, Simplex):
        constraints = {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like}
        if isinstance(mirror, SimplexEntropy):
            bounds = [(1e-9, None)] * 5
    best = minimize(
        objective,
        x.squeeze(0).numpy() if not isinstance(mirror, Euclidean) else np.full(5, 0.2),
        jac=True,
        method="SLSQP",
        bounds=bounds,
        constraints=constraints,
        options={"ftol": 1e-16, "maxiter": 500},
    )
    torch.testing.assert_close(
        mirror.step(x, v).squeeze(0), torch.tensor(best.x), rtol=1e-5, atol=1e-6
    )


def test_amd_keeps_constrained_domains():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(20, 10, generator=generator, dtype=torch.float64)
    b = torch.randn(1, 20, generator=generator, dtype=torch.float64)
    for mirror in (
        SimplexEntropy(),
        Euclidean(Simplex()),
        NegativeEntropy(),
        Logit(0.0, 1.0),
        Burg(),
    ):
        problem = LeastSquares(A, b)
        x0 = torch.full((1, 10), 0.1, dtype=torch.float64)
        points = iterate(problem, AMD(mirror, 0.02), x0, 300)
        assert mirror.primal_domain.contains(points.flatten(0, 1), closed=True).all()
