"""Units of the data change neither statuses nor iterations, and rounding is no convergence."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent.methods import FISTA, LBFGS, PDHG, DualFISTA
from mirrordescent.solving import Rule, Status, gap, gradient_norm, relative_change, relative_gap
from mirrordescent.solving.stopping import rounding_of

DOUBLE = torch.float64
POWERS = (-40, -20, -3, 7, 20, 40)


def data(*shape, dtype=DOUBLE):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def denoising(c, dtype=DOUBLE):
    y = c * data(2, 1, 6, 5, dtype=dtype)
    return md.TVDenoising(y, torch.full((2,), 0.3 * c, dtype=dtype))


def least_squares(c, dtype=DOUBLE):
    return md.LeastSquares(data(2, 6, 3, dtype=dtype), c * data(2, 6, dtype=dtype))


RUNS = {
    "PDHG": (denoising, PDHG(0.3), gap(1e-4)),
    "dual FISTA": (denoising, DualFISTA(), gap(1e-6)),
    "FISTA": (least_squares, FISTA(), relative_change(1e-6)),
    "L-BFGS": (least_squares, LBFGS(), gradient_norm(1e-6, relative=True)),
    "gradients": (least_squares, md.GD(0.05), relative_change(1e-6)),
    "too long steps": (least_squares, md.GD(10.0), relative_change(1e-6)),
    "beyond rounding": (denoising, DualFISTA(), gap(1e-18)),
}


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("name", RUNS)
def test_units_change_nothing(name, power):
    """Multiplication by a power of two is exact, so that runs are equal bit by bit."""
    make, method, stop = RUNS[name]
    c = 2.0**power

    def run(c):
        return md.solve(make(c), method, iterations=2000, stop=stop, check_every=5)

    here, there = run(1.0), run(c)
    assert there.statuses == here.statuses
    assert there.steps.tolist() == here.steps.tolist()
    assert torch.equal(there.x, c * here.x)
    assert Status.RUNNING not in here.statuses
    expected = {"too long steps": Status.DIVERGED, "beyond rounding": Status.PRECISION}
    assert here.statuses == [expected.get(name, Status.CONVERGED)] * 2


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_any_unit_gives_the_same_iterations_up_to_rounding(scale):
    method = PDHG(0.3)
    runs = [
        md.solve(denoising(c), method, iterations=4000, stop=gap(1e-4), check_every=5)
        for c in (1.0, scale)
    ]
    assert runs[0].statuses == runs[1].statuses == [Status.CONVERGED] * 2
    assert (runs[0].steps - runs[1].steps).abs().max() <= 5


def test_small_data_in_single_precision_do_not_converge_at_once():
    """Once, the gap was compared with the rounding of values near 1."""
    problem = denoising(1e-6, torch.float32)
    solution = md.solve(problem, PDHG(0.3), iterations=3000, stop=gap(1e-3), check_every=5)
    best = md.certify(denoising(1e-6), 1e-9, cache=False)
    true_gap = relative_gap(solution.value.double(), best.lower, best.start_value)
    assert solution.statuses == [Status.CONVERGED] * 2
    assert (true_gap <= 1e-3).all()


@pytest.mark.parametrize("c", [2.0**-40, 2.0**40])
@pytest.mark.parametrize("make", [denoising, lambda c: Ridge(c * data(2, 4))])
def test_certificates_do_not_depend_on_units(make, c):
    here, there = (md.certify(make(c), 1e-6, cache=False) for c in (1.0, c))
    torch.testing.assert_close(there.relative_gap, here.relative_gap)
    assert (there.relative_gap <= 1e-6).all()
    torch.testing.assert_close(there.lower / c**2, here.lower, rtol=1e-12, atol=0)


class Ridge(md.problems.Problem):
    """½‖D(x − y)‖² + ½‖x‖², certified by gradients."""

    convex = True

    def __init__(self, y):
        super().__init__(len(y), (4,), y=y)
        self.d = torch.arange(1.0, 5.0, dtype=DOUBLE)

    def strong_convexity(self):
        return 1.0

    def value(self, x):
        return 0.5 * ((self.d * (x - self.y)).square() + x.square()).sum(1)

    def grad(self, x):
        return self.d.square() * (x - self.y) + x


def test_a_gap_below_rounding_is_no_convergence():
    """f − 1e6 cannot be measured to 1e-12 of itself in double precision."""
    problem = md.Function(lambda x: 1e6 + x.square().sum(1))
    x0 = torch.ones(1, 2, dtype=DOUBLE)
    solution = md.solve(problem, md.GD(0.1), x0, stop=gap(1e-12, lower=1e6), check_every=1)
    assert solution.statuses == [Status.PRECISION]
    assert 0 < int(solution.steps) < 1000
    assert solution.ok
    assert not Status.PRECISION.failed
    assert torch.equal(solution.x, solution.state.x), "the iterate is usable"
    assert "1 precision" in str(solution)
    fine = md.solve(problem, md.GD(0.1), x0, stop=gap(1e-3, lower=1e6), check_every=1)
    assert fine.statuses == [Status.CONVERGED]


def test_the_error_of_rounding_counts_against_convergence():
    x0 = torch.ones(1, 1, dtype=DOUBLE)
    value = torch.ones(1, dtype=DOUBLE)
    constant = md.Function(lambda x: 1 + 0 * x.sum(1))
    error = constant.value_error(x0, value) + 2 * rounding_of(value)
    for share, reached in ((1.5, True), (2.5, False)):
        problem = md.Function(lambda x, share=share: 1 + share * error + 0 * x.sum(1))
        stop = gap(1.0, lower=1.0, start_value=value + 3 * error)
        solution = md.solve(problem, md.GD(0.1), x0, iterations=1, stop=stop)
        assert solution.statuses == [Status.CONVERGED if reached else Status.BUDGET]


def test_a_change_below_rounding_is_no_convergence():
    x0 = torch.ones(1, 2)
    problem = md.Function(lambda x: (x - 3).square().sum(1))
    for tolerance, status in ((1e-9, Status.PRECISION), (1e-5, Status.CONVERGED)):
        solution = md.solve(problem, md.GD(0.3), x0, stop=relative_change(tolerance), check_every=1)
        assert solution.statuses == [status]


def test_statuses_keep_their_numbers_and_have_an_order():
    assert [int(status) for status in Status] == list(range(9))
    failed = [False] * 3 + [True] * 3 + [False] + [True] * 2
    assert [status.failed for status in Status] == failed
    ranked = sorted(Status, key=lambda status: status.severity)
    assert [str(status) for status in ranked] == [
        "converged",
        "precision",
        "running",
        "budget",
        "diverged",
        "non finite",
        "left domain",
        "infeasible",
        "unbounded",
    ]


def test_a_relative_gap_has_no_unit():
    values = torch.tensor([0.0, 2.0, 1.0, 1.0], dtype=DOUBLE)
    lower = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=DOUBLE)
    start = torch.tensor([0.0, 3.0, 1.0, 1.0], dtype=DOUBLE)
    for c in (2.0**-80, 1.0, 2.0**80):
        found = relative_gap(c * values, c * lower, c * start)
        assert found.tolist() == [0.0, 0.5, 0.0, 1.0]


@pytest.mark.parametrize("c", [2.0**-60, 1.0, 2.0**60])
def test_a_run_from_an_optimal_start_has_not_diverged(c):
    """f(x₀) = 0 is no scale; f at the problem's own start is, or at 0."""
    for problem in (
        md.Quadratic(torch.ones(2, dtype=DOUBLE), c * torch.ones(1, 2, dtype=DOUBLE)),
        md.Function(lambda x: (x - c).square().sum(1)),
    ):
        x0 = torch.full((1, 2), c, dtype=DOUBLE)
        moving = md.solve(problem, md.Adam(0.3 * c), x0 * (1 + 1e-12), iterations=20, check_every=1)
        assert moving.statuses == [Status.BUDGET]
        gone = md.solve(problem, md.GD(100.0), x0 * (1 + 1e-12), iterations=200, check_every=1)
        assert gone.statuses == [Status.DIVERGED]


def test_without_any_scale_the_first_value_is_one():
    bowl = md.Function(lambda x: x.square().sum(1))
    x0 = torch.zeros(1, 2, dtype=DOUBLE)

    class Kick(md.GD):
        def update(self, state, grad):
            new = super().update(state, grad)
            return new._replace(x=new.x + 1e-6 * (state.k == 0))

    assert md.solve(bowl, Kick(0.1), x0, iterations=9, check_every=1).statuses == [Status.BUDGET]
    assert md.solve(bowl, Kick(9.0), x0, iterations=99, check_every=1).statuses == [Status.DIVERGED]


def test_samples_stop_by_rules_of_users_too():
    rule = Rule(
        lambda look: torch.tensor([True, False]),
        undecidable=lambda look: torch.tensor([True, True]),
    )
    solution = md.solve(least_squares(1.0), md.GD(0.01), iterations=5, stop=rule)
    assert solution.statuses == [Status.CONVERGED, Status.PRECISION]
