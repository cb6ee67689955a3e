"""Meta-gradients by evolution, against derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import nn

from mirrordescent import AMD, GD, Quadratic, TVDenoising, kernels, solve
from mirrordescent.conditioning import ConditionalLaws, Within
from mirrordescent.execution.registry import RUNNERS
from mirrordescent.learn import (
    Checkpointed,
    Descent,
    Draw,
    Evolution,
    Full,
    Objective,
    ProblemFamily,
    Settings,
    Truncated,
    Validation,
    learn,
)
from mirrordescent.methods import Conditioned, Equipped
from mirrordescent.mirrors import Stencil
from mirrordescent.oracles import Rounded
from mirrordescent.schedules import Interpolated


@dataclass
class Loss:
    """What ``Evolution`` needs of an unrolling, whose run is a function of parameters and
    of noise.
    """

    function: Callable
    learned: list
    compiled: bool = False

    def run_all(self, generator):
        return [self.function(generator).reshape(1)]


def losses(function, parameters, pairs, spread, seed=0):
    unrolling = Loss(function, parameters)
    return Evolution(pairs, spread).run(unrolling, torch.stack, torch.Generator().manual_seed(seed))


def gradient(loss, parameters, pairs, spread=0.1, seed=0):
    found = losses(lambda random: loss(), parameters, pairs, spread, seed)
    return torch.autograd.grad(found.mean(), parameters)


def test_one_pair_is_a_central_difference_along_its_perturbation():
    """For a quadratic loss the difference is exact: g = ⟨∇L, ε⟩ ε."""
    theta = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    weights = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    (found,) = gradient(lambda: (weights * theta**2).sum(), [theta], pairs=1, seed=3)
    epsilon = torch.randn(3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(found, (2 * weights * theta.detach() @ epsilon) * epsilon)


def test_many_pairs_average_to_the_gradient_of_the_smoothed_loss():
    """E Σ (θ + sε)⁴ = Σ θ⁴ + 6 s² θ² + 3 s⁴."""
    a = nn.Parameter(torch.tensor([1.0, -0.5]))
    b = nn.Parameter(torch.tensor(0.8))
    spread = 0.3
    found = gradient(lambda: (a**4).sum() + b**4, [a, b], pairs=3000, spread=spread)
    for g, p in zip(found, (a, b), strict=True):
        torch.testing.assert_close(
            g, 4 * p.detach() ** 3 + 12 * spread**2 * p.detach(), atol=0.3, rtol=0.05
        )


def test_parameters_come_back_exactly_and_every_run_meets_the_same_noise():
    theta = nn.Parameter(torch.tensor([0.1, 0.7]))
    before = theta.detach().clone()
    draws = []

    def run(random):
        draws.append(float(torch.rand((), generator=random)))
        return theta.sum()

    losses(run, [theta], 3, 0.5)
    assert torch.equal(theta.detach(), before)
    assert len(draws) == 6
    assert len(set(draws)) == 1


def test_a_failing_run_counts_as_the_worst_of_the_others():
    theta = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))

    def loss():
        return torch.where(
            theta > 0, torch.nan, -theta
        )  # nothing is known above 0, and 0 is better than below

    (found,) = gradient(loss, [theta], pairs=1)
    assert found == 0  # the failure was given the one loss that is known
    (found,) = gradient(loss, [theta], pairs=8)
    assert found.isfinite()


@pytest.mark.parametrize("failure", [torch.nan, torch.inf, -torch.inf])
def test_failing_runs_are_neither_better_nor_worse_than_the_worst_of_the_others(failure):
    theta = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
    found = iter([3.0, failure, 1.0, 2.0, failure, 7.0])

    def run(random):
        return torch.tensor(next(found), dtype=torch.float64)

    loss = losses(run, [theta], 3, 0.1)
    assert loss.detach() == (3.0 + 7.0 + 1.0 + 2.0 + 7.0 + 7.0) / 6
    (slope,) = torch.autograd.grad(loss.sum(), [theta])
    generator = torch.Generator().manual_seed(0)
    draws = [torch.randn((), generator=generator, dtype=torch.float64) for _ in range(3)]
    differences = (3.0 - 7.0, 1.0 - 2.0, 7.0 - 7.0)
    expected = sum(d * e for d, e in zip(differences, draws, strict=True)) / (2 * 0.1 * 3)
    torch.testing.assert_close(slope, expected)


def test_a_run_without_any_success_has_no_loss():
    theta = nn.Parameter(torch.tensor(0.0))
    assert losses(lambda random: torch.tensor(torch.nan), [theta], 2, 0.1).isnan().all()


class Quadratics(ProblemFamily):
    def draw(self, seeds):
        b = torch.stack(
            [
                torch.randn(4, generator=torch.Generator().manual_seed(int(s)), dtype=torch.float64)
                for s in seeds
            ]
        )
        return Draw(
            Quadratic(torch.tensor([1.0, 1.0, 4.0, 4.0], dtype=torch.float64), b),
            torch.zeros_like(b) + 1.0,
        )

    def validation(self, count):
        return self.draw(torch.arange(10**6, 10**6 + count))


def test_objective_agrees_with_the_derivative():
    """With one parameter and a small spread: g = L′ ε²."""
    draw = Quadratics().draw(torch.arange(4))
    method = GD(Interpolated([1], [0.05])).double()

    def meta_gradient(differentiation):
        objective = Objective("sum", differentiation=differentiation)
        losses, _ = objective.losses(method, draw, 3, 0, None, torch.Generator().manual_seed(5))
        return torch.autograd.grad(losses.mean(), list(method.parameters()))[0]

    epsilon = torch.randn(1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    torch.testing.assert_close(
        meta_gradient(Evolution(1, 1e-4)), meta_gradient(Full()) * epsilon**2, rtol=1e-5, atol=0
    )


def test_learns_the_best_step_size():
    method = GD(Interpolated([1], [0.05])).double()
    objective = Objective("last", differentiation=Evolution(pairs=2))
    settings = Settings(
        meta_steps=60,
        batch=4,
        horizon=2,
        optimiser=Descent(learning_rate=0.15),
        objective=objective,
        validation=Validation(every=20, horizons=(1.0,)),
    )
    learn(Quadratics(), method, settings, progress=False)
    draw = Quadratics().draw(torch.arange(500))

    def value(t):
        return float(solve(draw.problem, GD(t), draw.x0, iterations=2).value.mean())

    assert value(method.t(1).item()) <= 1.02 * min(value(0.02 * i) for i in range(1, 30))


@pytest.mark.parametrize(("name", "value"), [("pairs", 0), ("spread", 0.0)])
def test_settings_are_checked(name, value):
    with pytest.raises(ValueError, match=name):
        Evolution(**{name: value})


def test_needs_a_generator():
    with pytest.raises(ValueError, match="Evolution is random: pass generator"):
        Objective(differentiation=Evolution()).losses(
            GD(0.1), Quadratics().draw(torch.arange(1)), 2, 0
        )


def test_takes_no_derivative_so_none_can_be_left_out():
    with pytest.raises(ValueError, match="needs through_gradient=True"):
        Objective(differentiation=Evolution(), through_gradient=False)


def test_runs_are_compiled_and_looks_are_the_same(monkeypatch):
    """Where a method has a kernel, it takes the steps from look to look, and no plain step is
    taken.
    """
    draw = Quadratics().draw(torch.arange(2))
    method = GD(Interpolated([1], [0.05])).double()
    asked = []

    def factory(method, problem, oracle):
        def run(state, steps):
            asked.append(steps)
            for _ in range(steps):
                state = GD.step(method, problem, state, oracle)
            return state

        return run

    objective = Objective(every=(1, 4, 6), differentiation=Evolution(pairs=1))
    plain = objective.losses(method, draw, 8, 0, None, torch.Generator().manual_seed(0))
    monkeypatch.setattr(kernels, "available", lambda: True)
    monkeypatch.setitem(RUNNERS, GD, [factory])
    compiled = objective.losses(method, draw, 8, 0, None, torch.Generator().manual_seed(0))
    assert asked == [1, 3, 2, 2] * 2
    torch.testing.assert_close(compiled, plain)
    asked.clear()
    for differentiation in (Full(), Checkpointed(3), Truncated(3)):
        replace(objective, differentiation=differentiation).losses(method, draw, 8, 0)
    assert asked == []  # with a graph, every step is a plain one
    with torch.no_grad():
        for differentiation in (Full(), Checkpointed(3), Truncated(3)):
            replace(objective, differentiation=differentiation).losses(method, draw, 8, 0)
    assert sum(asked) == 3 * 8


@pytest.mark.usefixtures("compiled")
def test_problems_with_perturbations_of_their_own_average_to_the_same_gradient():
    """Against the derivative; and with more directions for the same runs, the estimate is the
    better one.
    """
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(6, 1, 8, 8, generator=generator, dtype=torch.float64)
    problem = TVDenoising(y, torch.linspace(0.05, 1.0, 6, dtype=torch.float64))
    laws = partial(ConditionalLaws, [1, 3], features=["weight"])
    curvature = laws([4.0, 8.0])
    mirror = Stencil(ConditionalLaws([1], [0.6], bound=1.0, features=["weight"]))
    amd = AMD(
        mirror,
        Within(laws([0.6, 0.5]), curvature, rough=1.6),
        regulariser=mirror,
        storage="primal",
        mixing=laws([0.7, 0.5], bound=1.0),
        dual_weight=laws([1.2, 1.5]),
    )
    method = Conditioned(Equipped(amd, Rounded(curvature))).double()
    draw = Draw(problem, y.clone())
    parameters = list(method.parameters())

    def gradients(differentiation, seed=0):
        objective = Objective("last", differentiation=differentiation)
        loss, _ = objective.losses(
            method, draw, 3, 0, generator=torch.Generator().manual_seed(seed)
        )
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss.mean(), parameters)])

    exact = gradients(Full())
    errors = {
        apart: sum(
            float((gradients(Evolution(30, 1e-4, apart), i) - exact).square().sum())
            for i in range(5)
        )
        for apart in (False, True)
    }
    assert errors[True] < errors[False] / 2
    mean = torch.stack(
        [gradients(Evolution(100, 1e-4, apart=True), 10 + i) for i in range(6)]
    ).mean(0)
    assert float((mean - exact).norm()) < 0.2 * float(exact.norm())
    assert all(p.ndim == q.ndim for p, q in zip(parameters, method.parameters(), strict=True))
