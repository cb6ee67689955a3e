"""Dual-space preconditioning, against a plain transcription and methods that it contains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mirrordescent import MD, Quadratic, solve, zoo
from mirrordescent.learn import Descent, Draw, ProblemFamily, Settings, learn
from mirrordescent.methods import GD, Preconditioned
from mirrordescent.mirrors import (
    Diagonal,
    Euclidean,
    Multipliers,
    PNorm,
    SoftSign,
    SpectralPower,
    spectral_by_kind,
)
from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.recipes.architectures import small_cnn
from mirrordescent.schedules import OverRun
from mirrordescent.theory import diagnose


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
    beta = 0.8
    method = Preconditioned(PNorm(3.0), OverRun(20), beta, lookahead, decay=decay)
    state = method.init(torch.zeros(2, 3).double())
    problem = quadratic()
    for k in range(20):
        u = (k + 0.5) / 20
        t = min(1, u / 0.05) * (1 - u)
        g = a * (x - c)
        m = beta * m + (1 - beta) * g
        v = beta * m + (1 - beta) * g if lookahead else m
        x = (1 - t * decay) * x - t * np.sign(v) * np.sqrt(np.abs(v))
        state = method.update(state, problem.grad(state.x))
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-10, atol=1e-12)


def test_with_the_euclidean_map_it_is_gradient_descent():
    ours, theirs = (
        solve(quadratic(), m, iterations=30).x for m in (Preconditioned(Euclidean(), 0.7), GD(0.7))
    )
    torch.testing.assert_close(ours, theirs)


def test_with_a_diagonal_map_it_is_mirror_descent_too():
    mirror = Diagonal(torch.tensor([0.5, 2.0, 1.0]).double())
    ours, theirs = (
        solve(quadratic(), m, iterations=30).x
        for m in (Preconditioned(mirror, 0.3), MD(mirror, 0.3))
    )
    torch.testing.assert_close(ours, theirs)


def test_normalised_steps_have_the_length_they_say():
    method = Preconditioned(SpectralPower(0.3), 0.01, momentum=0.9, normalised=True)
    state = method.init(torch.zeros(3, 4, 5))
    for k in range(3):
        after = method.update(state, 1e4**k * torch.randn(3, 4, 5))
        moved = (after.x - state.x).square().mean((1, 2)).sqrt()
        torch.testing.assert_close(moved, torch.full((3,), 0.01), rtol=1e-3, atol=1e-6)
        state = after


def test_a_sign_finds_the_minimum_of_a_function_with_steps_that_fall():
    method = Preconditioned(SoftSign(1e-3), OverRun(400, warmup=0.0), momentum=0.5, normalised=True)
    problem = quadratic()
    gap = problem.value(solve(problem, method, iterations=400).x)
    assert (gap < 1e-4).all()


def test_trains_networks_of_a_batch_and_is_stored(tmp_path):
    images = torch.rand(40, 1, 14, 14)
    labels = torch.arange(40) % 10
    problem = NetworkTraining(small_cnn(), images, labels)
    method = Preconditioned(
        spectral_by_kind(), OverRun(30), momentum=0.9, normalised=True
    ).requires_grad_(False)
    method.mirror.log_scales.add_(torch.tensor(0.02).log())
    start = problem.initial([0, 1])
    solution = solve(problem, method, start, iterations=30)
    assert (solution.value < 0.6 * problem.value(start)).all()
    loaded = zoo.load(zoo.save(method, tmp_path / "method"))
    assert torch.equal(solve(problem, loaded, start, iterations=30).value, solution.value)


class Bowls(ProblemFamily):
    def draw(self, seeds):
        generator = torch.Generator().manual_seed(int(seeds[0]))
        centre = torch.randn(len(seeds), 3, generator=generator)
        return Draw(Quadratic(torch.tensor([0.1, 1.0, 10.0]), centre), torch.zeros(len(seeds), 3))


def test_it_learns():
    method = Preconditioned(Multipliers(torch.arange(3), 0.1), 1.0, momentum=0.3)
    settings = Settings(meta_steps=60, horizon=8, batch=4, optimiser=Descent(learning_rate=0.1))
    before = solve(Bowls().draw(torch.tensor([7])).problem, method, iterations=8).value.detach()
    learn(Bowls(), method, settings, progress=False)
    after = solve(Bowls().draw(torch.tensor([7])).problem, method, iterations=8).value.detach()
    assert (after < 0.2 * before).all()


def test_it_is_diagnosed_as_a_method_without_a_theorem_of_mirror_descent():
    diagnosis = diagnose(Preconditioned(Diagonal(2.0), 0.5), quadratic().float(), iterations=10)
    (run,) = diagnosis.runs.values()
    assert "No theorem is known for Preconditioned" in str(run.verdicts[0])


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="momentum must be"):
        Preconditioned(Euclidean(), 0.1, momentum=1.0)
    with pytest.raises(ValueError, match="decay must be"):
        Preconditioned(Euclidean(), 0.1, decay=-1.0)
