"""Steps in graphs of torch.compile: no graph breaks, and the same bits."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mirrordescent import methods, optim
from mirrordescent.mirrors import DenseICNN, LearnedPair, PNorm, SquaredPNorm

sys.path.insert(0, str(Path(__file__).parent))
from steps import OPTIMISERS, parameters, pull

pytestmark = pytest.mark.filterwarnings("ignore")
EVERY = [*OPTIMISERS, optim.Preconditioned]
each = pytest.mark.parametrize("optimiser", EVERY, ids=lambda o: o.__name__)
counters = torch._dynamo.utils.counters


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def twins(make, shapes=((3, 4), (4,))):
    """Return two optimisers of equal parameters; the step of one is compiled."""
    plain, traced = (parameters(*shapes, dtype=torch.float32) for _ in range(2))
    one = make(plain)
    two = make(traced)
    return (plain, one, one.step), (
        traced,
        two,
        torch.compile(two.step, backend="aot_eager", fullgraph=True),
    )


@each
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_there_are_no_breaks_and_no_graph_for_every_shape(optimiser, backend):
    shapes = [(n, m) for n in range(1, 8) for m in (1, 3)]
    plain, traced = (parameters(*shapes, dtype=torch.float32) for _ in range(2))
    one = optimiser(plain, lr=0.1)
    two = optimiser(traced, lr=0.1)
    step = torch.compile(two.step, backend=backend, fullgraph=True)
    for k in range(5):
        pull(plain, k)
        pull(traced, k)
        for each in (one, two):
            each.param_groups[0]["lr"] = 0.1 / (k + 1)
        one.step()
        step()
    assert all(map(torch.equal, plain, traced))
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] <= 2


def test_the_default_compiler_takes_it():
    (plain, _, eager), (traced, two, _) = twins(lambda p: optim.AMD(p, lr=0.1))
    step = torch.compile(two.step, fullgraph=True)
    for k in range(3):
        pull(plain, k)
        pull(traced, k)
        eager()
        step()
    assert all(map(torch.equal, plain, traced))


@each
def test_parameters_that_were_moved_are_followed(optimiser):
    pairs = twins(
        lambda p: optimiser(
            p, lr=0.1, **({} if optimiser is optim.Preconditioned else {"mirror": PNorm(3)})
        )
    )
    for k in range(6):
        for params, _, step in pairs:
            if k == 3:
                for p in params:
                    p.data.add_(0.5)
            pull(params, k)
            step()
    assert all(map(torch.equal, pairs[0][0], pairs[1][0]))


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1},
        {"weight_decay": optim.Decoupled(0.1)},
        {"maximize": True},
        {"foreach": False},
        {"max_grad_norm": 0.1},
        {"dual_dtype": torch.float64},
        {"mirror": SquaredPNorm(1.5)},
        {
            "mirror": LearnedPair(*(DenseICNN(4, layers=1) for _ in range(2)))
        },  # gradients of networks
    ],
    ids=lambda o: str(o)[:30],
)
def test_options_are_honoured(options):
    pairs = twins(lambda p: optim.AMD(p, lr=0.1, **options), [(4,), (4,)])
    for k in range(4):
        for params, _, step in pairs:
            pull(params, k)
            step()
    assert all(map(torch.equal, pairs[0][0], pairs[1][0]))
    assert not counters["graph_break"]


def test_groups_and_parameters_without_gradients():
    pairs = []
    for compiled in (False, True):
        params = parameters((2, 3), (3,), (4,), dtype=torch.float32)
        optimizer = optim.AMD([{"params": params[:1]}, {"params": params[1:], "lr": 0.01}], lr=0.1)
        step = (
            torch.compile(optimizer.step, backend="aot_eager", fullgraph=True)
            if compiled
            else optimizer.step
        )
        pairs.append((params, step))
    for k in range(4):
        for params, step in pairs:
            pull(params, k)
            params[1].grad = None
            step()
    assert all(map(torch.equal, pairs[0][0], pairs[1][0]))


def test_gradients_that_are_not_finite_are_named():
    _, (params, optimizer, step) = twins(lambda p: optim.AMD([("first", p[0]), ("second", p[1])]))
    pull(params, 0)
    step()
    before = copy.deepcopy([p.detach() for p in params])
    params[1].grad[0] = torch.nan
    with pytest.raises(FloatingPointError, match="parameter second is not finite"):
        step()
    assert all(map(torch.equal, before, params))
    optimizer.nonfinite = "skip"
    step()
    assert optimizer.skipped_steps == 1


def test_a_closure_leaves_the_graph():
    (plain, one, _), (traced, two, _) = twins(lambda p: optim.AMD(p, lr=0.1))

    def closure(params, optimizer):
        def loss():
            optimizer.zero_grad()
            total = sum(p.square().sum() for p in params)
            total.backward()
            return total

        return loss

    assert torch.equal(
        one.step(closure(plain, one)),
        torch.compile(two.step, backend="eager")(closure(traced, two)),
    )
    assert all(map(torch.equal, plain, traced))


def test_a_copy_is_stepped_by_its_own_graph():
    params, optimizer, step = twins(lambda p: optim.AMD(p, lr=0.1))[1]
    pull(params, 0)
    step()
    together = copy.deepcopy({"params": params, "optimizer": optimizer})
    before = [p.detach().clone() for p in params]
    pull(together["params"], 1)
    torch.compile(together["optimizer"].step, backend="aot_eager", fullgraph=True)()
    assert all(map(torch.equal, before, params))
    assert not torch.equal(before[0], together["params"][0])


@pytest.mark.parametrize(
    "make", [methods.MD, methods.SMD, methods.AMD, methods.ASMD, methods.Preconditioned]
)
def test_pure_methods_compile_in_one_piece(make):
    """Updates are functions of a state and a gradient; k is a constant of the graph."""
    method = make(PNorm(3.0), 0.1)
    x = torch.linspace(0.5, 1.5, 6)[None]
    g = torch.linspace(-1, 1, 6)[None]
    update = torch.compile(method.update, backend="aot_eager", fullgraph=True)
    ours = theirs = method.init(x)
    for _ in range(3):
        ours = update(ours, g)
        theirs = method.update(theirs, g)
    torch.testing.assert_close(ours.x, theirs.x)


# Cycled momentum


@pytest.mark.parametrize("optimiser", [optim.MD, optim.SMD, optim.ASMD])
def test_momentum_is_not_cycled_where_there_is_none(optimiser):
    optimizer = optimiser([nn.Parameter(torch.ones(1))], lr=0.1)
    for schedule in (
        lambda **options: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=10, **options
        ),
        lambda **options: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, **options),
    ):
        with pytest.raises(ValueError, match="cycle_momentum"):
            schedule()
        schedule(cycle_momentum=False)


def test_without_a_cap_the_momentum_of_amd_is_its_own():
    with pytest.raises(ValueError, match="cycle_momentum"):
        torch.optim.lr_scheduler.OneCycleLR(
            optim.AMD([nn.Parameter(torch.ones(1))], cap=None), 0.1, total_steps=10
        )


@pytest.mark.parametrize("options", [{}, {"foreach": False}], ids=str)
def test_the_momentum_of_amd_is_its_cap(options):
    """β = cap/(r + cap): 0.8 is a cap of 12."""
    first, second = (parameters((3, 4), dtype=torch.float64) for _ in range(2))
    cycled = optim.AMD(first, lr=0.1, **options)
    plain = optim.AMD(second, lr=0.1, cap=12, **options)
    assert cycled.param_groups[0]["momentum"] == pytest.approx(0.9)
    cycled.param_groups[0]["momentum"] = 0.8
    for k in range(40):
        for params, optimizer in ((first, cycled), (second, plain)):
            pull(params, k)
            optimizer.step()
    torch.testing.assert_close(first[0], second[0], rtol=1e-12, atol=1e-12)


def test_one_cycle_of_a_preconditioned_method():
    """With the Euclidean map: m ← βm + (1 − β)g, x ← x − t m, with t and β of the schedule."""
    x = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = optim.MirrorOptimizer(
        [x],
        lr=0.1,
        method=lambda mirror, t: methods.Preconditioned(mirror, t, momentum=0.9, lookahead=False),
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=12, pct_start=0.25)
    place = x.detach().clone()
    m = torch.zeros(3, dtype=torch.float64)
    seen = set()
    for _ in range(12):
        group = optimizer.param_groups[0]
        x.grad = x.detach() - 3
        m = group["momentum"] * m + (1 - group["momentum"]) * (place - 3)
        place = place - group["lr"] * m
        seen.add(round(group["momentum"], 6))
        optimizer.step()
        if len(seen) < 12:
            scheduler.step()
        torch.testing.assert_close(x.detach(), place)
    assert min(seen) == pytest.approx(0.85)
    assert max(seen) == pytest.approx(0.95)


@pytest.mark.parametrize("optimiser", [optim.AMD, optim.Preconditioned], ids=lambda o: o.__name__)
def test_a_cycled_run_goes_on_where_it_was(optimiser):
    def begun():
        params = parameters((3, 4), (4,), dtype=torch.float64)
        optimizer = optimiser(params, lr=0.1)
        return (
            params,
            optimizer,
            torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30),
        )

    def run(params, optimizer, scheduler, first, last):
        for k in range(first, last):
            pull(params, k)
            optimizer.step()
            scheduler.step()

    whole = begun()
    cut = begun()
    resumed = begun()
    run(*whole, 0, 12)
    run(*cut, 0, 5)
    for p, q in zip(resumed[0], cut[0], strict=True):
        p.data.copy_(q.data)
    resumed[1].load_state_dict(cut[1].state_dict())
    resumed[2].load_state_dict(cut[2].state_dict())
    run(*resumed, 5, 12)
    assert all(map(torch.equal, whole[0], resumed[0]))


def test_momentum_outside_its_range_is_refused():
    x = nn.Parameter(torch.ones(2))
    optimizer = optim.AMD([{"params": [x], "momentum": 1.0}])
    x.grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"momentum must be in \[0, 1\)"):
        optimizer.step()
