"""Statements of users' classes: tested before they are believed, and named afterwards."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent.domains import Box, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.problems import Blur, Linear, Matrix, Problem, Term, gaussian_kernel, statements
from mirrordescent.problems.origin import defined_in_library
from mirrordescent.problems.sizes import natural_length
from mirrordescent.problems.statements import (
    ContradictoryBound,
    StatementRefuted,
    in_words,
    premises,
    require_consistent,
    require_statements,
    sample_points,
)
from mirrordescent.references import certify

DOUBLE = torch.float64


class Bowl(Problem):
    """½‖x − c‖², with mistakes on request."""

    convex = True

    def __init__(self, n=4, domain=None, factor=1.0, mu=1.0, smooth=1.0, dtype=torch.float32):
        generator = torch.Generator().manual_seed(0)
        super().__init__(2, (n,), c=torch.rand(2, n, generator=generator, dtype=dtype))
        self.domain = domain or Box(-2.0, 2.0)
        self.factor = factor
        self.mu = mu
        self.smooth = smooth
        self.evaluations = 0

    def value(self, x):
        self.evaluations += 1
        return 0.5 * (x - self.c).square().sum(-1)

    def grad(self, x):
        self.evaluations += 1
        return self.factor * (x - self.c)

    def strong_convexity(self):
        return self.mu

    def smoothness(self):
        return self.smooth


class Waves(Bowl):
    """A function that is stated to be convex and is not."""

    def value(self, x):
        return ((x - self.c).square() + torch.sin(5 * x)).sum(-1)

    def grad(self, x):
        return 2 * (x - self.c) + 5 * torch.cos(5 * x)


class Kinks(Bowl):
    """‖x − c‖₁."""

    def value(self, x):
        return (x - self.c).abs().sum(-1)

    def grad(self, x):
        return (x - self.c).sign()


def describe(domain):
    return domain.description


DOMAINS = [WholeSpace(), Box(-2.0, 2.0), Box(0.0, 255.0), PositiveOrthant(), Simplex()]


@pytest.mark.parametrize("domain", DOMAINS, ids=describe)
@pytest.mark.parametrize("n", [2, 5, 300])
def test_true_statements_survive(domain, n):
    for dtype in (torch.float32, DOUBLE):
        assert require_statements(Bowl(n, domain, dtype=dtype)) is not None
        assert (
            require_statements(Kinks(n, domain, mu=0.0, smooth=math.inf, dtype=dtype)) is not None
        )


@pytest.mark.parametrize("domain", DOMAINS, ids=describe)
@pytest.mark.parametrize("n", [2, 5, 300])
def test_wrong_gradients_are_refused_with_their_numbers(domain, n):
    for factor in (0.5, 2.0, -1.0, 1.001):
        with pytest.raises(StatementRefuted, match=r"grad\(\) of Bowl is not the gradient .* rate"):
            require_statements(Bowl(n, domain, factor, mu=0.0, smooth=9.0))


@pytest.mark.parametrize("domain", [WholeSpace(), Box(-2.0, 2.0), Simplex()], ids=describe)
@pytest.mark.parametrize("n", [2, 4, 20])
def test_functions_that_are_not_convex_are_refused(domain, n):
    with pytest.raises(StatementRefuted, match="Waves states convex = True"):
        require_statements(Waves(n, domain, mu=0.0, smooth=None))


def test_constants_are_compared_with_samples():
    with pytest.raises(
        StatementRefuted, match=r"states strong convexity μ = 1.1, but .* at most 1"
    ):
        require_statements(Bowl(mu=1.1))
    with pytest.raises(StatementRefuted, match=r"states smoothness L = 0.9, but .* by 1 times"):
        require_statements(Bowl(smooth=0.9))


def test_there_are_at_most_twenty_evaluations(monkeypatch):
    counted = []
    for name in ("value", "grad"):
        plain = getattr(Bowl, name)
        monkeypatch.setattr(
            Bowl, name, lambda self, x, plain=plain: counted.append(1) or plain(self, x)
        )
    require_statements(Bowl())
    assert len(counted) <= 20


@pytest.mark.parametrize("units", [1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("domain", [WholeSpace(), PositiveOrthant()], ids=describe)
def test_statements_are_tested_in_the_units_of_the_data(units, domain):
    """Mistakes are found, and true statements survive, at a start of 0 too."""

    def bowl(**mistakes):
        problem = Bowl(domain=domain, dtype=DOUBLE, **mistakes)
        problem.c.mul_(units)
        if isinstance(domain, PositiveOrthant):
            problem.start = lambda batch=None: units * torch.ones(2, 4, dtype=DOUBLE)
        return problem

    require_statements(bowl())
    with pytest.raises(StatementRefuted, match="not the gradient"):
        require_statements(bowl(factor=0.5, mu=0.0))
    with pytest.raises(StatementRefuted, match="strong convexity"):
        require_statements(bowl(mu=1.1))


@pytest.mark.parametrize("units", [1e-9, 1e-3, 1.0, 1e9])
def test_samples_have_the_size_of_the_start(units):
    start = units * torch.rand(3, 7, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    for domain in (WholeSpace(), PositiveOrthant()):
        plain = sample_points(domain, start / units)
        for point, expected in zip(sample_points(domain, start), plain, strict=True):
            torch.testing.assert_close(point / units, expected, rtol=1e-9, atol=1e-12)
    zero = torch.zeros_like(start)
    points = sample_points(WholeSpace(), zero, length=units)
    assert float(points[0].std()) == pytest.approx(units, rel=0.5)


def test_the_natural_length_has_the_units_of_x():
    """The minimiser of a parabola, from 0, is as far away as its gradient says."""
    for units in (1e-9, 1.0, 1e9):
        problem = Bowl(domain=WholeSpace(), dtype=DOUBLE)
        problem.c.mul_(units)
        zero = torch.zeros(2, 4, dtype=DOUBLE)
        length = problem.c.square().sum(-1).sqrt().max() / 2
        assert natural_length(problem, zero) == pytest.approx(float(length))
        assert natural_length(problem, problem.c) == 1
        kinks = Kinks(domain=WholeSpace(), smooth=None, dtype=DOUBLE)
        kinks.c.mul_(units)
        expected = float(kinks.value(zero).max()) / 2 / 2  # ‖sign‖ = 2 = √4
        assert natural_length(kinks, zero) == pytest.approx(expected)
        kinks.c.zero_()
        assert natural_length(kinks, zero) == 1
    assert natural_length(Bowl(), torch.zeros(2, 4)) == 1  # the set has a size


@pytest.mark.parametrize("domain", [WholeSpace(), Box(-1.0, 1.0)], ids=describe)
@pytest.mark.parametrize("smooth", [1.0, None])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_there_are_at_most_twenty_evaluations_from_zero(domain, smooth, dtype, monkeypatch):
    counted = []
    for name in ("value", "grad"):
        plain = getattr(Bowl, name)
        monkeypatch.setattr(
            Bowl, name, lambda self, x, plain=plain: counted.append(1) or plain(self, x)
        )
    require_statements(Bowl(domain=domain, smooth=smooth, dtype=dtype))
    assert 10 < len(counted) <= 20


@pytest.mark.parametrize("domain", DOMAINS, ids=describe)
def test_samples_lie_in_the_domain(domain):
    start = domain.inner_point(torch.zeros(3, 7, dtype=DOUBLE))
    points = sample_points(domain, start)
    assert all(bool(domain.contains(x, closed=True).all()) for x in points)
    assert all(torch.equal(a, b) for a, b in zip(points, sample_points(domain, start), strict=True))
    assert not torch.equal(points[0], points[1])


def test_a_wrong_gradient_gives_no_certificate():
    """It used to give a lower bound of 0.815 where f is 0.5, proven."""
    with pytest.raises(StatementRefuted, match="not the gradient"):
        certify(Bowl(factor=0.5, mu=0.0, smooth=1.0), cache=False)
    with pytest.raises(StatementRefuted, match="not convex"):
        certify(Waves(mu=0.0, smooth=None), cache=False)


def test_a_certificate_names_the_statements_that_it_rests_on():
    found = certify(Bowl(), cache=False)
    assert not found.proven
    assert not found.estimated
    assert found.conditional_on == (
        "f is convex",
        "grad() is its gradient",
        "f is strongly convex with μ = 1",
    )
    assert bool((found.lower <= found.value).all())
    assert found.verify(Bowl()).confirmed


class OwnGame(md.MatrixGame):
    """A game with a value of the user's, which is the same."""

    def value(self, x):
        return (x @ self.A.mT).amax(-1)


def test_a_solution_names_them_too():
    run = md.solve(OwnGame(torch.rand(3, 4)), md.PDHG(1.0), iterations=20, progress=False)
    assert run.lower is not None
    assert run.conditional_on[0] == "the saddle-point form of OwnGame belongs to its value()"
    game = md.MatrixGame(torch.rand(3, 4))
    assert md.solve(game, md.PDHG(1.0), iterations=20, progress=False).conditional_on == ()


def test_a_solve_with_bounds_tests_statements():
    class TooHigh(OwnGame):
        def lower_bound(self, u):
            return super().lower_bound(u) + 2

    class NoAdjoint(OwnGame):
        def K_adjoint(self, u):
            return 2 * super().K_adjoint(u)

    for kind, words in ((TooHigh, "lower_bound"), (NoAdjoint, "not the adjoint")):
        with pytest.raises(StatementRefuted, match=words):
            md.solve(kind(torch.rand(3, 4)), md.PDHG(1.0), iterations=5, progress=False)


def test_facts_of_the_library_are_no_conditions():
    image = md.TVDenoising(torch.rand(1, 1, 6, 6), 0.2)
    assert premises(image) == ()
    assert certify(image, 1e-3, cache=False).proven

    class Renamed(md.LeastSquares):
        """Changes nothing that matters."""

        def start(self, batch=None):
            return super().start(batch) + 1

    class Changed(md.LeastSquares):
        def value(self, x):
            return super().value(x) + x.square().sum(-1)

    arguments = torch.eye(3), torch.ones(3)
    assert premises(Renamed(*arguments)) == ()
    assert premises(Changed(*arguments), "minimiser") == (
        "minimiser() of Changed returns lower bounds",
    )
    assert "f is convex" in premises(Changed(*arguments), "gradients")
    stated = md.Function(lambda x: x.square().sum(-1), Box(0.0, 1.0))
    stated.convex = True
    assert "f is convex" in premises(stated)


class SteepFit(md.problems.SquaredError):
    """States ten times the curvature that it has."""

    def strong_convexity(self):
        return 10.0


class HalfFit(md.problems.SquaredError):
    """Forgets half of the slope of the misfit."""

    def misfit_gradient(self, z):
        return super().misfit_gradient(z) / 2


@pytest.mark.parametrize("kind", [SteepFit, HalfFit])
def test_statements_of_fits_inside_composites_are_tested(kind):
    """A solve used to return a bound above the minimum, as proven."""
    problem = md.Composite(kind(torch.randn(1, 5)), [md.L1(0.5)])
    assert len(premises(problem)) > 1
    with pytest.raises(StatementRefuted, match=kind.__name__):
        md.solve(problem, "condatvu", iterations=1, progress=False)


class BumpyLoss(md.LogisticRegression):
    """Replaces the loss by one that is not convex, without touching the value."""

    def _loss(self, margin):
        return torch.cos(margin) + 1

    def _slope(self, margin):
        return -torch.sin(margin)


def test_orthonormal_operators_of_users_are_conditions():
    operator = Matrix(torch.diag(torch.tensor([2.0, 1.0, 0.0])))
    fit = md.problems.SquaredError(torch.ones(1, 3))
    assert premises(md.Composite(fit, [md.L1(0.5, operator)])) == ()
    operator.orthonormal = True
    assert premises(md.Composite(fit, [md.L1(0.5, operator)])) == ("Matrix is orthonormal",)


def test_a_private_method_that_is_redefined_makes_the_function_the_users():
    """The value 2 was proven, and the proof confirmed, where f falls to 1.1."""
    features = torch.randn(1, 30, 2, generator=torch.Generator().manual_seed(0))
    problem = BumpyLoss(features, torch.ones(30), ridge=0.05)
    assert "f is convex" in premises(problem)
    with pytest.raises(StatementRefuted, match="not convex"):
        certify(problem, cache=False)

    class OwnHelper(md.LogisticRegression):
        def _describe(self):
            return "a method that the library does not have"

    assert premises(OwnHelper(features, torch.ones(30))) == ()


def test_conditions_in_words():
    assert f"proven {in_words(['f is convex'])}" == "proven if f is convex, as stated"
    assert in_words(["a", "b", "c"]) == "if a, b and c, as stated"


@pytest.mark.parametrize("excess", [1e-3, 1.0, math.inf])
def test_a_bound_above_a_value_is_an_internal_error_that_names_the_class(excess):
    problem = md.LeastSquares(torch.eye(3), torch.ones(3))
    value = torch.tensor([1.0, 2.0], dtype=DOUBLE)
    lower = value + torch.tensor([0.0, excess], dtype=DOUBLE)
    with pytest.raises(ContradictoryBound, match="LeastSquares"):
        require_consistent(problem, lower, value, value + 9)
    with pytest.raises(ContradictoryBound, match="sample 1"):
        require_consistent(problem, lower, value + 9, value)
    with pytest.raises(StatementRefuted, match="not true that f is convex, as stated"):
        require_consistent(problem, lower, value, value, ["f is convex"])
    require_consistent(problem, value * (1 + 1e-15), value, value)
    require_consistent(problem, value * torch.nan, value, value)
    require_consistent(problem, lower, value, value, error=lambda: 2 * (lower - value).abs())


def test_wrong_bounds_are_no_results(monkeypatch):
    problem = md.LeastSquares(torch.eye(3), torch.ones(3), Box(0.0, 0.5))

    def too_high(self, x, convexity=None):
        return self.value(x) + 1

    monkeypatch.setattr(md.LeastSquares, "bound_at", too_high)
    with pytest.raises(ContradictoryBound, match="LeastSquares"):
        certify(problem, cache=False)

    def far_too_high(self, u):
        return u.sum(-1) + 99

    monkeypatch.setattr(md.MatrixGame, "lower_bound", far_too_high)
    with pytest.raises(ContradictoryBound, match="MatrixGame"):
        md.solve(md.MatrixGame(torch.rand(3, 4)), md.PDHG(1.0), iterations=5, progress=False)


# Operators


class Convolution:
    """A convolution whose adjoint forgets to flip the kernel."""

    def __init__(self, kernel, flip=False, offset=0.0):
        self.kernel = kernel
        self.flip = flip
        self.offset = offset

    def A(self, x):
        return F.conv2d(x, self.kernel.to(x)[None, None], padding=1) + self.offset

    def A_adjoint(self, y):
        kernel = self.kernel.flip(0, 1) if self.flip else self.kernel
        return F.conv2d(y, kernel.to(y)[None, None], padding=1)


@pytest.mark.parametrize("seed", range(21))
def test_unflipped_kernels_are_refused(seed):
    kernel = torch.rand(3, 3, generator=torch.Generator().manual_seed(seed))
    y = torch.rand(2, 1, 16, 16)
    with pytest.raises(ValueError, match="A_adjoint of Convolution is not the adjoint"):
        md.SquaredError(y, Convolution(kernel))
    md.SquaredError(y, Convolution(kernel, flip=True))


def test_operators_must_be_linear():
    y = torch.rand(2, 1, 16, 16)
    with pytest.raises(ValueError, match="A of Convolution is not linear"):
        md.SquaredError(y, Convolution(torch.rand(3, 3), flip=True, offset=0.1))
    with pytest.raises(ValueError, match="A of Linear is not linear"):
        md.SquaredError(torch.rand(2, 3), Linear(lambda x: x.sin(), (3,)))


def test_operators_of_users_are_named():
    own = md.SquaredError(torch.rand(1, 1, 8, 8), Convolution(torch.rand(3, 3), flip=True))
    problem = md.Composite(own, [md.TV(0.1)])
    assert premises(problem) == ("A of Convolution is linear and A_adjoint its adjoint",)
    linear = md.SquaredError(torch.rand(2, 3), Linear(lambda x: 2 * x, (3,)))
    assert premises(md.Composite(linear, [md.L1(0.1)])) == ("the function of Linear is linear",)
    assert defined_in_library(Blur(gaussian_kernel(1.0)))
    assert not defined_in_library(Linear(lambda x: x, (3,)))


class Squares(Term):
    """(h/2)‖x‖², with a wrong conjugate on request."""

    kinked = False
    share = 1.0
    norm = 1.0

    def value(self, x):
        return self.weight / 2 * x.square().flatten(1).sum(1)

    def add_gradient(self, out, x, width):
        return out + self.weight * x

    @property
    def curvature(self):
        return self.weight

    def K(self, x):
        return {"entries": x}

    def add_adjoint(self, out, u):
        return out + u["entries"]

    def prox_conjugate(self, u, sigma):
        return {"entries": u["entries"] / (1 + sigma / self.weight)}

    def conjugate(self, u):
        return self.share * u["entries"].square().flatten(1).sum(1) / (2 * self.weight)

    def dual_gauge(self, u):
        return u["entries"].new_zeros(len(u["entries"]))


def test_terms_of_users_are_tested():
    class Wrong(Squares):
        share = 0.01

    smooth = md.SquaredError(torch.rand(2, 5, dtype=DOUBLE))
    problem = md.Composite(smooth, [Squares(1.0)])
    require_statements(problem)
    assert premises(problem) == ("conjugate() and dual_gauge() of Squares belong to its value()",)
    with pytest.raises(StatementRefuted, match=r"conjugate\(\) of Wrong is too small"):
        require_statements(md.Composite(smooth, [Wrong(1.0)]))


# Tests of statements are kept by source.


def defined(factor):
    """Return a new class, as if its source had been edited and run again."""
    namespace = {"Bowl": Bowl, "__name__": "my_problems"}
    body = f"    def grad(self, x):\n        return {factor} * (x - self.c)\n"
    exec(f"class Mine(Bowl):\n{body}", namespace)
    return namespace["Mine"]


def count_tests(monkeypatch):
    tests = []
    plain = statements.require_statements

    def counted(problem, x0=None):
        tests.append(type(problem))
        return plain(problem, x0)

    monkeypatch.setattr(statements, "require_statements", counted)
    monkeypatch.setattr(statements, "_TESTED", set())
    return tests


def test_a_class_is_tested_once_and_an_edited_one_again(monkeypatch):
    tests = count_tests(monkeypatch)
    start = torch.zeros(2, 4)
    for _ in range(2):
        statements.require_statements_once(defined("1.0")(), start)  # the same code
    assert len(tests) == 1
    with pytest.raises(StatementRefuted, match="not the gradient"):
        statements.require_statements_once(defined("0.5")(), start)
    with pytest.raises(StatementRefuted, match="not the gradient"):  # not kept
        statements.require_statements_once(defined("0.5")(), start)
    assert len(tests) == 3
    statements.require_statements_once(defined("1.0")(), start)
    assert len(tests) == 3


def test_a_method_that_is_replaced_is_tested(monkeypatch):
    tests = count_tests(monkeypatch)
    cls = defined("1.0")
    statements.require_statements_once(cls(), torch.zeros(2, 4))
    cls.grad = lambda self, x: 0.5 * (x - self.c)
    with pytest.raises(StatementRefuted):
        statements.require_statements_once(cls(), torch.zeros(2, 4))
    assert len(tests) == 2


def test_code_of_unknown_content_is_tested_every_time(monkeypatch):
    tests = count_tests(monkeypatch)
    cls = defined("1.0")
    cls.secret = object()
    for _ in range(2):
        statements.require_statements_once(cls(), torch.zeros(2, 4))
    assert len(tests) == 2


def test_the_rounding_of_large_adjoints_is_allowed():
    """In single precision, products of long vectors differ by much more than short ones."""
    game = OwnGame(torch.randn(3000, 900, generator=torch.Generator().manual_seed(0)))
    run = md.solve(game, md.PDHG(1.0), iterations=2, progress=False)
    assert run.lower is not None


def test_the_natural_length_counts_leaves_that_are_zero():
    class Split(Problem):
        """f(a, b) = 8 Σ (a − 2)² + b²/2."""

        def __init__(self):
            super().__init__(1, {"a": (3,), "b": (1,)})

        def value(self, x):
            return 8 * (x["a"] - 2).square().sum(1) + x["b"].square().sum(1) / 2

        def grad(self, x):
            return {"a": 16 * (x["a"] - 2), "b": x["b"]}

    start = {"a": torch.zeros(1, 3), "b": torch.ones(1, 1)}
    slope = math.sqrt(3 * 32**2 + 1)
    value = 8 * 3 * 4 + 0.5
    assert natural_length(Split(), start) == pytest.approx(value / slope / math.sqrt(4), rel=1e-5)
