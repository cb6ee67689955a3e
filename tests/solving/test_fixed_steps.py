"""A fixed number of steps gives the answers of solve, also exported and compiled."""

import pytest
import torch

import mirrordescent as md
from mirrordescent.mirrors import Diagonal, SimplexEntropy
from mirrordescent.solving import FixedSteps


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def least_squares(domain=None):
    return md.LeastSquares(uniform(6, 3), uniform(2, 6, seed=1), domain)


CASES = {
    "GD": lambda: (least_squares(), md.GD(0.1)),
    "momentum and a map": lambda: (least_squares(), md.AMD(Diagonal(torch.ones(3)), 0.1)),
    "entropy": lambda: (least_squares(md.domains.Simplex()), md.MD(SimplexEntropy(), 0.3)),
    "transport": lambda: (
        md.EntropicTransport(uniform(2, 4, 3), torch.ones(4), torch.ones(3), 0.3),
        md.GD(0.3),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_solve_and_of_the_exported_program(case):
    problem, method = CASES[case]()
    x0 = problem.start(2)
    steps = FixedSteps(problem, method, 7)
    expected = md.solve(problem, method, x0, iterations=7, fused=False, progress=False).x
    torch.testing.assert_close(steps(x0), expected)
    program = torch.export.export(steps, (x0,))
    torch.testing.assert_close(program.module()(x0), expected)


def test_other_data_are_other_problems():
    problem, method = CASES["GD"]()
    b = uniform(2, 6, seed=2)
    steps = FixedSteps(problem, method, 7)
    x0 = problem.start()
    other = md.LeastSquares(problem.A, b)
    expected = md.solve(other, method, x0, iterations=7, fused=False, progress=False).x
    torch.testing.assert_close(steps(x0, {"b": b}), expected)
    program = torch.export.export(steps, (x0, {"b": b}))
    torch.testing.assert_close(program.module()(x0, {"b": b}), expected)
    with pytest.raises(ValueError, match="no data called 'c': choose from"):
        steps(x0, {"c": b})
    with pytest.raises(ValueError, match="at least 1"):
        FixedSteps(problem, method, 0)


def test_steps_are_compiled_to_one_graph():
    problem, method = CASES["GD"]()
    steps = FixedSteps(problem, method, 3)
    compiled = torch.compile(steps, backend="eager", fullgraph=True)
    x0 = problem.start()
    torch.testing.assert_close(compiled(x0), steps(x0))
