"""Rates of convergence on named problems."""

from __future__ import annotations

import math

import pytest
import torch

from mirrordescent import (
    AMD,
    ASMD,
    MD,
    SMD,
    Averaged,
    MatrixGame,
    ProjectedGradient,
    Quadratic,
    solve,
)
from mirrordescent.domains import Simplex
from mirrordescent.mirrors import Euclidean, SimplexEntropy
from mirrordescent.oracles import Noisy

N = 4000


def hard_quadratic(dtype=torch.float64):
    """λᵢ = (i/n)² and x₀ − x* = λᵢ^(−1/4)·N(0, 1): curvatures of all sizes, all of them excited."""
    eigenvalues = (torch.arange(1, N + 1, dtype=torch.float64) / N) ** 2
    noise = torch.randn(1, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x0 = eigenvalues**-0.25 * noise
    return Quadratic(eigenvalues.to(dtype), torch.zeros(N, dtype=dtype)), x0.to(dtype)


def spaced(first, last, count=25):
    return sorted({round(first * (last / first) ** (i / count)) for i in range(count + 1)})


def slope(trace):
    """Least-squares slope of log(mean gap) against log k."""
    k = torch.tensor(trace.iterations, dtype=torch.float64).log()
    gap = trace.values.double().mean(1).log()
    k = k - k.mean()
    gap = gap - gap.mean()
    return float((k * gap).sum() / k.square().sum())


@pytest.mark.parametrize("method", [MD(Euclidean(), 1.0), SMD(Euclidean(), 1.0)], ids=["MD", "SMD"])
def test_mirror_descent_is_of_order_one_over_k(method):
    problem, x0 = hard_quadratic()
    solution = solve(problem, method, x0, iterations=1000, trace=spaced(20, 1000))
    assert -1.2 <= slope(solution.trace) <= -0.85


def test_accelerated_mirror_descent_is_of_order_one_over_k_squared():
    problem, x0 = hard_quadratic()
    method = AMD(Euclidean(), 1.0, returns="x_tilde")
    assert slope(solve(problem, method, x0, iterations=1000, trace=spaced(20, 1000)).trace) <= -1.8


def test_accelerated_stochastic_mirror_descent_is_of_order_one_over_root_k():
    """64 seeds are 64 samples of one batch: the noise is drawn entry by entry."""
    problem, x0 = hard_quadratic(torch.float32)
    solution = solve(
        problem,
        ASMD(Euclidean()),
        x0.expand(64, -1).contiguous(),
        iterations=4000,
        oracle=Noisy(1.0),
        generator=torch.Generator().manual_seed(0),
        trace=spaced(200, 4000),
        check_every=4000,
    )
    assert -0.65 <= slope(solution.trace) <= -0.4


def test_entropy_beats_euclid_on_a_large_simplex():
    """Section 1.3: √(2 log n)·‖g‖_∞/√k against √2·‖g‖₂/√k, each with the constant step its theory
    asks for.

    With k steps, mirror descent takes t = √(2α·D/k)/L, where D bounds B(x*, x₀): log n for the
    entropy with L = ‖g‖_∞, and ½·max‖x* − x₀‖² ≤ ½ for the projection with L = ‖g‖₂. Compared are
    the ergodic averages, which is what the rates are about.
    """
    n = 2000
    steps = 400
    A = torch.randint(0, 2, (200, n), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    game = MatrixGame(A)
    entropic = MD(SimplexEntropy(), math.sqrt(2 * math.log(n) / steps))
    euclidean = ProjectedGradient(Simplex(), math.sqrt(1 / steps) / math.sqrt(n))
    values = {
        name: float(solve(game, Averaged(method), iterations=steps).value)
        for name, method in (("entropic", entropic), ("euclidean", euclidean))
    }
    start = float(game.value(game.start()))
    # min f ≥ 0 here up to the value of the game, which is within 1/√n of 0 for a random sign matrix
    assert values["entropic"] < values["euclidean"] < start
