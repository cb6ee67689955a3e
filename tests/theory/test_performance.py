"""Worst-case rates by performance estimation, against the known rates of gradient descent."""

import pytest
import torch

import mirrordescent as md
from mirrordescent.methods import Adam, Nesterov
from mirrordescent.theory.performance import fixed_steps, solve_with_pepit, worst_case


def test_steps_are_read_off_a_run():
    expected = torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.5, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(fixed_steps(md.GD(0.5), 2), expected)
    H = fixed_steps(Nesterov(0.5), 4)
    problem = md.Quadratic(torch.tensor([1.0, 2.0], dtype=torch.float64), torch.ones(1, 2).double())
    x0 = torch.zeros(1, 2, dtype=torch.float64)
    points = [x0]
    gradients = []
    for row in H:
        steps = sum((h * g for h, g in zip(row, gradients, strict=False)), torch.zeros_like(x0))
        points.append(x0 - steps)
        gradients.append(problem.grad(points[-1]))
    found = md.solve(problem, Nesterov(0.5), x0, iterations=4, progress=False)
    torch.testing.assert_close(points[-1], found.x)


def test_methods_whose_steps_depend_on_gradients_have_no_fixed_steps():
    assert fixed_steps(Adam(0.1), 3) is None
    assert fixed_steps(md.MD(md.mirrors.SimplexEntropy(), 0.1), 3) is None
    assert fixed_steps(md.PDHG(1.0), 3) is None
    found = worst_case(Adam(0.1), 3, 1.0)
    assert found.rate is None
    assert "depend on the problem" in str(found)
    assert "Lipschitz constant" in str(worst_case(md.GD(0.1), 3, float("inf")))


@pytest.mark.parametrize("steps", [1, 4])
def test_the_rate_of_gradient_descent_is_that_of_drori_and_teboulle(steps):
    """f(x_N) − f* ≤ L‖x₀ − x*‖²/(4N + 2) for steps of 1/L, which is tight."""
    pytest.importorskip("PEPit")
    H = fixed_steps(md.GD(0.25), steps)
    assert solve_with_pepit(H.tolist(), 4.0) == pytest.approx(1 / (4 * steps + 2), rel=1e-3)


def test_a_program_that_takes_too_long_is_stopped():
    pytest.importorskip("PEPit")
    found = worst_case(md.GD(1.0), 2, 1.0, seconds=0.01)
    assert found.rate is None
    assert "did not finish" in found.reason
