"""Meta-gradients by evolution, against derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent import GD, Quadratic, solve
from mirrordescent.learn import Draw, Objective, ProblemFamily, Settings, learn
from mirrordescent.learn.evolution import evolution
from mirrordescent.schedules import Interpolated


def gradient(loss, parameters, pairs, spread=0.1, seed=0):
    losses, _ = evolution(
        lambda random: (loss().reshape(1), torch.zeros(1, 1)),
        parameters, pairs, spread, torch.Generator().manual_seed(seed),
    )  # fmt: skip
    return torch.autograd.grad(losses.mean(), parameters)


def test_one_pair_is_a_central_difference_along_its_perturbation():
    """For a quadratic loss the difference is exact: g = ⟨∇L, ε⟩ ε."""
    theta = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    weights = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    (found,) = gradient(lambda: (weights * theta**2).sum(), [theta], pairs=1, seed=3)
    epsilon = torch.randn(3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(found, (2 * weights * theta.detach() @ epsilon) * epsilon)


def test_many_pairs_average_to_the_gradient_of_the_smoothed_loss():
    """E Σ (θ + sε)⁴ = Σ θ⁴ + 6 s² θ² + 3 s⁴."""
    a, b = nn.Parameter(torch.tensor([1.0, -0.5])), nn.Parameter(torch.tensor(0.8))
    spread = 0.3
    found = gradient(lambda: (a**4).sum() + b**4, [a, b], pairs=3000, spread=spread)
    for g, p in zip(found, (a, b), strict=True):
        torch.testing.assert_close(g, 4 * p.detach() ** 3 + 12 * spread**2 * p.detach(), atol=0.3, rtol=0.05)


def test_parameters_come_back_exactly_and_every_run_meets_the_same_noise():
    theta = nn.Parameter(torch.tensor([0.1, 0.7]))
    before, draws = theta.detach().clone(), []

    def run(random):
        draws.append(float(torch.rand((), generator=random)))
        return theta.sum().reshape(1), torch.zeros(1, 1)

    evolution(run, [theta], 3, 0.5, torch.Generator().manual_seed(0))
    assert torch.equal(theta.detach(), before)
    assert len(draws) == 6
    assert len(set(draws)) == 1


def test_a_failing_run_counts_as_the_worst_of_the_others():
    theta = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))

    def loss():
        return torch.where(theta > 0, torch.nan, -theta)  # nothing is known above 0, and 0 is better than below

    (found,) = gradient(loss, [theta], pairs=1)
    assert found == 0  # the failure was given the one loss that is known
    (found,) = gradient(loss, [theta], pairs=8)
    assert found.isfinite()


class Quadratics(ProblemFamily):
    def draw(self, seeds):
        b = torch.stack(
            [torch.randn(4, generator=torch.Generator().manual_seed(int(s)), dtype=torch.float64) for s in seeds]
        )
        return Draw(Quadratic(torch.tensor([1.0, 1.0, 4.0, 4.0], dtype=torch.float64), b), torch.zeros_like(b) + 1.0)

    def validation(self, count):
        return self.draw(torch.arange(10**6, 10**6 + count))


def test_objective_agrees_with_the_derivative():
    """With one parameter and a small spread: g = L′ ε²."""
    draw = Quadratics().draw(torch.arange(4))
    method = GD(Interpolated([1], [0.05])).double()

    def meta_gradient(differentiation):
        objective = Objective("sum", differentiation=differentiation, pairs=1, spread=1e-4)
        losses, _ = objective.losses(method, draw, 3, 0, None, torch.Generator().manual_seed(5))
        return torch.autograd.grad(losses.mean(), list(method.parameters()))[0]

    epsilon = torch.randn(1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    torch.testing.assert_close(meta_gradient("evolution"), meta_gradient("full") * epsilon**2, rtol=1e-5, atol=0)


def test_learns_the_best_step_size():
    method = GD(Interpolated([1], [0.05])).double()
    objective = Objective("last", differentiation="evolution", pairs=2)
    settings = Settings(
        meta_steps=60, batch=4, horizon=2, learning_rate=0.15, objective=objective, validate_every=20,
        validation_horizons=(1.0,),
    )  # fmt: skip
    learn(Quadratics(), method, settings, progress=False)
    draw = Quadratics().draw(torch.arange(500))

    def value(t):
        return float(solve(draw.problem, GD(t), draw.x0, iterations=2).value.mean())

    assert value(method.t(1).item()) <= 1.02 * min(value(0.02 * i) for i in range(1, 30))


@pytest.mark.parametrize(("name", "value"), [("pairs", 0), ("spread", 0.0), ("differentiation", "evolved")])
def test_settings_are_checked(name, value):
    with pytest.raises(ValueError, match=name):
        Objective(**{name: value})


def test_needs_a_generator():
    with pytest.raises(ValueError, match="generator"):
        Objective(differentiation="evolution").losses(GD(0.1), Quadratics().draw(torch.arange(1)), 2, 0)
