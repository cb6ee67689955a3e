"""The same methods inside an autograd graph, and over dicts of tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent import (
    AMD,
    ASMD,
    MD,
    SMD,
    Adam,
    Averaged,
    Function,
    Nesterov,
    Quadratic,
    TVDenoising,
    solve,
)
from mirrordescent.mirrors import Diagonal, Euclidean, HyperbolicEntropy, PNorm, SquaredPNorm
from mirrordescent.oracles import Exact, Smoothed
from mirrordescent.schedules import Prefix

METHODS = [MD, SMD, AMD, ASMD, lambda mirror, t: AMD(mirror, t, storage="primal")]


def unrolled_loss(make, problem, x0, oracle, steps=4):
    def loss(d, t):
        method = make(Diagonal(nn.Parameter(torch.ones_like(d))), Prefix(t.detach()))
        parameters = {"mirror.d": d, "t.values": t}
        state = torch.func.functional_call(
            _Unroll(method, problem, oracle, steps),
            {f"method.{k}": v for k, v in parameters.items()},
            (x0,),
        )
        return problem.value(state).sum()

    return loss


class _Unroll(nn.Module):
    def __init__(self, method, problem, oracle, steps):
        super().__init__()
        self.method = method
        self.problem = problem
        self.oracle = oracle
        self.steps = steps

    def forward(self, x0):
        state = self.method.init(x0)
        for _ in range(self.steps):
            state = self.method.step(self.problem, state, self.oracle)
        return self.method.answer(state)


@pytest.mark.parametrize("make", METHODS)
def test_unrolled_gradients_agree_with_finite_differences(make):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    problem = Quadratic(A @ A.T, torch.ones(3, dtype=torch.float64))
    x0 = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    d = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.1, 0.05], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unrolled_loss(make, problem, x0, Exact()), (d, t))


def test_differentiation_through_a_smoothed_tv_gradient():
    y = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = TVDenoising(y)
    d = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.1, 0.05], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unrolled_loss(AMD, problem, y, Smoothed(0.3)), (d, t))


def test_a_function_can_be_differentiated_twice():
    problem = Function(lambda x: x.pow(3).sum(-1))
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    (second,) = torch.autograd.grad(problem.grad(x).sum(), x)
    torch.testing.assert_close(second, 6 * x.detach())
    with torch.no_grad():
        assert not problem.grad(x).requires_grad


@pytest.mark.parametrize(
    "method",
    [
        MD(HyperbolicEntropy(1.0), 0.1),
        SMD(HyperbolicEntropy(1.0), 0.1),
        AMD(HyperbolicEntropy(1.0), 0.1),
        ASMD(Euclidean(), 0.1),
        Nesterov(0.1),
        Adam(0.1),
        Averaged(MD(Euclidean(), 0.1)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_dict_of_tensors_is_solved_like_its_concatenation(method):
    target = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], dtype=torch.float64)

    def of_tensor(x):
        return ((x - target[: len(x)]) ** 4).sum(-1)

    def of_dict(tree):
        return of_tensor(torch.cat([tree["w"], tree["b"]], -1))

    x0 = torch.full((2, 3), 0.1, dtype=torch.float64)
    flat = solve(Function(of_tensor), method, x0, iterations=30)
    tree = solve(Function(of_dict), method, {"w": x0[:, :2], "b": x0[:, 2:]}, iterations=30)
    torch.testing.assert_close(
        torch.cat([tree.x["w"], tree.x["b"]], -1), flat.x, rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(tree.trace.values, flat.trace.values, rtol=1e-12, atol=1e-12)


def test_a_network_is_trained_by_feeding_gradients():
    """The third use of a method: gradients come from ``backward``, one parameter tensor per
    leaf.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    inputs = torch.randn(64, 2)
    targets = (inputs[:, :1] * inputs[:, 1:]).sign()
    method = AMD(Diagonal(1.0), lambda k: 0.5 / k**0.5)
    state = method.init({name: p.detach() for name, p in model.named_parameters()})

    def loss():
        return (model(inputs) - targets).square().mean()

    before = float(loss().detach())
    for _ in range(200):
        model.load_state_dict(state.x)
        model.zero_grad()
        loss().backward()
        state = method.update(state, {name: p.grad for name, p in model.named_parameters()})
    assert float(loss().detach()) < 0.6 * before


@pytest.mark.parametrize(
    "mirror", [PNorm(1.5), PNorm(3.0), SquaredPNorm(1.5), SquaredPNorm(3.0)], ids=str
)
def test_meta_gradients_are_finite_from_a_start_at_zero(mirror):
    problem = Quadratic(torch.ones(2), torch.tensor([[1.0, 0.0]]))
    method = SMD(mirror, Prefix([0.1, 0.1]))
    state = method.init(torch.zeros(1, 2))
    for _ in range(2):
        state = method.step(problem, state, Exact())
    problem.value(state.x).sum().backward()
    assert method.t.values.grad.isfinite().all()
