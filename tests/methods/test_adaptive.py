"""Dual-space preconditioning with second moments, against a plain transcription and what it has to
become.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mirrordescent import Quadratic, solve
from mirrordescent.methods import AdaptivePreconditioned, Preconditioned
from mirrordescent.mirrors import ByKind, Euclidean, SoftSign, SpectralPower
from mirrordescent.mirrors.by_kind import KINDS, ScaledMap
from mirrordescent.schedules import OverRun


def quadratic():
    centre = torch.tensor([[0.4, 0.3, -0.2], [0.1, -0.2, 0.5]], dtype=torch.float64)
    return Quadratic(torch.tensor([0.3, 1.0, 0.6], dtype=torch.float64), centre)


@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_every_step_is_what_the_docstring_says(lookahead, decay):
    a = np.array([0.3, 1.0, 0.6])
    c = np.array([[0.4, 0.3, -0.2], [0.1, -0.2, 0.5]])
    x = np.zeros((2, 3))
    m = np.zeros((2, 3))
    n = np.zeros((2, 3))
    beta = 0.8
    second = 0.9
    mirror = ScaledMap(SoftSign(0.5), 0.1)
    method = AdaptivePreconditioned(mirror, OverRun(20), beta, second, lookahead, decay)
    state = method.init(torch.zeros(2, 3).double())
    problem = quadratic()
    for k in range(20):
        share = (k + 0.5) / 20
        t = min(1, share / 0.05) * (1 - share)
        g = a * (x - c)
        m = beta * m + (1 - beta) * g
        v = beta * m + (1 - beta) * g if lookahead else m
        v = v / np.sqrt((v**2).mean(1, keepdims=True))
        u = v / np.sqrt(v**2 + 0.25)
        u = u / np.sqrt((u**2).mean(1, keepdims=True))
        n = second * n + (1 - second) * u**2
        root = np.sqrt(1 - second ** (k + 1))
        x = (1 - t * decay) * x - t * 0.1 * root * u / (np.sqrt(n) + 1e-8)
        state = method.update(state, problem.grad(state.x))
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-9, atol=1e-11)


def test_a_direction_that_stays_becomes_its_sign():
    method = AdaptivePreconditioned(SpectralPower(0.3), 0.01, second_momentum=0.5)
    state = method.init(torch.zeros(1, 4, 5))
    g = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(0))
    for _ in range(5):
        after = method.update(state, g)
        wanted = -0.01 * SpectralPower(0.3).direction(g).sign()
        torch.testing.assert_close(after.x - state.x, wanted, rtol=1e-4, atol=1e-6)
        state = after


def test_steps_have_about_the_length_they_say():
    method = AdaptivePreconditioned(SpectralPower(0.0), 0.01)
    generator = torch.Generator().manual_seed(0)
    state = method.init(torch.zeros(3, 40, 50))
    for k in range(60):
        after = method.update(
            state, 3.0**k * torch.randn(3, 40, 50, generator=generator).double().float()
        )
        moved = (after.x - state.x).square().mean((1, 2)).sqrt()
        torch.testing.assert_close(moved, torch.full((3,), 0.01), rtol=0.05, atol=0)
        state = after


def test_sizes_are_of_every_leaf():
    maps = ByKind(
        {kind: Euclidean() for kind in KINDS}, {"vector": 0.1, "output": 0.3}, width={"output": 0.0}
    )
    tree = {
        "0.weight": torch.randn(1, 2, 64),
        "0.bias": torch.randn(1, 2),
        "1.weight": torch.randn(1, 3, 2),
    }
    sizes = maps.direction_sizes(tree)
    for name, d in maps.direction(tree).items():
        assert float(d.square().mean().sqrt()) == pytest.approx(sizes[name], rel=1e-5)
    assert sizes["1.weight"] == pytest.approx(0.3)


def test_a_run_that_is_resumed_takes_no_long_step():
    method = AdaptivePreconditioned(Euclidean(), 0.1, second_momentum=0.98)
    problem = quadratic()
    state = method.resume(torch.zeros(2, 3).double(), problem, 500)
    moved = method.update(state, problem.grad(state.x)).x
    torch.testing.assert_close(moved.abs(), torch.full_like(moved, 0.1), rtol=1e-5, atol=0)


def test_a_map_by_kinds_takes_no_nameless_tensor():
    with pytest.raises(TypeError, match="a dict of tensors by name"):
        ByKind({kind: Euclidean() for kind in KINDS}).direction_sizes(torch.ones(1, 2))


def test_zero_gradients_move_nothing():
    method = AdaptivePreconditioned(SpectralPower(0.0), 0.1)
    state = method.init(torch.ones(1, 3, 3))
    for _ in range(3):
        state = method.update(state, torch.zeros(1, 3, 3))
    assert torch.equal(state.x, torch.ones(1, 3, 3))


def test_it_finds_a_minimum_with_steps_that_fall():
    problem = quadratic()
    method = AdaptivePreconditioned(Euclidean(), OverRun(400, warmup=0.0), 0.5, 0.9)
    assert (problem.value(solve(problem, method, iterations=400).x) < 1e-4).all()


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="second_momentum must be"):
        AdaptivePreconditioned(Euclidean(), 0.1, second_momentum=1.0)
    assert isinstance(AdaptivePreconditioned(Euclidean(), 0.1), Preconditioned)
