"""The generic tests of PyTorch's optimisers (test_optim.py), applied to these optimisers."""

from __future__ import annotations

import copy
import itertools
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mirrordescent import optim
from mirrordescent.mirrors import Diagonal, HyperbolicEntropy, Multipliers, SquaredPNorm

sys.path.insert(0, str(Path(__file__).parent))
from steps import OPTIMISERS, parameters, pull, run

MIRRORS = [
    None,
    Diagonal(2.0),
    Multipliers(torch.tensor(0), initial=0.5),
    HyperbolicEntropy(),
    SquaredPNorm(1.5),
]
SETTINGS = [
    {},
    {"lr": 0.02},
    {"lr": torch.tensor(0.02)},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "maximize": True},
    {"max_grad_norm": 0.5},
    {"dual_dtype": torch.float64},
    {"foreach": False},
]

each = pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: o.__name__)
mirrors = pytest.mark.parametrize("mirror", MIRRORS, ids=lambda m: type(m).__name__)
settings = pytest.mark.parametrize("options", SETTINGS, ids=lambda o: ", ".join(o) or "default")


ONE = nn.Parameter(torch.ones(1, 1))
TWO = nn.Parameter(torch.ones(1, 1))


@each
@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (ONE, TypeError, "should be an iterable of Tensors or dicts"),
        (
            [{"params": ONE}, {"params": ONE}],
            ValueError,
            "some parameters appear in more than one parameter group",
        ),
        ([("weight", ONE), TWO], ValueError, "Some param names are missing"),
        (
            [{"params": [ONE]}, {"params": [("w", TWO)]}],
            ValueError,
            "cannot add param group with names",
        ),
        ([{"params": {ONE, TWO}}], TypeError, "ordered collections"),
        ([ONE * 2], ValueError, "can't optimize a non-leaf Tensor"),
        ([1.0], TypeError, "can only optimize Tensors"),
    ],
)
def test_errors_that_all_optimisers_raise(optimiser, params, error, message):
    with pytest.raises(error, match=message):
        optimiser(params)


@each
def test_duplicates_are_warned_of(optimiser):
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimiser([ONE, ONE])


@each
@mirrors
@settings
def test_goes_in_the_right_direction(optimiser, mirror, options):
    torch.manual_seed(0)
    weight = nn.Parameter(0.3 * torch.randn(10, 5))
    bias = nn.Parameter(0.3 * torch.randn(10))
    data = torch.randn(5) / 2
    optimizer = optimiser([weight, bias], mirror=mirror, **options)

    def closure():
        optimizer.zero_grad()
        loss = (weight.mv(data) + bias).pow(2).sum()
        loss.backward()
        return loss

    first = closure().item()
    for _ in range(10):
        optimizer.step(closure)
    assert (closure().item() > first) == options.get("maximize", False)


@each
@mirrors
def test_noncontiguous_parameters(optimiser, mirror):
    def end(arrange):
        torch.manual_seed(0)
        weight = nn.Parameter(arrange(torch.randn(10, 5)))
        optimizer = optimiser([weight], lr=0.1, mirror=mirror)
        run(optimizer, [weight], 5)
        return weight

    plain = end(lambda w: w)
    transposed = end(lambda w: w.t().contiguous().t())
    padded = end(lambda w: torch.cat([w, w], 1)[:, :5])
    assert not transposed.is_contiguous()
    assert not padded.is_contiguous()
    for other in (transposed, padded):
        torch.testing.assert_close(other.detach(), plain.detach())


@each
@settings
def test_learning_rates_and_decays_of_groups(optimiser, options):
    a, b, c, d = parameters((2, 3), (3,), (2, 3), (3,), dtype=torch.float32)
    with torch.no_grad():
        c.copy_(a), d.copy_(b)
    options = {
        name: value
        for name, value in options.items()
        if name not in ("lr", "weight_decay", "max_grad_norm")
    }
    grouped = optimiser(
        [{"params": a, "lr": 0.1, "weight_decay": 0.2}, {"params": [b]}], lr=0.01, **options
    )
    for k in range(4):
        pull([a, b], k)
        gradients = a.grad, b.grad
        grouped.step()
        if k == 0:
            separate = (
                optimiser([c], lr=0.1, weight_decay=0.2, **options),
                optimiser([d], lr=0.01, **options),
            )
        c.grad, d.grad = gradients
        for optimizer in separate:
            optimizer.step()
    assert torch.equal(a, c)
    assert torch.equal(b, d)


@each
@mirrors
def test_a_tensor_for_a_learning_rate(optimiser, mirror):
    first = parameters((2, 3), dtype=torch.float32)
    second = parameters((2, 3), dtype=torch.float32)
    as_tensor = optimiser(first, torch.tensor(0.25), mirror)
    as_number = optimiser(second, 0.25, mirror)
    for k in range(4):
        run(as_tensor, first, 1, first=k)
        run(as_number, second, 1, first=k)
        as_tensor.param_groups[0]["lr"].mul_(0.5)
        as_number.param_groups[0]["lr"] *= 0.5
    assert torch.equal(first[0], second[0])


@each
@mirrors
def test_steps_without_gradients_do_nothing(optimiser, mirror):
    params = parameters((2, 3), (), dtype=torch.float32)
    optimizer = optimiser(params, mirror=mirror)
    before = copy.deepcopy(params)
    optimizer.step()
    assert all(map(torch.equal, params, before))
    assert not optimizer.state


@each
@mirrors
def test_steps_along_zero_stay_at_the_start(optimiser, mirror):
    params = parameters((2, 3), (), dtype=torch.float64)
    optimizer = optimiser(params, mirror=copy.deepcopy(mirror) and copy.deepcopy(mirror).double())
    before = copy.deepcopy(params)
    for _, p in itertools.product(range(3), params):
        p.grad = torch.zeros_like(p)
        optimizer.step()
    for p, old in zip(params, before, strict=True):
        torch.testing.assert_close(p, old, rtol=1e-12, atol=1e-14)


@each
@pytest.mark.parametrize("mirror", MIRRORS[:-1], ids=lambda m: type(m).__name__)
def test_empty_parameters(optimiser, mirror):
    params = [nn.Parameter(torch.randn(5, 0)), nn.Parameter(torch.randn(3))]
    optimizer = optimiser(params, mirror=mirror)
    run(optimizer, params, 3)
    assert params[0].shape == (5, 0)


@each
@mirrors
def test_parameters_of_different_types_and_none_dimensions(optimiser, mirror):
    params = [
        *parameters((), (3,), dtype=torch.float32),
        *parameters((2, 2), ()),
        *parameters((3,), dtype=torch.bfloat16),
    ]
    optimizer = optimiser(params, lr=0.1, mirror=mirror)
    kinds = [(p.dtype, p.shape) for p in params]
    run(optimizer, params, 3)
    assert [(p.dtype, p.shape) for p in params] == kinds
    assert all(
        field.dtype == p.dtype for p in params for field in optimizer.state.get(p, {}).values()
    )


@each
@settings
def test_states_are_deterministic_and_can_be_loaded(optimiser, options):
    params = parameters((2, 3), (3,), dtype=torch.float32)
    others = parameters((2, 3), (3,), dtype=torch.float32)
    optimizer = optimiser(params, **options)
    other = optimiser(others, **options)
    run(optimizer, params, 3)
    before = copy.deepcopy(optimizer.state_dict())
    other.load_state_dict(copy.deepcopy(before))
    with torch.no_grad():
        for mine, theirs in zip(others, params, strict=True):
            mine.copy_(theirs)
    run(optimizer, params, 3, first=3)
    run(other, others, 3, first=3)
    assert all(map(torch.equal, params, others))
    again = optimizer.state_dict()
    loaded = other.state_dict()
    assert again["param_groups"] == loaded["param_groups"]
    for number, fields in again["state"].items():
        assert all(
            torch.equal(field, loaded["state"][number][name]) for name, field in fields.items()
        )
    optimizer.load_state_dict(before)
    assert optimizer.param_groups[0]["k"] == 3


@each
def test_states_with_and_without_names(optimiser):
    params = parameters((2, 3), (3,))
    named = optimiser(zip(["w", "b"], params, strict=True))
    bare = optimiser(params)
    run(named, params, 1)
    assert named.state_dict()["param_groups"][0]["param_names"] == ["w", "b"]
    bare.load_state_dict(named.state_dict())
    run(bare, params, 1)
    fresh = optimiser(parameters((2, 3), (3,)))
    run(fresh, fresh.param_groups[0]["params"], 1)
    named.load_state_dict(fresh.state_dict())
    assert named.param_groups[0]["param_names"] == ["w", "b"]


@each
def test_hooks(optimiser):
    params = parameters((2, 3))
    optimizer = optimiser(params)
    calls = []
    handles = [
        optimizer.register_step_pre_hook(lambda o, args, kwargs: calls.append(("before", o))),
        optimizer.register_step_post_hook(lambda o, args, kwargs: calls.append(("after", o))),
    ]
    run(optimizer, params, 2)
    assert calls == [("before", optimizer), ("after", optimizer)] * 2
    for handle in handles:
        handle.remove()
    run(optimizer, params, 1)
    assert len(calls) == 4

    saves = optimizer.register_state_dict_post_hook(lambda o, state: {**state, "extra": 1})
    loads = optimizer.register_load_state_dict_pre_hook(
        lambda o, state: calls.append(state.pop("extra"))
    )
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls[-1] == 1
    saves.remove()
    loads.remove()


@each
def test_a_hook_may_mend_a_state(optimiser):
    """The state that the hook returns is loaded, as for optimisers of torch."""
    params = parameters((2, 3))
    optimizer = optimiser(params, lr=0.1)
    run(optimizer, params, 1)
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:
        group["mirror"] = "OldNameOfEuclidean"
    with pytest.raises(ValueError, match="OldNameOfEuclidean"):
        optimizer.load_state_dict(state)

    def mend(_, incoming):
        return {
            **incoming,
            "param_groups": [
                {**group, "mirror": "Euclidean"} for group in incoming["param_groups"]
            ],
        }

    optimizer.register_load_state_dict_pre_hook(mend)
    optimizer.load_state_dict(state)
    run(optimizer, params, 1)


@each
@mirrors
def test_copies_work(optimiser, mirror):
    params = parameters((2, 3), dtype=torch.float32)
    optimizer = copy.deepcopy(optimiser(params, mirror=mirror, t=lambda k: 1 / k))
    run(optimizer, optimizer.param_groups[0]["params"], 2)
    copy.deepcopy(optimizer).step()


@each
def test_gradients_can_be_zeroed(optimiser):
    params = parameters((2, 3), (3,))
    for foreach, to_none in itertools.product((None, False, True), (True, False)):
        optimizer = optimiser(params, foreach=foreach)
        pull(params, 0)
        optimizer.zero_grad(set_to_none=to_none)
        assert all(p.grad is None if to_none else (p.grad == 0).all() for p in params)


@each
def test_it_can_be_printed(optimiser):
    shown = repr(optimiser(parameters((2, 3)), lr=0.125, mirror=HyperbolicEntropy()))
    assert shown.startswith(f"{optimiser.__name__} (")
    assert "lr: 0.125" in shown
    assert "mirror: HyperbolicEntropy" in shown


def test_they_are_optimisers():
    assert all(issubclass(optimiser, torch.optim.Optimizer) for optimiser in OPTIMISERS)
    assert optim.__all__ == [
        "AMD",
        "ASMD",
        "MD",
        "SMD",
        "Decoupled",
        "MirrorOptimizer",
        "Preconditioned",
        "SpectralDescent",
    ]
