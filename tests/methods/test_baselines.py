"""Baselines against independent implementations."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import (
    SGD,
    Adam,
    LogisticRegression,
    MatrixGame,
    Nesterov,
    ProjectedGradient,
    solve,
)
from mirrordescent.domains import PositiveOrthant, Simplex
from mirrordescent.methods import ProjectedNesterov
from mirrordescent.oracles import Exact


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    labels = torch.randn(40, generator=generator, dtype=torch.float64).sign()
    return LogisticRegression(features, labels, ridge=0.1)


@pytest.mark.parametrize(
    ("method", "optimiser"),
    [
        (Adam(0.05), lambda p: torch.optim.Adam([p], lr=0.05)),
        (Adam(0.05, decay=0.3), lambda p: torch.optim.AdamW([p], lr=0.05, weight_decay=0.3)),
        (
            Adam(0.05, betas=(0.8, 0.9), epsilon=1e-3),
            lambda p: torch.optim.Adam([p], lr=0.05, betas=(0.8, 0.9), eps=1e-3),
        ),
        (SGD(0.3), lambda p: torch.optim.SGD([p], lr=0.3)),
        (SGD(0.3, momentum=0.9), lambda p: torch.optim.SGD([p], lr=0.3, momentum=0.9)),
    ],
)
def test_equal_to_torch_optim(problem, method, optimiser):
    x0 = torch.randn(2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p = x0.clone().requires_grad_()
    theirs = optimiser(p)
    state = method.init(x0)
    for _ in range(50):
        theirs.zero_grad()
        problem.value(p).sum().backward()
        theirs.step()
        state = method.step(problem, state, Exact())
    torch.testing.assert_close(method.answer(state), p.detach(), rtol=1e-12, atol=1e-12)


def test_nesterov_follows_su_boyd_candes(problem):
    """x_k = y_{k−1} − s∇f(y_{k−1}),  y_k = x_k + (k−1)/(k+2)(x_k − x_{k−1})."""
    x = y = torch.ones(1, 6, dtype=torch.float64)
    for k in range(1, 41):
        x_new = y - 0.5 * problem.grad(y)
        y = x_new + (k - 1) / (k + 2) * (x_new - x)
        x = x_new
    ours = solve(problem, Nesterov(0.5), torch.ones(1, 6, dtype=torch.float64), iterations=40)
    torch.testing.assert_close(ours.x, x, rtol=1e-12, atol=1e-12)


def test_projected_gradient_stays_on_the_simplex():
    game = MatrixGame(torch.randn(5, 7, generator=torch.Generator().manual_seed(0)))
    solution = solve(game, ProjectedGradient(Simplex(), 0.1), iterations=50)
    assert Simplex().contains(solution.x, closed=True).all()
    assert (solution.best_value < game.value(game.start())).all()


@pytest.mark.parametrize(
    "make",
    [lambda: SGD(0.1, momentum=1.0), lambda: Adam(0.1, betas=(0.9, 1.0)), lambda: Adam(-1.0)],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()


def test_projected_nesterov_finds_the_constrained_minimum_from_points_in_the_set():
    """½‖x − c‖²_D on x ≥ 0 has the solution max(c, 0); no gradient is asked for outside."""
    curvature = torch.tensor([[1.0, 10.0, 3.0]])
    centre = torch.tensor([[-1.0, 2.0, 0.5]])
    method = ProjectedNesterov(PositiveOrthant(), 0.1)
    state = method.init(torch.full((1, 3), 5.0))
    for _ in range(300):
        assert bool((state.x >= 0).all())
        state = method.update(state, curvature * (state.x - centre))
    torch.testing.assert_close(method.answer(state), centre.clamp(min=0), atol=1e-5, rtol=0)
    free = Nesterov(0.1)
    inside = free.init(torch.full((1, 3), 5.0))
    projected = method.init(inside.x)
    for _ in range(2):  # as long as nothing leaves the set they are the same
        inside = free.update(inside, 0.1 * inside.x)
        projected = method.update(projected, 0.1 * projected.x)
    assert torch.equal(inside.x, projected.x)
