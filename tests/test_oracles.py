"""Oracles: unbiased, of the stated variance, reproducible, explicit about randomness."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from mirrordescent import (
    SVM,
    LeastSquares,
    LogisticRegression,
    MatrixGame,
    Quadratic,
    TVDenoising,
    TVInpainting,
)
from mirrordescent.oracles import (
    Default,
    Epochs,
    Exact,
    FirstOrder,
    InTurn,
    Minibatch,
    Noisy,
    Oracle,
    Relative,
    Rounded,
    Scaled,
    Smoothed,
    WrappedOracle,
    spread_out,
)
from mirrordescent.problems import ParallelBeam, PoissonTomography
from mirrordescent.schedules import Reciprocal


def finite_sums():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([1, 1, -1, 1, -1, -1], dtype=torch.float64)
    batched = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    return [
        LeastSquares(features, labels),
        LeastSquares(batched, torch.stack([labels, -labels])),
        LogisticRegression(features, labels, ridge=0.1),
        SVM(features, labels),
        SVM(batched, labels),
    ]


@pytest.mark.parametrize("problem", finite_sums(), ids=lambda p: type(p).__name__)
def test_the_mean_over_all_subsets_is_the_gradient(problem):
    x = torch.randn(
        2, *problem.sample_shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    subsets = [torch.tensor(s) for s in itertools.combinations(range(6), 2)]
    mean = torch.stack([problem.grad_of_terms(x, s) for s in subsets]).mean(0)
    torch.testing.assert_close(mean, problem.grad(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [4, 0.6])
def test_minibatch_draws_that_many_distinct_terms(size, generator):
    problem = finite_sums()[0]
    drawn = []
    problem.grad_of_terms = lambda x, subset: drawn.append(subset) or x
    for k in range(20):
        Minibatch(size)(problem, torch.zeros(1, 3), k, generator)
    assert all(len(s.unique()) == len(s) == 4 for s in drawn)
    assert torch.cat(drawn).unique().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("size", [2, 0.5, 4])
def test_in_an_epoch_every_term_serves_once(size, generator):
    problem = finite_sums()[0]
    drawn = []
    problem.grad_of_terms = lambda x, subset: drawn.append(subset) or x
    oracle = Epochs(size)
    count = {2: 2, 0.5: 3, 4: 4}[size]
    epochs = 20
    whole = 6 // count
    for k in range(epochs * whole):
        oracle(problem, torch.zeros(1, 3), k, generator)
    assert {len(each) for each in drawn} == {count}
    passes = [torch.cat(drawn[whole * e : whole * (e + 1)]) for e in range(epochs)]
    assert all(len(each.unique()) == len(each) for each in passes)
    assert len({tuple(each.tolist()) for each in passes}) > epochs / 2, (
        "the order changes from epoch to epoch"
    )
    assert torch.cat(passes).unique().tolist() == list(range(6)), (
        "what is left over is not always the same"
    )
    first = list(drawn)
    drawn.clear()
    torch.rand(3, generator=generator)
    for k in range(
        3, epochs * whole
    ):  # continued in the middle of an epoch, whatever was drawn meanwhile
        Epochs(size)(problem, torch.zeros(1, 3), k, generator)
    assert all(torch.equal(a, b) for a, b in zip(drawn, first[3:], strict=True))
    drawn.clear()
    oracle(problem, torch.zeros(1, 3), 0, torch.Generator().manual_seed(99))
    oracle(problem, torch.zeros(1, 3), 0, generator)
    assert torch.equal(drawn[1], first[0]), "another generator has its own order"


@pytest.mark.parametrize("problem", finite_sums(), ids=lambda p: type(p).__name__)
def test_an_epoch_adds_up_to_the_gradient(problem, generator):
    x = torch.randn(
        2, *problem.sample_shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    epoch = torch.stack([Epochs(2)(problem, x, k, generator) for k in range(3, 6)])
    torch.testing.assert_close(epoch.mean(0), problem.grad(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("problem", finite_sums(), ids=lambda p: type(p).__name__)
def test_a_cycle_in_turn_adds_up_to_the_gradient(problem):
    x = torch.randn(
        2, *problem.sample_shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    cycle = torch.stack([InTurn()(problem, x, k) for k in range(4, 10)])
    torch.testing.assert_close(cycle.mean(0), problem.grad(x), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(cycle[0], cycle[1])


def test_relative_gradients_have_no_unit():
    """With twice the counts and exposure, gradients are twice as large, and relative ones are as
    they were.
    """
    beam = ParallelBeam(6, angles=4, detectors=9)
    y = torch.poisson(
        torch.full((2, 1, 4, 9), 20.0, dtype=torch.float64),
        generator=torch.Generator().manual_seed(0),
    )
    one, two = (
        PoissonTomography(c * y, beam, exposure=10.0 * c, background=c, weight=3.0 * c)
        for c in (1.0, 2.0)
    )
    x = one.start()
    torch.testing.assert_close(x, two.start())
    torch.testing.assert_close(2 * one.grad(x), two.grad(x))
    for base in (Exact(), InTurn()):
        torch.testing.assert_close(Relative(base)(one, x, 1), Relative(base)(two, x, 1))
    torch.testing.assert_close(Relative()(one, x, 0), one.grad(x) / one.sensitivity)
    assert Relative(Minibatch(2)).stochastic
    with pytest.raises(TypeError, match="a problem with a sensitivity"):
        Relative()(finite_sums()[0], x, 0)
    with pytest.raises(TypeError, match="not a finite sum"):
        InTurn()(MatrixGame(torch.eye(2)), torch.ones(1, 2), 0)


def test_noise_has_the_stated_size(generator):
    problem = Quadratic(torch.ones(100_000), torch.zeros(100_000))
    x = torch.ones(1, 100_000)
    noise = Noisy(0.05)(problem, x, 0, generator) - problem.grad(x)
    assert float(noise.mean()) == pytest.approx(0, abs=5 * 0.05 / 100_000**0.5)
    assert float(noise.std()) == pytest.approx(0.05, rel=0.02)


def test_same_seed_same_numbers():
    problem = finite_sums()[2]
    x = torch.ones(1, 3, dtype=torch.float64)
    oracle = Noisy(0.1, oracle=Minibatch(3))
    draws = [oracle(problem, x, 0, torch.Generator().manual_seed(s)) for s in (5, 5, 6)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_smoothed_follows_its_schedule_and_tends_to_the_gradient():
    problem = TVDenoising(
        torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )
    x = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(
        Smoothed(Reciprocal(0.5))(problem, x, 4), problem.smoothed_grad(x, 0.1)
    )
    torch.testing.assert_close(Smoothed(1e-9)(problem, x, 0), Exact()(problem, x, 0))


@pytest.mark.parametrize("weight", [0.0015, 0.15, 15.0])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_rounded_kinks_have_the_curvature_asked_for(weight, scale):
    """Where all differences lie within the width the Hessian is 2s·I + a·DᵀD; it is never more,
    whatever λ is.
    """
    problem = TVDenoising(torch.zeros(1, 1, 4, 5, dtype=torch.float64), weight, scale)
    D = torch.autograd.functional.jacobian(
        lambda x: torch.cat([d.flatten() for d in problem.K(x).values()]), problem.y
    )
    D = D.reshape(-1, 20)
    bound = 2 * scale * torch.eye(20, dtype=torch.float64) + 3.0 * D.T @ D
    oracle = Rounded(Reciprocal(6.0))  # curvature 3 at k = 1
    for x in (torch.zeros_like(problem.y), torch.rand_like(problem.y)):
        hessian = torch.autograd.functional.jacobian(lambda p: oracle(problem, p, 1), x).reshape(
            20, 20
        )
        assert torch.linalg.eigvalsh(bound - hessian).min() >= -1e-12
        if not x.any():
            torch.testing.assert_close(hessian, bound)


@pytest.mark.parametrize("width", [0.05, 1.0])
def test_smoothed_gradient_has_the_same_numbers_without_a_graph(width):
    generator = torch.Generator().manual_seed(3)
    y, x = torch.rand(2, 2, 3, 7, 6, generator=generator, dtype=torch.float64)
    problem = TVInpainting(y, torch.rand(7, 6, generator=generator) > 0.2)
    with torch.no_grad():
        fast = problem.smoothed_grad(x, width)
    torch.testing.assert_close(fast, problem.smoothed_grad(x, width), rtol=1e-13, atol=1e-15)


def kinked():
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    return [
        SVM(features, torch.tensor([1, 1, -1, -1, 1], dtype=torch.float64)),
        TVDenoising(torch.rand(1, 2, 4, 5, generator=generator, dtype=torch.float64)),
        MatrixGame(torch.randn(6, 4, generator=generator, dtype=torch.float64)),
    ]


@pytest.mark.parametrize("problem", kinked(), ids=lambda p: type(p).__name__)
def test_smoothed_gradients_are_gradients(problem):
    """Their Jacobian is symmetric and positive semidefinite, and of size at most of order
    1/width.
    """
    x = torch.randn(
        1, *problem.sample_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    jacobian = torch.autograd.functional.jacobian(lambda p: problem.smoothed_grad(p, 0.5), x)
    jacobian = jacobian.reshape(x.numel(), x.numel())
    torch.testing.assert_close(jacobian, jacobian.T)
    eigenvalues = torch.linalg.eigvalsh(jacobian)
    assert eigenvalues.min() >= -1e-12
    assert 0 < eigenvalues.max() <= 100 / 0.5


def test_what_does_not_fit_is_said(generator):
    quadratic = Quadratic(torch.ones(2), torch.zeros(2))
    x = torch.zeros(1, 2)
    with pytest.raises(TypeError, match="Quadratic is not a finite sum"):
        Minibatch(1)(quadratic, x, 0, generator)
    with pytest.raises(TypeError, match="no smoothed gradient"):
        Smoothed(0.1)(quadratic, x, 0)
    with pytest.raises(TypeError, match="Rounded needs the height of the kinks"):
        Rounded(0.1)(quadratic, x, 0)
    with pytest.raises(ValueError, match=r"Noisy is random: pass generator"):
        Noisy(0.1)(quadratic, x, 0)
    with pytest.raises(ValueError, match="exceeds the 6 terms"):
        Minibatch(7)(finite_sums()[0], torch.zeros(1, 3, dtype=torch.float64), 0, generator)
    for bad in (0, -1, 2.5):
        with pytest.raises(ValueError, match="Minibatch needs"):
            Minibatch(bad)
    with pytest.raises(ValueError, match="sigma"):
        Noisy(-1.0)


ORACLES = {  # whether its answers prove bounds, and whether it is random
    Exact(): (True, False),
    Default(): (True, False),
    Smoothed(0.1): (True, False),
    Rounded(1.0): (True, False),
    Minibatch(1): (False, True),
    Epochs(1): (False, True),
    InTurn(): (False, False),
    Noisy(0.1): (False, True),
    Relative(): (False, False),
    Relative(Minibatch(1)): (False, True),
    Scaled(torch.ones(1)): (False, False),
    Scaled(torch.ones(1), Noisy(0.1)): (False, True),
    FirstOrder(): (False, False),
}


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda o: type(o).__name__)
def test_what_oracles_prove_and_which_are_random(oracle):
    """Bounds on min f follow from gradients of f, rounded or not, and from nothing else."""
    assert (oracle.proves, oracle.stochastic) == ORACLES[oracle]


def test_which_oracle_is_asked_where_a_method_brings_its_own():
    own = Smoothed(0.1)
    default = Default()
    exact = Exact()
    noisy = Noisy(0.1)
    assert default.combine_with(None) is default
    assert default.combine_with(own) is own
    assert exact.combine_with(None) is exact
    with pytest.raises(TypeError, match="brings its own oracle, Smoothed, and cannot use Exact"):
        exact.combine_with(own)
    assert noisy.combine_with(None) is noisy
    around = noisy.combine_with(own)
    assert (type(around), around.oracle, around.sigma) == (Noisy, own, 0.1)
    assert isinstance(noisy.oracle, Default), "the oracle itself is left as it was"
    assert Noisy(0.1, Scaled(torch.ones(1))).combine_with(own).oracle.oracle is own
    given = Minibatch(2)
    assert WrappedOracle(given).oracle is given
    assert isinstance(WrappedOracle().oracle, Default)
    with pytest.raises(TypeError, match="brings its own"):
        Noisy(0.1, Exact()).combine_with(own)


def test_every_sample_has_its_own_factor():
    problem = Quadratic(torch.tensor([1.0, 2.0]), torch.zeros(2))
    x = torch.tensor([[1.0, 1.0], [3.0, 1.0]])
    found = Scaled(torch.tensor([2.0, 0.5]))(problem, x, 0)
    assert found.tolist() == [[2.0, 4.0], [1.5, 1.0]]


def test_first_order_gradients_are_constants():
    problem = Quadratic(torch.tensor([1.0, 2.0]), torch.zeros(2))
    x = torch.ones(1, 2, requires_grad=True)
    assert Exact()(problem, x, 0).requires_grad
    found = FirstOrder()(problem, x, 0)
    assert not found.requires_grad
    assert found.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("size", "drawn"), [(1, 1), (6, 6), (1.0, 6), (0.5, 3), (0.51, 4), (0.01, 1), (1 / 6, 1)]
)
def test_sizes_count_terms_or_are_fractions_of_them(size, drawn, generator):
    problem = finite_sums()[0]
    seen = []
    problem.grad_of_terms = lambda x, subset: seen.append(len(subset)) or x
    Minibatch(size)(problem, torch.zeros(1, 3), 0, generator)
    assert seen == [drawn]


def test_the_edges_of_sizes_and_of_noise(generator):
    for size in (0.0, 1.01, -0.5, 0, -1):
        with pytest.raises(ValueError, match="Minibatch needs"):
            Minibatch(size)
    for sigma in (-0.1, math.inf, math.nan):
        with pytest.raises(ValueError, match="sigma"):
            Noisy(sigma)
    problem = Quadratic(torch.ones(2), torch.zeros(2))
    x = torch.ones(1, 2)
    assert torch.equal(Noisy(0.0)(problem, x, 0, generator), problem.grad(x))


def test_terms_in_turn_are_all_of_them_with_neighbours_far_apart():
    """A cycle with steps near 0.618 of its length, the golden ratio: every term once, and then the
    same again.
    """
    for terms in (*range(1, 40), 100, 144):
        order = [spread_out(k, terms) for k in range(2 * terms)]
        assert sorted(order[:terms]) == list(range(terms))
        assert order[terms:] == order[:terms]
        stride = (order[1] - order[0]) % terms if terms > 1 else 0
        assert terms < 8 or abs(stride / terms - 0.618) < 0.2
    assert [spread_out(k, 144) for k in range(3)] == [0, 89, 34]


class Asked(Oracle):
    """Remembers what it was asked."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, problem, x, k, generator=None):
        self.seen.append((k, generator))
        return x


@pytest.mark.parametrize(
    "wrap", [Relative, lambda o: Noisy(0.1, o), lambda o: Scaled(torch.ones(1), o), FirstOrder]
)
def test_what_is_around_passes_on_when_it_is_asked_and_by_whom(wrap, generator):
    inner = Asked()
    problem = Quadratic(torch.ones(2), torch.zeros(2))
    problem.sensitivity = torch.ones(2)
    wrap(inner)(problem, torch.ones(1, 2), 7, generator)
    assert inner.seen == [(7, generator)]
