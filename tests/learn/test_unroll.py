"""Unrolling: the same values as solving, and the same gradients however they are kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent import AMD, ASMD, MD, SMD, Function, Quadratic, TVDenoising, solve
from mirrordescent.learn import unroll
from mirrordescent.learn.unroll import FirstOrder
from mirrordescent.mirrors import Diagonal
from mirrordescent.oracles import Exact, Noisy, Smoothed
from mirrordescent.schedules import Prefix, Schedule

METHODS = [MD, SMD, AMD, ASMD, lambda mirror, t: AMD(mirror, t, storage="primal")]


def setting(make=AMD):
    y = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mirror = Diagonal(nn.Parameter(torch.full((5, 5), 1.5, dtype=torch.float64)))
    return TVDenoising(y), make(mirror, Prefix(torch.tensor([0.2, 0.1], dtype=torch.float64)))


def gradients(method, values):
    torch.stack(values).sum().backward()
    found = [p.grad.clone() for p in method.parameters()]
    method.zero_grad()
    return found


def run(problem, method, horizon=10, oracle=None, generator=None, **options):
    measure = lambda k, x: problem.value(x)  # noqa: E731
    return unroll(
        method, problem, problem.start(), horizon, oracle or Smoothed(0.2), generator, measure=measure, **options
    )


@pytest.mark.parametrize("make", METHODS)
@pytest.mark.parametrize("differentiation", ["full", "checkpointed", "truncated"])
def test_values_are_those_of_solve(make, differentiation):
    problem, method = setting(make)
    values = run(problem, method, differentiation=differentiation)
    solved = solve(problem, method, iterations=10, oracle=Smoothed(0.2), trace=range(1, 11)).trace.values
    torch.testing.assert_close(torch.stack(values).detach(), solved, rtol=1e-12, atol=0)


@pytest.mark.parametrize("make", METHODS)
@pytest.mark.parametrize("segment", [None, 1, 3, 10])
def test_checkpointing_changes_no_gradient(make, segment):
    problem, method = setting(make)
    full = gradients(method, run(problem, method))
    again = gradients(method, run(problem, method, differentiation="checkpointed", segment=segment))
    for a, b in zip(full, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


def test_checkpointing_draws_the_same_noise_twice():
    problem, method = setting()
    noisy = Noisy(0.1, Smoothed(0.2))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    full = gradients(method, run(problem, method, oracle=noisy, generator=generators[0]))
    again = gradients(
        method, run(problem, method, oracle=noisy, generator=generators[1], differentiation="checkpointed")
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
    x0, measure = torch.ones(1, 2), lambda k, x: x.sum(-1)
    found = {}
    for differentiation in ("full", "checkpointed"):
        calls = 0
        values = unroll(
            method, Function(f), x0, 13, Exact(), differentiation=differentiation, segment=4, measure=measure
        )
        found[differentiation] = gradients(method, values)[0], calls
    torch.testing.assert_close(found["checkpointed"][0], found["full"][0])
    assert (found["full"][1], found["checkpointed"][1]) == (13, 13 + 9)


def test_a_checkpointed_segment_may_depend_on_nothing_learned():
    class Late(Schedule):
        def __init__(self):
            super().__init__()
            self.late = nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

        def forward(self, k):
            return self.late if k > 4 else 0.1

    problem, method = setting()[0], MD(Diagonal(1.5).double(), Late())
    full = gradients(method, run(problem, method))
    again = gradients(method, run(problem, method, differentiation="checkpointed", segment=2))
    torch.testing.assert_close(full, again)


def test_truncation_cuts_between_segments():
    """The loss of the last step alone, with segments of one: only that step's own use of d and t counts."""
    problem, method = setting(MD)
    whole = gradients(method, run(problem, method, differentiation="truncated", segment=10))
    full = gradients(method, run(problem, method))
    for a, b in zip(full, whole, strict=True):
        torch.testing.assert_close(a, b)
    run(problem, method, horizon=2, differentiation="truncated", segment=1)[-1].sum().backward()
    assert method.t.values.grad[0] == 0
    assert method.t.values.grad[1] != 0


def test_first_order_takes_the_gradient_as_a_constant():
    """x⁺ = x − t∇f(x)/d with ∇f detached, differentiated by hand on a quadratic."""
    problem = Quadratic(torch.tensor([3.0], dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    method = MD(Diagonal(1.0).double(), Prefix(torch.tensor([0.1, 0.1], dtype=torch.float64)))
    x0 = torch.ones(1, 1, dtype=torch.float64)
    last = unroll(method, problem, x0, 2, FirstOrder(Exact()), measure=lambda k, x: x.sum())[-1]
    last.backward()
    # x₁ = 1 − t₁·3, x₂ = x₁ − t₂·3x₁ with 3 and 3x₁ constant: ∂x₂ = (−3, −3x₁)
    assert method.t.values.grad.tolist() == pytest.approx([-3.0, -3 * 0.7])


def test_mistakes_are_named():
    problem, method = setting()
    with pytest.raises(ValueError, match="differentiation must be one of full"):
        run(problem, method, differentiation="magic")
    with pytest.raises(ValueError, match="horizon must be at least 1"):
        run(problem, method, horizon=0)
