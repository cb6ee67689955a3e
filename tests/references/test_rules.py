"""Stopping rules of certificates, stored entries and estimates, with invented numbers."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

import mirrordescent as md
from mirrordescent import Function, LeastSquares, MatrixGame, Quadratic, TVDenoising, TVInpainting
from mirrordescent.domains import Box, Simplex
from mirrordescent.methods import FISTA, LBFGS, PDHG, Adam, CondatVu, DualFISTA, GradientMethod
from mirrordescent.problems import LogisticRegression, Problem
from mirrordescent.references import Certificate, certificate, certify, estimate, register
from mirrordescent.references.certificate import _matches, _small_gap, primal_dual

DOUBLE = torch.float64
EPS = torch.finfo(DOUBLE).eps


def double(*numbers):
    return torch.tensor(numbers, dtype=DOUBLE)


def image(seed=0, **options):
    y = torch.rand(2, 1, 5, 4, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    return TVDenoising(y, **{"weight": 0.2, **options})


# Rules


def stops(rule, best, lower, start):
    look = SimpleNamespace(best_value=double(best), lower=double(lower), start_value=double(start))
    return rule(look).item()


@pytest.mark.parametrize(
    ("weight", "start", "allowed"),
    [
        (0.01, 5.0, 0.01 * 4.0),  # f(x₀) − lower is less than f of the constant image
        (0.01, 500.0, None),  # and here it is more
    ],
)
def test_a_saddle_point_is_solved_to_the_smaller_of_two_gaps(weight, start, allowed):
    """The gap is relative to the smaller of f(x₀) − lower and f of the constant image."""
    problem = image(weight=weight, scale=30.0)
    flat = problem.y.mean((-2, -1), keepdim=True).expand_as(problem.y)
    constant = float(problem.value(flat)[:1])
    assert 4.0 < constant < 499.0
    allowed = 0.01 * constant if allowed is None else allowed
    single = TVDenoising(problem.y[:1], weight=weight, scale=30.0)
    rule = _small_gap(single, 0.01)
    assert stops(rule, 1 + 0.99 * allowed, 1.0, start)
    assert not stops(rule, 1 + 1.01 * allowed, 1.0, start)


def test_rounding_errors_end_a_run_whatever_the_tolerance():
    """An epsilon of 1 + |f(x₀)|."""
    rule = _small_gap(TVDenoising(image().y[:1]), 1e-30)
    for start in (3.0, -3.0):
        assert stops(rule, 1 + 4 * EPS, 1.0, start)
        assert not stops(rule, 1 + 5 * EPS, 1.0, start)
    game = _small_gap(MatrixGame(torch.eye(2, dtype=DOUBLE)), 0.1)  # which has no constant image
    assert stops(game, 1.09, 1.0, 2.0)
    assert not stops(game, 1.11, 1.0, 2.0)


def test_which_method_solves_which_saddle_point():
    """F strongly convex, however little; F with a prox; F with a gradient alone."""
    for scale in (0.1, 5.0):
        problem = image(scale=scale)
        assert type(primal_dual(problem, problem.saddle_point())) is DualFISTA
    holes = TVInpainting(image().y, torch.eye(5, 4, dtype=DOUBLE), 0.2)
    for ratio in (0.7, 2.5):
        chosen = primal_dual(holes, SimpleNamespace(F_convexity=0.0, proximable=True, ratio=ratio))
        assert (type(chosen), chosen.ratio, chosen.relaxation) == (PDHG, ratio, 1.8)
        chosen = primal_dual(holes, SimpleNamespace(F_convexity=0.0, proximable=False, ratio=ratio))
        assert (type(chosen), chosen.ratio, chosen.relaxation) == (CondatVu, ratio, 1.0)


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 3.0, 30.0])
def test_a_ratio_that_is_not_known_is_the_best_of_five(scale, monkeypatch):
    """The dual variable scales with f, so that scaling f moves the best ratio from 50 to 0.1."""
    monkeypatch.setattr(certificate, "TRIAL_ITERATIONS", 30)
    holes = TVInpainting(image().y, torch.eye(5, 4, dtype=DOUBLE), 0.2, scale=scale)
    gaps = {}
    found = primal_dual(holes, SimpleNamespace(F_convexity=0.0, proximable=True, ratio=None))
    for ratio in (0.1, 0.5, 2.0, 10.0, 50.0):
        run = md.solve(holes, PDHG(ratio, 1.8), iterations=30, check_every=30, progress=False)
        gaps[ratio] = float((run.best_value - run.lower).max())
    assert found.ratio == min(gaps, key=gaps.get)
    assert max(gaps.values()) > 2 * min(gaps.values()), "or else nothing was chosen"


# What is kept


def entry(**changed):
    numbers = {
        "x": torch.zeros(2, 3),
        "value": double(1.0, 2.0),
        "lower": double(0.5, 2.0),
        "start_value": double(3, 4),
    }
    return {name: each for name, each in {**numbers, **changed}.items() if each is not None}


class Known(Problem):
    """Of a batch of 2, and of samples of 3 numbers, or of anything."""

    def __init__(self, batch=2, shape=(3,)):
        super().__init__(batch, shape)


@pytest.mark.parametrize(
    ("changed", "suits"),
    [
        ({}, True),
        ({"proven": torch.tensor(True)}, True),
        ({"proven": torch.ones(2)}, False),
        ({"value": None}, False),
        ({"x": None}, False),
        ({"other": torch.ones(2)}, False),
        ({"x": torch.zeros(2, 4)}, False),
        ({"x": torch.zeros(3, 3)}, False),
        ({"lower": double(0.5)}, False),
        ({"start_value": double(3.0, 4.0, 5.0)}, False),
        ({"lower": double(1.1, 2.0)}, False),
        ({"lower": double(1.0, 2.0 * (1 + 0.8e-9))}, True),  # 10⁻⁹ of the value is rounding
        ({"lower": double(1.0, 2.0 * (1 + 1.2e-9))}, False),
        ({"value": double(-1.0, 2.0), "lower": double(-1 + 0.8e-9, 2.0)}, True),
        ({"value": double(-1.0, 2.0), "lower": double(-1 + 1.2e-9, 2.0)}, False),
    ],
)
def test_what_was_kept_is_looked_at_before_it_is_used(changed, suits):
    assert _matches(Known(), entry(**changed)) is suits


def test_a_problem_of_unknown_shape_takes_any_shape_but_not_any_numbers():
    assert _matches(Known(None, None), entry())
    assert _matches(Known(None, None), entry(x=torch.zeros(2, 7, 7)))
    assert not _matches(Known(None, None), entry(x=torch.zeros(3, 7)))
    assert not _matches(Known(3, None), entry())


def test_a_certificate_tells_its_relative_gap():
    found = Certificate(torch.zeros(2, 1), double(1.5, 2.0), double(1.0, 2.0), double(3.0, 4.0))
    assert found.relative_gap.tolist() == [0.25, 0.0]
    assert found.proven


class Bowl(Quadratic):
    """For which a certificate is made up."""


@pytest.fixture
def bowl():
    problem = Bowl(double(1.0, 1.0), torch.zeros(2, 2, dtype=DOUBLE))
    yield problem
    certificate._CERTIFIERS.pop(Bowl, None)


@pytest.mark.parametrize(("gap", "warned"), [(0.9e-3, False), (1.1e-3, True)])
def test_a_tolerance_that_one_sample_misses_is_warned_of(bowl, gap, warned):
    """f(x₀) = 1 at the start that the problem chooses, and f = gap at x for one of two samples."""
    bowl.start = lambda batch=None: torch.ones(2, 2, dtype=DOUBLE)
    x = torch.zeros(2, 2, dtype=DOUBLE)
    x[1, 0] = (2 * gap) ** 0.5
    asked = []
    register(
        Bowl,
        lambda problem, tolerance: asked.append(tolerance) or (x, torch.zeros(2, dtype=DOUBLE)),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = certify(bowl, 1e-3, cache=False)
    assert asked == [1e-3]
    assert [str(each.message) for each in caught] == (
        ["certified to a relative gap of 1.1e-03 only, not 1.0e-03"] if warned else []
    )
    assert all(each.filename == __file__ for each in caught), "it points to the call"
    assert found.start_value.tolist() == [1.0, 1.0]
    torch.testing.assert_close(found.value, double(0.0, gap))
    assert found.lower.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, 2.0])
def test_tolerances_are_shares(bad):
    with pytest.raises(ValueError, match=r"tolerance must be in \(0, 1\)"):
        certify(image(), bad)
    assert certify(image(), 0.5, cache=False).proven


def test_certificates_are_kept_unless_they_depend_on_a_start(bowl, monkeypatch):
    made = []
    compute = certificate._compute
    monkeypatch.setattr(
        certificate, "_compute", lambda *arguments: made.append(1) or compute(*arguments)
    )
    for _ in range(2):
        certify(bowl)
    assert len(made) == 1
    certify(bowl, 1e-3)
    assert len(made) == 2, "another tolerance is another certificate"
    certify(bowl, cache=False)
    certify(bowl, x0=torch.ones(2, 2, dtype=DOUBLE))
    assert len(made) == 4


def test_users_classes_inherit_what_was_registered(bowl):
    class Steeper(Bowl):
        pass

    register(
        Bowl,
        lambda problem, tolerance: (problem.centre + 0.0, torch.full((2,), -7.0, dtype=DOUBLE)),
    )
    with pytest.warns(UserWarning, match="only"):
        found = certify(Steeper(double(1.0, 1.0), torch.zeros(2, 2, dtype=DOUBLE)), cache=False)
    assert found.lower.tolist() == [-7.0, -7.0]


@pytest.mark.parametrize("domain", [Simplex(), Box(-0.2, 0.3)], ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("residual", [0.0, 1e4])
def test_bounds_from_gradients_are_relative_to_what_can_be_gained(domain, residual):
    """Not to the value, of which a residual that no x changes may be the greatest part."""
    generator = torch.Generator().manual_seed(0)
    A, b = (torch.randn(*shape, generator=generator, dtype=DOUBLE) for shape in ((2, 4, 6), (2, 4)))
    A = torch.cat(
        [A * torch.logspace(0, 2, 6, dtype=DOUBLE), torch.zeros(2, 1, 6, dtype=DOUBLE)], 1
    )
    problem = LeastSquares(A, torch.cat([b, torch.full((2, 1), residual, dtype=DOUBLE)], 1), domain)
    loose, tight = (certify(problem, tolerance, cache=False) for tolerance in (0.3, 1e-4))
    assert (loose.relative_gap <= 0.3).all()
    assert (tight.relative_gap <= 1e-4).all()
    assert loose.relative_gap.max() > 1e-4, "a loose tolerance is not worked for"
    assert (loose.lower <= tight.value).all()


class Bounded(Problem):
    """Proves whatever bound is told by x."""

    def __init__(self, domain=None):
        super().__init__(1, (1,))
        if domain is not None:
            self.domain = domain

    def start(self, batch=None):
        return double([0.5])

    def strong_convexity(self):
        return 0.25

    def bound_at(self, x, convexity=None):
        assert convexity == 0.25
        return x[:, 0]


@pytest.mark.parametrize(("domain", "kind"), [(None, LBFGS), (Box(0.0, 1.0), FISTA)])
def test_bounds_from_gradients_end_a_run_at_the_best_of_them(domain, kind, monkeypatch):
    """Stop at f − best ≤ tolerance·(f(x₀) − best), or at 64 epsilons of 1 + |f(x₀)|.

    A bound that was proven once stays valid.
    """
    calls = []

    def noted(problem, method, **options):
        calls.append((method, options["stop"][0]))
        return SimpleNamespace(best_x=problem.start())

    monkeypatch.setattr(certificate, "solve", noted)
    first = certificate._solve_with_gradient_bounds(Bounded(domain), 0.01).lower
    assert first.tolist() == [0.5]
    certificate._solve_with_gradient_bounds(Bounded(domain), 1e-30)
    (method, rule), (_, exact) = calls
    assert type(method) is kind

    def stopped(rule, bound, best, start):
        look = SimpleNamespace(
            k=20, x=double([bound]), best_value=double(best), start_value=double(start)
        )
        return rule(look).item()

    assert not stopped(rule, 0.8, 1.03, 3.0)
    assert stopped(rule, 1.0, 1.019, 3.0)
    assert stopped(rule, 0.2, 1.019, 3.0), "the bound of the look before is as good as ever"
    assert not stopped(rule, 0.2, 1.021, 3.0)
    for start in (3.0, -3.0):
        assert stopped(exact, 1.0, 1 + 64 * EPS, start), "64 machine epsilons of f are rounding"
        assert not stopped(exact, 1.0, 1 + 65 * EPS, start)


def test_without_finite_bounds_or_a_start_nothing_is_proven_from_gradients():
    unbounded = Bounded()
    unbounded.start = lambda batch=None: double([-torch.inf])
    assert certificate._solve_with_gradient_bounds(unbounded, 0.01) is None
    assert certificate._solve_with_gradient_bounds(LINE, 0.01) is None


# Estimates


class ScriptState(NamedTuple):
    k: int
    x: torch.Tensor


class Down(GradientMethod):
    """Moves once, by a given amount for every sample, and then stays."""

    def __init__(self, *moves):
        super().__init__()
        self.moves = double(*moves)[:, None]
        self.starts = []

    def init(self, x0, problem=None):
        self.starts.append(x0.flatten().tolist())
        return ScriptState(0, x0)

    def update(self, state, grad):
        return ScriptState(state.k + 1, state.x - self.moves if state.k == 0 else state.x)


LINE = Function(lambda x: x[:, 0])


def estimated(monkeypatch, *solvers, start=(10.0, 10.0)):
    monkeypatch.setattr(
        sys.modules[estimate.__module__], "_solvers", lambda *arguments: list(solvers)
    )
    x, value, lower = estimate(LINE, double(*start)[:, None], iterations=3)
    assert x[:, 0].tolist() == value.tolist()
    return value, lower


def test_an_estimate_takes_the_best_of_every_sample_and_goes_on_with_the_best_method(monkeypatch):
    """The second method gains 8 in total and the first 5.

    The second is therefore restarted four times from the best points of both.
    """
    first = Down(5.0, 0.0)
    second = Down(1.0, 7.0)
    value, lower = estimated(monkeypatch, first, second)
    assert first.starts == [[10.0, 10.0]]
    assert second.starts == [[10.0, 10.0], [5.0, 3.0], [4.0, -4.0], [3.0, -11.0], [2.0, -18.0]]
    assert value.tolist() == [1.0, -25.0]
    torch.testing.assert_close(lower, value - 1e-6 * (10.0 - value), rtol=1e-15, atol=0)


def test_it_stops_where_a_fresh_start_gains_next_to_nothing(monkeypatch):
    """A billionth of what was gained, for all samples; what is worse is not taken."""

    class Once(Down):
        def update(self, state, grad):
            gained = len(self.starts) > 1
            small = torch.tensor(self.then, dtype=DOUBLE)[:, None] if gained else self.moves
            return ScriptState(state.k + 1, state.x - small if state.k == 0 else state.x)

    for then, runs in (
        ([0.9e-8, -1.0], 2),
        ([0.9e-8, 0.9e-8], 2),
        ([1.2e-8, 0.0], 5),
        ([0.0, 1.2e-8], 5),
    ):
        method = Once(10.0, 10.0)
        method.then = then
        value, _ = estimated(monkeypatch, method)
        assert len(method.starts) == runs
        assert (value <= double(0.0, 0.0)).all()


def test_where_nothing_is_gained_an_estimate_is_below_by_rounding(monkeypatch):
    value, lower = estimated(monkeypatch, Down(0.0, -1.0), start=(3.0, 1e6))
    assert value.tolist() == [3.0, 1e6]
    torch.testing.assert_close(value - lower, 4 * EPS * value, rtol=0.2, atol=0)


@pytest.mark.parametrize("size", [1.0, 0.0, 4.0])
def test_the_classical_solvers(size):
    """FISTA everywhere; without constraints also L-BFGS, and Adam with decaying steps.

    The first steps of Adam have the size of the start.
    """
    from mirrordescent.references.estimate import _solvers

    x0 = {"a": double([size, -size]), "b": double([0.5 * size])}
    bounded = LeastSquares(torch.eye(2, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE), Box(0.0, 1.0))
    assert [type(each) for each in _solvers(bounded, x0["a"], 10)] == [FISTA]
    found = _solvers(LINE, x0, 10)
    assert [type(each) for each in found] == [FISTA, LBFGS, *[Adam] * 4]
    for method, rate in zip(found[2:], (1.0, 0.1, 0.01, 1e-3), strict=True):
        for k in (1, 5, 10):
            assert float(method.t(k)) == pytest.approx(rate * (size or 1.0) * (1 - (k - 0.5) / 10))


def test_a_solver_stops_if_rounding_hides_the_gap(monkeypatch):
    """At an optimal start the gap is the charge for rounding, and no step makes it smaller."""
    features = torch.randn(2, 8, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    features = torch.cat([features, features], 1)
    labels = torch.cat([torch.ones(2, 8), -torch.ones(2, 8)], 1).double()
    problem = LogisticRegression(features, labels, 1e-3)  # the minimiser is 0
    gradients = []
    grad = LogisticRegression.grad

    def counted(self, x):
        gradients.append(1)
        return grad(self, x)

    monkeypatch.setattr(LogisticRegression, "grad", counted)
    with pytest.warns(UserWarning, match="certified to a relative gap of"):
        found = certify(problem, 1e-6, cache=False)
    assert found.proven
    assert float((found.value - found.lower).max()) < 1e-12
    assert len(gradients) < 4000
