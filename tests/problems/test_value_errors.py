"""Stated rounding errors of f are bounds, and hidden gaps are not called converged."""

from __future__ import annotations

import math

import pytest
import torch
from campaigns.exact import exact_value

import mirrordescent as md
from mirrordescent._internal.rounding import positive_sum_error
from mirrordescent.problems import (
    L1,
    TV,
    Blur,
    Composite,
    Counts,
    Haar,
    LeastSquares,
    LogisticRegression,
    MatrixGame,
    Quadratic,
    Ridge,
    Roughness,
    SquaredError,
)
from mirrordescent.solving import Status, gap
from mirrordescent.trees import sum_per_sample

DOUBLE = torch.float64


@pytest.mark.parametrize("terms", [1, 7, 64, 1000, 4097, 300_000, 5_000_000])
def test_sums_of_positive_terms_are_as_precise_as_stated(terms):
    generator = torch.Generator().manual_seed(terms)
    for x in (torch.rand(1, terms, generator=generator), torch.full((1, terms), 0.1)):
        total = sum_per_sample(x)
        exact = math.fsum(x.flatten().tolist())
        assert abs(float(total) - exact) <= float(positive_sum_error(total, terms))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_errors_of_values_are_bounds(dtype):
    """Compare with values that have 60 digits."""
    generator = torch.Generator().manual_seed(0)
    for scale in (1e-12, 1.0, 1e9):
        y = scale * torch.rand(2, 2, 6, 4, generator=generator, dtype=DOUBLE)
        bright = y + 1e4 * scale
        for data in (y, bright):
            data = data.to(dtype)
            kernel = torch.rand(3, 3, generator=generator).to(dtype)
            x = data + 1e-3 * scale * torch.rand(data.shape, generator=generator).to(dtype)
            for problem in (
                md.TVDenoising(data, 0.1 * scale, isotropic=True, coupled=True),
                md.TVDenoising(data, 0.1 * scale, huber=0.1 * scale),
                md.TVInpainting(data, None, 0.1 * scale, operator=Blur(kernel)),
                Composite(SquaredError(data), [L1(scale, Haar(1)), Ridge(0.3)]),
                Composite(Counts(data, background=scale), [TV(0.3), Roughness(0.1 / scale)]),
            ):
                value = problem.value(x)
                error = problem.value_error(x, value)
                for sample in range(len(x)):
                    exact = exact_value(problem, sample, x[sample])
                    assert abs(float(value[sample]) - exact) <= float(error[sample])


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_errors_of_matrix_problems_are_bounds(dtype):
    generator = torch.Generator().manual_seed(1)
    for scale in (1e-9, 1.0, 1e9):
        A = torch.randn(2, 6, 3, generator=generator, dtype=DOUBLE).mul(scale)
        A[..., 1] = A[..., 0] * (1 + 1e-5)
        A = A.to(dtype)
        x = torch.tensor([[1.0, -1.0, 0.5], [3.0, 2.0, 1.0]], dtype=dtype)
        b = (A @ x.unsqueeze(-1)).squeeze(-1)
        labels = torch.where(b > 0, 1.0, -1.0).to(dtype)
        square = (A.mT @ A + (A.mT @ A).mT) / 2
        for problem in (
            LeastSquares(A, b),
            LogisticRegression(A, labels, 0.1),
            MatrixGame(A),
            Quadratic(square, x + 0.1),
        ):
            value = problem.value(x)
            error = problem.value_error(x, value)
            for sample in range(len(x)):
                exact = exact_value(problem, sample, x[sample])
                assert abs(float(value[sample]) - exact) <= float(error[sample])


def test_a_value_that_is_wrong_by_rounding_is_no_convergence():
    """The relative gap is 1, but f(x₀) and the lower bound round to the same number."""
    y = torch.tensor([[1.0, 3.0]])
    counts = Counts(y, background=1e-3)
    problem = Composite(counts, [L1(1e-12)])
    at = y - 1e-3
    value = problem.value(at)
    assert problem.value_error(at, value) > 1e-13
    solution = md.solve(problem, md.CondatVu(1.0), at, iterations=3, stop=gap(1e-3))
    assert solution.statuses != [Status.CONVERGED]
