"""An L1 term around a point: value, prox, dual and bounds."""

import torch

import mirrordescent as md
from mirrordescent.problems import L1

Y = torch.tensor([[3.0, 0.2, -1.0]], dtype=torch.float64)
C = torch.tensor([1.0, 0.0, -1.5], dtype=torch.float64)


def test_the_solution_is_soft_thresholding_around_the_offset():
    """argmin ½‖x − y‖² + λ‖x − c‖₁ = c + soft(y − c, λ), found by three methods."""
    weight = 0.7
    problem = md.Composite(md.SquaredError(Y), [L1(weight, offset=C)])
    d = Y - C
    expected = C + d.sign() * (d.abs() - weight).clamp(min=0)
    torch.testing.assert_close(
        problem.value(Y), (weight * (Y - C).abs()).sum(-1), rtol=1e-12, atol=0
    )
    for method in (md.PDHG(0.5), md.CondatVu(0.5), md.DualFISTA(), md.FISTA()):
        solution = md.solve(problem, method, iterations=3000)
        torch.testing.assert_close(solution.x, expected, atol=1e-6, rtol=0)
        if solution.lower is not None:
            least = problem.value(expected)
            assert bool(solution.lower <= least + 1e-12)
            assert bool(solution.lower >= least - 1e-6)
