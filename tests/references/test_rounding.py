"""Bounds in single precision stay on their side of what they bound."""

from __future__ import annotations

import copy

import pytest
import torch

from mirrordescent import (
    PDHG,
    SVM,
    LeastSquares,
    LogisticRegression,
    Quadratic,
    TVInpainting,
    certify,
    solve,
)
from mirrordescent._internal.rounding import rounded_down, rounded_up
from mirrordescent.problems.beam import ParallelBeam
from mirrordescent.problems.operators import Blur
from mirrordescent.problems.tomography import PoissonTomography


def draw(seed):
    return torch.Generator().manual_seed(seed)


def test_numbers_are_rounded_to_their_side():
    numbers = torch.randn(1000, generator=draw(0), dtype=torch.float64) * 10.0 ** torch.arange(
        -30, 30, 0.06
    )
    down, up = (each(numbers, torch.float32) for each in (rounded_down, rounded_up))
    assert (down.double() <= numbers).all()
    assert (up.double() >= numbers).all()
    assert (up <= down.nextafter(torch.tensor(torch.inf))).all(), "and no further than need be"
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e300, -1e300], dtype=torch.float64)
    largest = torch.finfo(torch.float32).max
    assert rounded_down(ends, torch.float32).tolist()[:2] == [torch.inf, -torch.inf]
    assert rounded_down(ends, torch.float32).tolist()[3:] == [largest, -torch.inf]
    assert rounded_up(ends, torch.float32).tolist()[3:] == [torch.inf, -largest]
    exact = torch.tensor([0.5, -3.0, 0.0], dtype=torch.float64)
    assert torch.equal(rounded_down(exact, torch.float32), exact.float())
    slope = torch.tensor([1 / 3], dtype=torch.float64, requires_grad=True)
    rounded_down(slope, torch.float32).sum().backward()
    assert slope.grad.item() == 1.0


@pytest.mark.parametrize("C", [0.1, 30.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_a_machine_in_single_precision(C, seed):
    features = torch.randn(120, 8, generator=draw(seed))
    labels = (features[:, 0] + torch.randn(120, generator=draw(seed + 100))).sign()
    problem = SVM(features, labels, C)
    x, lower = problem.minimiser(1e-6)
    assert (x.dtype, lower.dtype) == (torch.float32, torch.float32)
    precise = copy.deepcopy(problem).double()
    optimum = certify(precise, 1e-9, cache=False)
    assert float(lower) <= float(optimum.value)
    assert float(precise.value(x.double())) - float(lower) <= 1e-5 * C


def test_the_bound_of_tomography_in_single_precision():
    """At a minimiser the bound is tight.

    Sums in single precision have larger rounding errors than the bound allows.
    """
    beam = ParallelBeam(10, angles=6, detectors=15)
    for seed in range(2):
        image = torch.rand(2, 1, 10, 10, generator=draw(seed))
        counts = torch.poisson(beam.A(image) * 100 + 1, generator=draw(seed))
        problem = PoissonTomography(counts, beam, exposure=100.0, weight=0.5)
        optimum = certify(copy.deepcopy(problem).double(), 1e-5, cache=False)
        bound = problem.bound_at(optimum.x.float())
        assert bound.dtype is torch.float32
        assert (bound.double() <= optimum.value).all()
        assert (bound.double() >= optimum.value - 1).all()


def test_the_bound_behind_a_blur_in_single_precision():
    y = torch.rand(4, 1, 8, 8, generator=draw(0))
    kernel = torch.rand(3, 3, generator=draw(1))
    problem = TVInpainting(y, None, 0.15, operator=Blur(kernel / kernel.sum()))
    optimum = certify(copy.deepcopy(problem).double(), 1e-8, cache=False)
    found = solve(problem, PDHG(problem.ratio), iterations=3000, check_every=100, progress=False)
    assert (found.lower.double() <= optimum.value).all()
    assert (found.lower.double() >= optimum.value * (1 - 1e-4)).all()


def test_constants_are_rounded_to_their_side():
    """Against singular values in double precision, of matrices in single precision."""
    for seed in range(10):
        A = torch.randn(60, 40, generator=draw(seed))
        values = torch.linalg.svdvals(A.double())
        problem = LeastSquares(A, torch.zeros(60))
        assert problem.smoothness() >= float(values.max()) ** 2
        assert problem.strong_convexity() <= float(values.min()) ** 2
        assert problem.smoothness() == pytest.approx(float(values.max()) ** 2, rel=1e-12)
        assert problem.strong_convexity() == pytest.approx(float(values.min()) ** 2, rel=1e-10)
        square = Quadratic(A.T @ A, torch.zeros(40))
        exact = torch.linalg.eigvalsh((A.T @ A).double())
        assert square.smoothness() >= float(exact.max())
        assert square.strong_convexity() <= float(exact.min())
        logistic = LogisticRegression(A, torch.ones(60))
        assert logistic.smoothness() >= float(values.max()) ** 2 / 240
