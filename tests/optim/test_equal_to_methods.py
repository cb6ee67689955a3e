"""The optimisers take the steps of the pure methods, and in some cases those of torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mirrordescent import methods, optim, zoo
from mirrordescent.domains import Box, DomainError
from mirrordescent.mirrors import (
    Burg,
    Conjugate,
    DenseICNN,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    LearnedPair,
    Logit,
    Multipliers,
    NegativeEntropy,
    PNorm,
    Spline,
    SquaredPNorm,
)
from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.recipes.architectures import small_cnn
from mirrordescent.schedules import Prefix, RootReciprocal

sys.path.insert(0, str(Path(__file__).parent))
from steps import OPTIMISERS, parameters, pull, pure, run, run_pure

SHAPES = [(3, 4), (4,), (2, 3, 4)]
EXACT = {"rtol": 0, "atol": 0}
ROUNDED = {"rtol": 1e-10, "atol": 1e-12}

MAPS = {
    "euclidean": lambda: Euclidean(),
    "diagonal": lambda: Diagonal(torch.tensor([0.5, 1.0, 2.0, 4.0])),
    "multipliers": lambda: Multipliers(torch.tensor([0, 1, 1, 2]), initial=0.7),
    "spline": lambda: Spline(torch.tensor([0, 1, 1, 0])),
    "hyperbolic": lambda: HyperbolicEntropy(0.5),
    "p-norm": lambda: PNorm(1.8),
    "squared p-norm": lambda: SquaredPNorm(1.5),
    "orthant": lambda: NegativeEntropy(),
    "burg": lambda: Burg(),
    "logit": lambda: Logit(0.0, 4.0),
    "box": lambda: Euclidean(Box(0.0, 1.0)),
}
POSITIVE = {"orthant", "burg", "logit", "box"}

each = pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: o.__name__)
maps = pytest.mark.parametrize("name", MAPS)


def learned(name):
    """Return a map whose parameters differ from their initial values."""
    mirror = MAPS[name]().double()
    generator = torch.Generator().manual_seed(5)
    for p in mirror.parameters():
        p.data.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return mirror


def assert_same(ours, theirs, **tolerance):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


@each
@maps
@pytest.mark.parametrize("foreach", [None, False])
def test_equal_to_the_pure_method(optimiser, name, foreach):
    mirror = learned(name)
    params = parameters(*SHAPES, positive=name in POSITIVE)
    method = pure(optimiser, mirror, 0.02, **({"cap": 5} if optimiser is optim.AMD else {}))
    expected = run_pure(method, params, 12)
    options = {"cap": 5} if optimiser is optim.AMD else {}
    optimizer = optimiser(params, lr=0.02, mirror=mirror, foreach=foreach, **options)
    assert_same(run(optimizer, params, 12), expected, **ROUNDED)


@maps
@pytest.mark.parametrize("foreach", [None, False])
def test_a_correction_in_the_geometry_of_the_map(name, foreach):
    mirror = learned(name)
    params = parameters(*SHAPES, positive=name in POSITIVE)
    expected = run_pure(methods.AMD(mirror, 0.02, gamma=0.5, cap=5, regulariser=mirror), params, 12)
    options = {"gamma": 0.5, "cap": 5, "correction": "mirror", "foreach": foreach}
    assert_same(
        run(optim.AMD(params, lr=0.02, mirror=mirror, **options), params, 12), expected, **ROUNDED
    )


def test_a_learned_method_of_the_zoo_is_that_method():
    model = small_cnn()
    method = zoo.load("mnist-cnn-diagonal")
    images = torch.rand(20, 1, 14, 14)
    labels = torch.arange(20) % 10
    problem = NetworkTraining(model, images, labels)
    state = method.init({name: p.detach()[None].clone() for name, p in model.named_parameters()})
    optimizer = optim.AMD(model.named_parameters(), lr=1.0, mirror="mnist-cnn-diagonal")
    for _ in range(15):
        state = method.update(state, problem.grad(state.x))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), state.x[name][0], rtol=1e-3, atol=1e-4)


@each
@pytest.mark.parametrize("foreach", [None, False])
def test_euclidean_steps_are_the_same_bits(optimiser, foreach):
    params = parameters(*SHAPES, dtype=torch.float32)
    options = {"cap": 27} if optimiser is optim.AMD else {}
    expected = run_pure(pure(optimiser, Euclidean(), 0.1, **options), params, 40)
    assert_same(
        run(optimiser(params, lr=0.1, foreach=foreach, fused=False), params, 40), expected, **EXACT
    )


@each
@pytest.mark.parametrize("name", ["euclidean", "diagonal", "multipliers"])
def test_in_place_steps_equal_those_one_by_one(optimiser, name):
    mirror = learned(name)
    options = {
        "lr": 0.1,
        "mirror": mirror,
        "weight_decay": 0.1,
        "maximize": True,
        "max_grad_norm": 3.0,
    }
    together = parameters(*SHAPES)
    alone = parameters(*SHAPES)
    first = run(optimiser(together, foreach=True, **options), together, 40)
    second = run(optimiser(alone, foreach=False, **options), alone, 40)
    assert_same(first, second, **ROUNDED)


@each
@pytest.mark.parametrize(
    "make", [LearnedPair, lambda forward, backward: Conjugate(backward)], ids=["pair", "conjugate"]
)
def test_learned_maps_of_whole_tensors(optimiser, make):
    generator = torch.Generator().manual_seed(0)
    mirror = make(
        *(DenseICNN(4, hidden=6, layers=1, generator=generator).double() for _ in range(2))
    )
    params = parameters((4,))
    method = pure(optimiser, mirror, 0.05, **({"cap": 27} if optimiser is optim.AMD else {}))
    expected = run_pure(method, params, 10)
    assert_same(run(optimiser(params, lr=0.05, mirror=mirror), params, 10), expected, **ROUNDED)


@each
def test_schedules_multiply_the_learning_rate(optimiser):
    params = parameters(*SHAPES)
    options = {"cap": 27} if optimiser is optim.AMD else {}
    expected = run_pure(pure(optimiser, Euclidean(), RootReciprocal(0.06), **options), params, 10)
    optimizer = optimiser(params, lr=0.02, t=lambda k: 3 / k**0.5)
    assert_same(run(optimizer, params, 10), expected, **ROUNDED)
    assert_same(
        run(optimiser(again := parameters(*SHAPES), lr=2.0, t=Prefix([0.01, 0.02])), again, 2),
        run_pure(
            pure(optimiser, Euclidean(), lambda k: 0.02 * k, **options), parameters(*SHAPES), 2
        ),
        rtol=1e-6,
        atol=1e-8,
    )


def test_smd_with_the_euclidean_map_is_sgd():
    ours = parameters(*SHAPES, dtype=torch.float32)
    theirs = parameters(*SHAPES, dtype=torch.float32)
    options = {"lr": 0.1, "weight_decay": 0.01, "maximize": True}
    first = run(optim.SMD(ours, fused=False, **options), ours, 30)
    second = run(torch.optim.SGD(theirs, **options), theirs, 30)
    assert_same(first, second, **EXACT)


def test_capped_amd_is_sgd_with_nesterov_momentum():
    """From k = cap on, and with γ = β.

    The initial velocity v follows from m = −(w − γ) t v and m = (z − x)/(1 − λ).
    """
    r = 3.0
    cap = 12
    t = 0.05
    beta = cap / (r + cap)
    weight = cap / r
    ours = parameters(*SHAPES)
    optimizer = optim.AMD(ours, lr=t, r=r, cap=cap, gamma=beta)
    run(optimizer, ours, cap)
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    sgd = torch.optim.SGD(theirs, lr=beta * t, momentum=beta, nesterov=True)
    for p, q in zip(ours, theirs, strict=True):
        m = (optimizer.state[p]["z"] - p.detach()) / beta
        sgd.state[q]["momentum_buffer"] = -m / ((weight - beta) * t)
    assert_same(run(optimizer, ours, 30, first=cap), run(sgd, theirs, 30, first=cap), **ROUNDED)


def test_capped_amd_is_descent_with_momentum_for_every_gamma():
    """v⁺ = βv + g, x⁺ = x − t(γg + (β − (1−β)γ)v⁺), with m = −(w − γ) t v at the start."""
    r = 4.0
    cap = 20
    t = 0.05
    gamma = 0.3
    beta = cap / (r + cap)
    weight = cap / r
    (p,) = params = parameters((5, 2))
    optimizer = optim.AMD(params, lr=t, r=r, cap=cap, gamma=gamma)
    run(optimizer, params, cap)
    x = p.detach().clone()
    v = -(optimizer.state[p]["z"] - x) / beta / ((weight - gamma) * t)
    for k in range(cap, cap + 30):
        pull([p], k)
        g = p.grad.clone()
        optimizer.step()
        v = beta * v + g
        x = x - t * (gamma * g + (beta - (1 - beta) * gamma) * v)
    torch.testing.assert_close(p.detach(), x, **ROUNDED)


def test_amd_without_a_cap_is_the_printed_algorithm():
    x_tilde = z = parameters((6,))[0].detach()
    (p,) = params = parameters((6,))
    optimizer = optim.AMD(params, lr=0.03, r=4.0, gamma=1.5, cap=None)
    for k in range(40):
        x = 4 / (4 + k) * z + (1 - 4 / (4 + k)) * x_tilde
        torch.testing.assert_close(p.detach(), x, **ROUNDED)
        pull([p], k)
        g = p.grad.clone()
        optimizer.step()
        z = z - k * 0.03 / 4 * g
        x_tilde = x - 1.5 * 0.03 * g


@each
def test_minibatches_of_a_module(optimiser):
    """On a module with gradients of autograd, against the pure method on a dict of parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    options = {"cap": 27} if optimiser is optim.AMD else {}
    method = pure(optimiser, HyperbolicEntropy(0.3), 0.05, **options)
    state = method.init({name: p.detach()[None].clone() for name, p in model.named_parameters()})
    optimizer = optimiser(model.parameters(), lr=0.05, mirror=HyperbolicEntropy(0.3))
    generator = torch.Generator().manual_seed(0)
    for _ in range(15):
        inputs = torch.randn(8, 3, generator=generator, dtype=torch.float64)
        point = {name: leaf[0].clone().requires_grad_() for name, leaf in state.x.items()}
        loss = torch.func.functional_call(model, point, (inputs,)).square().sum()
        gradients = torch.autograd.grad(loss, list(point.values()))
        state = method.update(
            state, {name: g[None] for name, g in zip(point, gradients, strict=True)}
        )
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), state.x[name][0], **ROUNDED)


def test_a_map_that_changes_is_read_anew():
    mirror = Multipliers(torch.tensor(0), initial=1.0).double()
    (p,) = params = parameters((3,))
    optimizer = optim.SMD(params, lr=1.0, mirror=mirror)
    for factor in (1.0, 0.5, 3.0):
        with torch.no_grad():
            mirror.log_multiplier.fill_(torch.tensor(factor).log())
        before = p.detach().clone()
        p.grad = torch.ones_like(p)
        optimizer.step()
        torch.testing.assert_close(
            before - p.detach(), torch.full_like(p.detach(), factor), rtol=1e-6, atol=0
        )


@each
def test_a_step_out_of_the_dual_domain_is_refused(optimiser):
    (p,) = params = parameters((3,), positive=True)
    optimizer = optimiser(params, lr=1.0, mirror=Burg())

    def march():
        for _ in range(20):
            p.grad = torch.full_like(p, -10.0)
            optimizer.step()

    with pytest.raises(DomainError, match="a step left the domain of Burg"):
        march()
    assert (p > 0).all()


def test_methods_are_the_ones_of_the_library():
    for optimiser in OPTIMISERS:
        updates = optimiser(parameters((2,)), mirror=SquaredPNorm(1.5))._executors[0].updates
        assert type(updates[0].method) is getattr(methods, optimiser.__name__)


def test_a_subclass_may_be_another_map():
    class Doubled(Diagonal):
        def _step(self, x, v, t):
            return super()._step(x, 2 * v, t)

    (p,) = params = parameters((3,))
    before = p.detach().clone()
    p.grad = torch.ones_like(p)
    optim.MD(params, lr=0.5, mirror=Doubled(1.0).double()).step()
    torch.testing.assert_close(p.detach(), before - 1)
