"""The taut string and the interior-point method against optimality conditions and other solvers."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent import kernels
from mirrordescent.methods import TautString, TrendInteriorPoint
from mirrordescent.problems.differences import differences

DOUBLE = torch.float64


def series(kind, batch=4, channels=2, length=60, dtype=DOUBLE):
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(batch, channels, length, generator=generator, dtype=DOUBLE)
    if kind == "steps":
        y = (y.cumsum(-1) > 0).double() * 3 + 0.3 * y
    elif kind == "ties":
        y = y.round()
    elif kind == "constant":
        y = torch.full_like(y, 0.7)
    elif kind == "ramp":
        y = torch.arange(length, dtype=DOUBLE).expand_as(y).clone()
    elif kind == "bright":
        y = 1e5 + y
    return y.to(dtype)


KINDS = ("noise", "steps", "ties", "constant", "ramp", "bright")
LENGTHS = (1, 2, 3, 7, 40)


@pytest.mark.usefixtures("every_level")
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", [0.01, 0.5, 4.0, 1e3])
def test_the_taut_string_is_optimal(kind, weight, compiled):
    """x = y − Kᵀu/(2s), |u| ≤ sλ, and u = sλ sign(Kx) where Kx ≠ 0."""
    if compiled and not kernels.available():
        pytest.skip("no kernels")
    for length in LENGTHS:
        weights = torch.tensor([1.0, 0.5, 2.0, 1.0], dtype=DOUBLE) * weight
        problem = md.GridTV(series(kind, length=length), weights, 0.7, axis_weights=(1.5,))
        solution = md.solve(problem, TautString(), iterations=1, fused=compiled, progress=False)
        u = solution.state.u
        size = problem.y.abs().max() + weight
        torch.testing.assert_close(
            solution.x, problem.y - problem.K_adjoint(u) / 1.4, rtol=0, atol=1e-12 * float(size)
        )
        limit = problem.kink.reshape(-1, 1, 1)
        excess = 1e-11 * float(size)
        assert bool((u["horizontal"].abs() <= limit + excess).all())
        d = differences(solution.x)["horizontal"]
        jumps = d.abs() > 1e-9 * float(size)
        expected = (limit * d.sign())[jumps]
        torch.testing.assert_close(u["horizontal"][jumps], expected, rtol=1e-6, atol=1e-9)
        assert bool((solution.value - solution.lower <= 1e-9 * (1 + solution.value)).all())


@pytest.mark.usefixtures("every_level")
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_trend_filtering_proves_a_small_gap(kind, compiled):
    """The gap is the distance to a bound, which other tests compare with exact minima."""
    if compiled and not kernels.available():
        pytest.skip("no kernels")
    for length in LENGTHS:
        for weight in (0.01, 1.0, 1e3) if compiled else (0.5,):
            y = series(kind, batch=2, length=length)
            problem = md.TrendFiltering(y, weight, 0.7, axis_weights=(1.5,))
            solution = md.solve(
                problem, TrendInteriorPoint(), iterations=1, fused=compiled, progress=False
            )
            start = problem.value(y)
            rounding = 1e-10 * (1 + y.abs().max())
            assert bool((solution.value - solution.lower <= 1e-7 * start + rounding).all())
            assert bool((solution.value <= start + rounding).all())


def test_trend_filtering_against_osqp():
    osqp = pytest.importorskip("osqp")
    sp = pytest.importorskip("scipy.sparse")
    import numpy as np

    y = series("steps", batch=1, channels=1)[0, 0]
    n = len(y)
    solution = md.solve(
        md.TrendFiltering(y[None, None], 2.0), TrendInteriorPoint(), iterations=1, progress=False
    )
    D = sp.csc_matrix(np.diff(np.eye(n), n=2, axis=0))
    # min ½‖x − y‖² + (λ/2)Σt, −t ≤ Dx ≤ t
    P = sp.block_diag([sp.eye(n), sp.csc_matrix((n - 2, n - 2))], format="csc")
    q = np.concatenate([-y.numpy(), np.full(n - 2, 1.0)])
    rows = sp.bmat([[D, -sp.eye(n - 2)], [D, sp.eye(n - 2)]], format="csc")
    infinite = np.full(n - 2, np.inf)
    solver = osqp.OSQP()
    solver.setup(
        P,
        q,
        rows,
        np.concatenate([-infinite, np.zeros(n - 2)]),
        np.concatenate([np.zeros(n - 2), infinite]),
        verbose=False,
        eps_abs=1e-9,
        eps_rel=1e-9,
        max_iter=100_000,
    )
    x = solver.solve(raise_error=True).x[:n]
    torch.testing.assert_close(solution.x[0, 0], torch.from_numpy(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_the_methods_prove_small_gaps_in_single_precision(kind):
    y = series(kind, batch=3, channels=1, dtype=torch.float32)
    for problem, method in (
        (md.GridTV(y, 1.0), TautString()),
        (md.TrendFiltering(y, 1.0), TrendInteriorPoint()),
    ):
        solution = md.solve(problem, method, iterations=1, stop=md.gap(1e-3), progress=False)
        good = (md.Status.CONVERGED, md.Status.PRECISION)
        assert all(status in good for status in solution.statuses)


def test_trend_filtering_of_an_image_by_pdhg_is_proven():
    y = series("steps", batch=2, channels=1, length=36).reshape(2, 1, 6, 6)
    problem = md.TrendFiltering(y, 0.5, axis_weights=(1.0, 0.5))
    method = md.PDHG(problem.ratio, 1.8)
    solution = md.solve(problem, method, iterations=4000, stop=md.gap(1e-5), progress=False)
    assert solution.statuses == [md.Status.CONVERGED] * 2


def test_other_problems_are_errors():
    image = md.GridTV(torch.zeros(1, 1, 3, 3))
    with pytest.raises(TypeError, match="TautString needs a GridTV on signals"):
        md.solve(image, TautString(), iterations=1)
    with pytest.raises(TypeError, match="huber=0"):
        md.solve(md.GridTV(torch.zeros(1, 1, 3), huber=0.1), TautString(), iterations=1)
