"""Lower bounds never exceed the minimum, whatever the condition, signs and units of the data."""

from __future__ import annotations

import warnings

import pytest
import torch

import mirrordescent as md
from mirrordescent.domains import Box, PositiveOrthant, Simplex
from mirrordescent.problems import TV, Composite, Counts, SquaredError
from mirrordescent.problems.operators import Matrix

DOUBLE = torch.float64


def tensor(*numbers):
    return torch.tensor(numbers, dtype=DOUBLE)


@pytest.fixture(autouse=True)
def _gaps_may_be_large():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "certified to a relative gap")
        yield


def hilbert(n):
    i = torch.arange(n, dtype=DOUBLE)
    return 1 / (i[:, None] + i + 1)


@pytest.mark.parametrize("n", [12, 14, 16])
def test_least_squares_with_an_ill_conditioned_matrix_prove_no_more_than_the_minimum(n):
    """The minimum is 0, because a Hilbert matrix is invertible."""
    problem = md.LeastSquares(hilbert(n), (-1.0) ** torch.arange(n, dtype=DOUBLE))
    found = md.certify(problem, cache=False)
    assert found.lower.item() == 0
    assert found.value.item() < 5


def test_a_polynomial_fit_of_high_degree_proves_no_more_than_the_minimum():
    t = torch.linspace(0, 1, 40, dtype=DOUBLE)
    A = t[:, None] ** torch.arange(20)
    problem = md.LeastSquares(A, (t > 0.5).double())
    found = md.certify(problem, cache=False)
    Q = torch.linalg.qr(torch.cos(torch.arange(20) * torch.acos(2 * t[:, None] - 1))).Q
    minimum = (problem.b - Q @ (Q.T @ problem.b)).square().sum() / 2
    assert found.lower.item() <= minimum.item()


def test_least_squares_in_general_position_are_solved_to_rounding():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(3, 9, 4, generator=generator, dtype=DOUBLE)
    b = torch.randn(3, 9, generator=generator, dtype=DOUBLE)
    for units in (1e-12, 1.0, 1e12):
        found = md.certify(md.LeastSquares(A * units, b), cache=False)
        assert (found.relative_gap <= 1e-12).all()


def test_non_negative_least_squares_with_mixed_signs():
    """The minimum is 0, at x = (37, 31, 20)/21."""
    A = tensor([-2.0, 3.0, -2.0], [2.0, -1.0, 1.0])
    problem = md.LeastSquares(A, tensor(-1.0, 3.0), PositiveOrthant())
    generator = torch.Generator().manual_seed(0)
    points = 3 * torch.rand(3000, 3, generator=generator, dtype=DOUBLE)
    assert problem.bound_at(points).max().item() == 0
    assert md.certify(problem, cache=False).lower.item() == 0


@pytest.mark.parametrize("domain", [PositiveOrthant(), Simplex(), Box(-0.2, 0.3)])
def test_one_degenerate_sample_does_not_spoil_the_others(domain):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(2, 6, 3, generator=generator, dtype=DOUBLE)
    A[1] = 0
    b = torch.randn(2, 6, generator=generator, dtype=DOUBLE)
    alone = md.certify(md.LeastSquares(A[:1], b[:1], domain), cache=False)
    problem = md.LeastSquares(A, b, domain)
    lower = problem.bound_at(alone.x.expand(2, -1), problem.strong_convexity())
    assert lower[0].item() == pytest.approx(alone.value.item(), rel=1e-4)
    assert lower[1].item() <= b[1].square().sum().item() / 2


@pytest.mark.parametrize("units", [1e-12, 1.0, 1e12])
def test_a_quadratic_is_convex_only_if_all_eigenvalues_are_non_negative(units):
    centre = tensor(1.0, 2.0)
    turn = tensor([0.6, -0.8], [0.8, 0.6])
    for curvatures, convex in (((1.0, -1e-8), False), ((1.0, 1e-8), True), ((1.0, 0.0), True)):
        diagonal = units * tensor(*curvatures)
        assert md.Quadratic(diagonal, centre).convex is convex
        if curvatures[1]:
            dense = turn @ diagonal.diag() @ turn.T
            assert md.Quadratic((dense + dense.T) / 2, centre).convex is convex
    indefinite = md.Quadratic(units * tensor(1.0, -1e-8), centre)
    assert indefinite.minimiser(1e-6) is None
    assert indefinite.bound_at(torch.zeros(1, 2, dtype=DOUBLE)) is None
    assert indefinite.never_below is None
    with pytest.raises(TypeError, match="cannot be certified"):
        md.certify(indefinite, cache=False)


def test_a_singular_quadratic_is_decided_in_rational_arithmetic():
    ones = torch.ones(3, 3, dtype=DOUBLE)
    assert md.Quadratic(ones, torch.zeros(3, dtype=DOUBLE)).convex is True
    ones[2, 2] -= 2**-50
    assert md.Quadratic(ones, torch.zeros(3, dtype=DOUBLE)).convex is False
    large = torch.ones(60, 60, dtype=DOUBLE)
    assert md.Quadratic(large, torch.zeros(60, dtype=DOUBLE)).convex is None


@pytest.mark.parametrize("fused", [None, False])
def test_images_changed_in_place_are_bounded_by_their_new_range(fused):
    y = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    problem = md.TVDenoising(y.clone(), 0.1)
    problem.smooth.y.mul_(-3).add_(10)
    fresh = md.TVDenoising(10 - 3 * y, 0.1)
    minimum = md.certify(fresh, cache=False).value
    for method in (md.PDHG(), md.DualFISTA()):
        run = md.solve(problem, method, iterations=200, fused=fused, progress=False)
        assert (run.lower <= minimum).all()
        assert (run.lower >= 0.9 * minimum).all()
    shared = y.clone()
    problem = md.TVDenoising(shared, 0.1)
    shared.numpy()[...] = 10 - 3 * y.numpy()  # torch does not notice this change
    run = md.solve(problem, md.PDHG(), iterations=200, fused=fused, progress=False)
    assert (run.lower <= minimum).all()


def test_bright_images_with_small_differences_are_bounded_relative_to_their_width():
    """Rounding of y − w/(2s) is a large part of the width of the box."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(0, 50, (4, 1, 6, 6), generator=generator).double()
    y = 1 + steps * 2.0**-52
    reference = md.certify(md.TVDenoising(steps, 4.0), 1e-9, cache=False)
    minimum = reference.value * 2.0**-104
    problem = md.TVDenoising(y, 4.0 * 2.0**-52)
    for fused in (None, False):
        run = md.solve(problem, md.DualFISTA(), iterations=300, fused=fused, progress=False)
        assert (run.lower <= minimum).all()


def test_games_with_many_replies_in_single_precision():
    generator = torch.Generator().manual_seed(0)
    for m in (2, 50, 2000):
        A = torch.randn(m, 3, generator=generator)
        A = A - A.mean()
        problem = md.MatrixGame(A)
        u = torch.rand(20, m, generator=generator)
        lower = problem.lower_bound(u)
        exact = md.MatrixGame(A.double())
        reply = exact.domain.project(u.double())
        reply = reply / reply.sum(-1, keepdim=True)
        best = (reply @ A.double()).amin(-1)
        assert (lower.double() <= best).all()
        assert (lower.double() >= best - 1e-6 * A.abs().max()).all()


@pytest.mark.parametrize("exponent", [-30, -10, 0, 10, 30])
def test_the_bound_of_a_constant_image_is_0(exponent):
    """The minimum of f is 0, without rounding."""
    generator = torch.Generator().manual_seed(0)
    scale = 2.0**exponent
    y = torch.randint(1, 9, (8, 1, 1, 1), generator=generator) * scale / 8
    y = y.double().expand(8, 1, 4, 4).clone()
    for weight in (scale, 1e-3 * scale):
        problem = Composite(SquaredError(y), [TV(weight)])
        for size in (1e-6, 1.0, 1e3):
            noise = scale * size * torch.randn(3, *y.shape, generator=generator, dtype=DOUBLE)
            u = {
                "vertical": noise[1, :, :, :-1].clone(),
                "horizontal": noise[2, ..., :-1].clone(),
            }
            for x in (y + noise[0], y + noise[0].mean((-2, -1), keepdim=True)):
                assert (problem.bound_at(x) <= 0).all()
                assert (problem.bound_of_pair(x, u) <= 0).all()


def test_means_of_channels_with_a_small_gain_are_charged_to_the_bound():
    """The minimum is 0. The gain is below the cut-off of the pseudo-inverse that balances means."""
    generator = torch.Generator().manual_seed(0)
    gains = tensor(1.0, 2.0**-28)
    operator = Matrix(gains.repeat_interleave(4).diag(), (2, 2, 2))
    for _ in range(20):
        levels = torch.randint(1, 9, (1, 2, 1, 1), generator=generator) / gains.reshape(1, 2, 1, 1)
        x = levels.expand(1, 2, 2, 2)
        problem = Composite(SquaredError(operator.A(x), operator), [TV(1.0)])
        near = x * (1 + 0.1 * torch.randn(x.shape, generator=generator, dtype=DOUBLE))
        assert (problem.bound_at(near) <= 0).all()


def test_the_bound_of_counts_near_the_data_is_precise():
    """Near y = Ax + b the divergence is a small difference of large numbers."""
    generator = torch.Generator().manual_seed(0)
    y = 1 + 1e-8 * torch.rand(16, 1, 4, 4, generator=generator, dtype=DOUBLE)
    problem = Composite(Counts(y, background=0.5), [TV(1e-12)])
    x = y - 0.5
    x = x + 1e-10 * torch.randn(x.shape, generator=generator, dtype=DOUBLE)
    excess = x + 0.5 - y
    expected = (excess.square() / 2).sum((1, 2, 3))
    torch.testing.assert_close(problem.smooth.value(x), expected, rtol=1e-4, atol=0)
    v, size = problem.smooth.conjugate(torch.full_like(y, 1e-12))
    conjugate = ((y - 0.5) * 1e-12 + y * 0.5e-24).sum((1, 2, 3))
    torch.testing.assert_close(v, conjugate, rtol=1e-12, atol=0)
    assert (size < 1e-9).all()
