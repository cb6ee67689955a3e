"""Unrolling: the same values as solving, and the same gradients however they are kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent import AMD, ASMD, LPD, MD, SMD, Function, Quadratic, TVDenoising, solve
from mirrordescent.learn import (
    Checkpointed,
    Draw,
    Full,
    Objective,
    ProblemFamily,
    Settings,
    Truncated,
    learn,
)
from mirrordescent.learn.unrolling import unroll
from mirrordescent.methods import Equipped
from mirrordescent.mirrors import Diagonal
from mirrordescent.oracles import Exact, FirstOrder, Minibatch, Noisy, Smoothed
from mirrordescent.schedules import Prefix, Schedule

METHODS = [MD, SMD, AMD, ASMD, lambda mirror, t: AMD(mirror, t, storage="primal")]


def setting(make=AMD):
    y = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mirror = Diagonal(nn.Parameter(torch.full((5, 5), 1.5, dtype=torch.float64)))
    return TVDenoising(y), make(mirror, Prefix(torch.tensor([0.2, 0.1], dtype=torch.float64)))


def gradients(method, values):
    values.sum().backward()
    found = [p.grad.clone() for p in method.parameters()]
    method.zero_grad()
    return found


def run(problem, method, horizon=10, oracle=None, generator=None, **options):
    def measure(k, x):
        return problem.value(x)

    return unroll(
        method,
        problem,
        problem.start(),
        horizon,
        oracle or Smoothed(0.2),
        generator,
        measure=measure,
        **options,
    )


@pytest.mark.parametrize("make", METHODS)
@pytest.mark.parametrize(
    "differentiation", [Full(), Checkpointed(), Truncated(3)], ids=lambda d: type(d).__name__
)
def test_values_are_those_of_solve(make, differentiation):
    problem, method = setting(make)
    values = run(problem, method, differentiation=differentiation)
    solved = solve(
        problem, method, iterations=10, oracle=Smoothed(0.2), trace=range(1, 11)
    ).trace.values
    torch.testing.assert_close(values.detach(), solved, rtol=1e-12, atol=0)


@pytest.mark.parametrize("make", METHODS)
@pytest.mark.parametrize("segment", [None, 1, 3, 10])
def test_checkpointing_changes_no_gradient(make, segment):
    problem, method = setting(make)
    full = gradients(method, run(problem, method))
    again = gradients(method, run(problem, method, differentiation=Checkpointed(segment)))
    for a, b in zip(full, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


def test_checkpointing_draws_the_same_noise_twice():
    problem, method = setting()
    noisy = Noisy(0.1, Smoothed(0.2))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    full = gradients(method, run(problem, method, oracle=noisy, generator=generators[0]))
    again = gradients(
        method,
        run(problem, method, oracle=noisy, generator=generators[1], differentiation=Checkpointed()),
    )
    for a, b in zip(full, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


def test_a_checkpointed_gradient_by_autograd_is_computed_twice_but_for_the_last_segment():
    """And not again for every gradient inside of a segment, as under torch's own checkpoints."""
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        return x.square().square().sum(-1)

    method = MD(Diagonal(nn.Parameter(torch.tensor([1.0, 2.0]))), 0.01)
    x0 = torch.ones(1, 2)

    def measure(k, x):
        return x.sum(-1)

    found = {}
    for differentiation in (Full(), Checkpointed(4)):
        calls = 0
        values = unroll(
            method, Function(f), x0, 13, Exact(), differentiation=differentiation, measure=measure
        )
        found[type(differentiation)] = gradients(method, values)[0], calls
    torch.testing.assert_close(found[Checkpointed][0], found[Full][0])
    assert (found[Full][1], found[Checkpointed][1]) == (13, 13 + 9)


def test_a_checkpointed_segment_may_depend_on_nothing_learned():
    class Late(Schedule):
        def __init__(self):
            super().__init__()
            self.late = nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

        def forward(self, k):
            return self.late if k > 4 else 0.1

    problem = setting()[0]
    method = MD(Diagonal(1.5).double(), Late())
    full = gradients(method, run(problem, method))
    again = gradients(method, run(problem, method, differentiation=Checkpointed(2)))
    torch.testing.assert_close(full, again)


def test_truncation_cuts_between_segments():
    """The loss of the last step alone, with segments of one: only that step's own use of d and t
    counts.
    """
    problem, method = setting(MD)
    whole = gradients(method, run(problem, method, differentiation=Truncated(10)))
    full = gradients(method, run(problem, method))
    for a, b in zip(full, whole, strict=True):
        torch.testing.assert_close(a, b)
    run(problem, method, horizon=2, differentiation=Truncated(1))[-1].sum().backward()
    assert method.t.values.grad[0] == 0
    assert method.t.values.grad[1] != 0


def test_first_order_takes_the_gradient_as_a_constant():
    """x⁺ = x − t∇f(x)/d with ∇f detached, differentiated by hand on a quadratic."""
    problem = Quadratic(
        torch.tensor([3.0], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    )
    method = MD(Diagonal(1.0).double(), Prefix(torch.tensor([0.1, 0.1], dtype=torch.float64)))
    x0 = torch.ones(1, 1, dtype=torch.float64)
    last = unroll(method, problem, x0, 2, FirstOrder(Exact()), measure=lambda k, x: x.sum())[-1]
    last.backward()
    # x₁ = 1 − t₁·3, x₂ = x₁ − t₂·3x₁ with 3 and 3x₁ constant: ∂x₂ = (−3, −3x₁)
    assert method.t.values.grad.tolist() == pytest.approx([-3.0, -3 * 0.7])


def test_first_order_goes_around_the_oracle_that_a_method_brings():
    problem, method = setting(MD)
    equipped = Equipped(method, Smoothed(0.2))
    draw = Draw(problem, problem.start())
    losses, _ = Objective(through_gradient=False, penalty=0.0).losses(equipped, draw, 5, 0)
    found = torch.autograd.grad(losses.sum(), list(method.parameters()))
    values = run(problem, method, horizon=5, oracle=FirstOrder(Smoothed(0.2)))
    torch.testing.assert_close(found, torch.autograd.grad(values.sum(), list(method.parameters())))
    full, _ = Objective(penalty=0.0).losses(equipped, draw, 5, 0)
    assert not torch.allclose(
        found[0], torch.autograd.grad(full.sum(), list(method.parameters()))[0]
    )


class Denoising(ProblemFamily):
    def draw(self, seeds):
        problem = setting()[0]
        return Draw(problem, problem.start())


@pytest.mark.parametrize(
    ("method", "oracle", "objective", "message"),
    [
        (LPD(), Noisy(0.1), Objective(), "LPD uses no gradients, and cannot use Noisy"),
        (
            LPD(),
            None,
            Objective(through_gradient=False),
            "through_gradient=False cannot be honoured: LPD uses no",
        ),
        (
            Equipped(setting()[1], Smoothed(0.2)),
            Minibatch(1),
            Objective(),
            "brings its own oracle, Smoothed",
        ),
    ],
    ids=["an oracle", "first order", "a second oracle"],
)
def test_what_a_method_cannot_honour_is_refused_before_anything_is_done(
    method, oracle, objective, message, tmp_path
):
    problem = setting()[0]
    with pytest.raises(TypeError, match=message):
        objective.losses(method, Draw(problem, problem.start()), 2, 0, oracle, torch.Generator())
    with pytest.raises(TypeError, match=message):
        learn(
            Denoising(),
            method,
            Settings(objective=objective),
            oracle=oracle,
            folder=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()
    if oracle is not None:
        with pytest.raises(TypeError, match=message):
            unroll(
                method,
                problem,
                problem.start(),
                2,
                oracle,
                torch.Generator(),
                measure=lambda k, x: x.sum(),
            )


def test_mistakes_are_named():
    problem, method = setting()
    with pytest.raises(
        ValueError, match="differentiation must be one of Full, Checkpointed, Truncated, Evolution"
    ):
        run(problem, method, differentiation="magic")
    with pytest.raises(ValueError, match="horizon must be at least 1"):
        run(problem, method, horizon=0)
    with pytest.raises(ValueError, match="Noisy is random: pass generator"):
        run(problem, method, oracle=Noisy(0.1))
    for kind in (Checkpointed, Truncated):
        with pytest.raises(ValueError, match="segment must be at least 1"):
            kind(0)
