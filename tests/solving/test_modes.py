"""The modes of PyTorch around a solve: autocast, inference mode, torch.compile; whole numbers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import mirrordescent as md
from mirrordescent.problems import Linear, Matrix, SquaredError

Y = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
MASK = torch.rand(8, 8, generator=torch.Generator().manual_seed(3)) > 0.2
A = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))
B = torch.randn(2, 40, generator=torch.Generator().manual_seed(2))


def test_autocast_changes_no_number():
    problem = md.LeastSquares(A, B)
    plain = md.solve(problem, md.GD(0.01), iterations=50)
    with torch.autocast("cpu", torch.bfloat16):
        cast = md.solve(problem, md.GD(0.01), iterations=50)
        layer = md.layer(problem, md.GD(0.01), iterations=50, last=2, through="solution")
        assert (A @ A.T).dtype == torch.bfloat16, "autocast is as it was"
    assert torch.equal(cast.x, plain.x)
    assert torch.equal(cast.value, plain.value)
    assert layer.dtype == torch.float32


def test_autocast_refuses_no_adjoint():
    with torch.autocast("cpu", torch.bfloat16):
        problem = md.Composite(SquaredError(B, Matrix(A)), [md.L1(0.1)])
        assert md.solve(problem, md.PDHG(0.3), iterations=5).ok


def test_autocast_changes_no_verification():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(20, 10, generator=generator)
    problem = md.LeastSquares(matrix, torch.randn(4, 20, generator=generator))
    certificate = md.certify(problem, cache=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert certificate.verify(problem).confirmed
        assert torch.equal(md.certify(problem, cache=False).lower, certificate.lower)


@pytest.mark.parametrize("through", ["steps", "solution"])
def test_layers_in_inference_mode(through):
    with torch.inference_mode():
        found = md.layer(md.LeastSquares(A, B), md.GD(0.01), iterations=300, through=through)
    expected = md.layer(md.LeastSquares(A, B), md.GD(0.01), iterations=300, through=through)
    assert torch.allclose(found, expected, rtol=1e-5)


def test_learned_methods_in_inference_mode():
    expected = md.inpaint(Y, MASK)
    with torch.inference_mode():
        found = md.inpaint(Y, MASK)
    assert torch.allclose(found, expected, atol=1e-5)


def test_functions_in_inference_mode():
    def f(x):
        return (x - 1).pow(4).sum(1)

    expected = md.solve(md.Function(f), md.GD(0.1), torch.zeros(1, 2), iterations=30)
    with torch.inference_mode():
        found = md.solve(md.Function(f), md.GD(0.1), torch.zeros(1, 2), iterations=30)
        adjoint = Linear(lambda x: x[:, ::2], (3,)).A_adjoint(torch.ones(1, 2))
        by_layer = md.Function(f).grad({"a": torch.zeros(1, 2)}["a"])
    assert torch.equal(found.x, expected.x)
    assert adjoint.tolist() == [[1.0, 0.0, 1.0]]
    assert by_layer.tolist() == [[-4.0, -4.0]]
    assert md.Function(f).grad(found.x).shape == (1, 2), "an inference tensor outside of the mode"


def test_compiled_code_may_solve():
    torch._dynamo.reset()
    problem = md.TVDenoising(Y)
    expected = md.solve(problem, md.PDHG(0.3), iterations=100, stop=md.gap(1e-3))

    @torch.compile(backend="eager")
    def twice(y):
        y = y.sin() + 1
        solution = md.solve(problem, md.PDHG(0.3), iterations=100, stop=md.gap(1e-3))
        return 2 * solution.x + 0 * y, solution

    x, solution = twice(Y)
    assert torch.equal(x, 2 * expected.x)
    assert solution.statuses == expected.statuses
    assert solution.steps.tolist() == expected.steps.tolist()


def test_a_solve_does_not_import_the_compiler():
    """It takes seconds."""
    code = (
        "import sys, torch, mirrordescent as md\n"
        "md.solve(md.Quadratic(torch.ones(2), torch.ones(1, 2)), md.GD(0.1), iterations=2)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("whole", [int, np.int64, np.uint8, torch.tensor])
def test_whole_numbers_of_any_kind(whole):
    problem = md.LeastSquares(A, B)
    options = {"iterations": whole(5), "check_every": whole(2), "trace": [whole(0), whole(5)]}
    solution = md.solve(problem, md.GD(0.01), **options)
    assert solution.steps.tolist() == [5, 5]
    assert solution.trace.iterations == [0, 5]
    assert len(md.solve(problem, md.GD(0.01), trace=whole(4)).trace.iterations) == 4


@pytest.mark.parametrize("number", [5.0, "5", np.float64(5), 0, np.int64(-1)])
def test_other_numbers_are_refused(number):
    with pytest.raises(ValueError, match="iterations must be a whole number"):
        md.solve(md.LeastSquares(A, B), md.GD(0.01), iterations=number)
