"""Parameters changed between steps, decoupled decay, and states of other settings or versions."""

from __future__ import annotations

import copy
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mirrordescent import methods, optim
from mirrordescent.domains import DomainError
from mirrordescent.mirrors import (
    Diagonal,
    HyperbolicEntropy,
    NegativeEntropy,
    PNorm,
    SquaredPNorm,
    layerwise,
)

sys.path.insert(0, str(Path(__file__).parent))
from steps import OPTIMISERS, parameters, pull, run

pytestmark = pytest.mark.filterwarnings(
    "ignore:.* parameters have no names", "ignore:input and output layers are taken"
)
MIRRORS = [
    None,
    Diagonal(2.0),
    PNorm(1.5),
    SquaredPNorm(1.5),
    NegativeEntropy(),
    HyperbolicEntropy(),
]
each = pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: o.__name__)
mirrors = pytest.mark.parametrize("mirror", MIRRORS, ids=lambda m: type(m).__name__)
STATES = Path(__file__).parent / "states.json"


def still(optimizer, params):
    """Take a step along zero gradients, and return the distance the parameters moved."""
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    return max(float((p.detach() - old).abs().max()) for p, old in zip(params, before, strict=True))


def by_data(model, values):
    for p, value in zip(model, values, strict=True):
        p.data.copy_(value)


def by_assignment(model, values):
    for p, value in zip(model, values, strict=True):
        p.data = value.clone()


@each
@mirrors
@pytest.mark.parametrize("move", [by_data, by_assignment])
@pytest.mark.parametrize(
    "options", [{}, {"foreach": False}, {"dual_dtype": torch.float64}], ids=str
)
def test_parameters_stay_where_they_were_put(optimiser, mirror, move, options):
    params = parameters((3, 4), (4,), dtype=torch.float32, positive=True)
    optimizer = optimiser(params, lr=0.05, mirror=mirror, **options)
    run(optimizer, params, 4)
    move(params, [p.detach() + 0.5 + torch.rand(p.shape) for p in params])
    assert still(optimizer, params) < 1e-5
    assert still(optimizer, params) < 1e-5


@each
def test_a_model_that_is_loaded_alone_goes_on_from_there(optimiser):
    """It continues like an optimiser that starts at the loaded weights, except for k."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    data = torch.randn(8, 3)
    best = copy.deepcopy(model.state_dict())
    optimizer = optimiser(model.parameters(), lr=0.1)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    for _ in range(5):
        step(model, optimizer)
    model.load_state_dict(best)
    fresh = nn.Linear(3, 2)
    fresh.load_state_dict(best)
    other = optimiser(fresh.parameters(), lr=0.1)
    other.param_groups[0]["k"] = 5
    for _ in range(3):
        step(model, optimizer)
        step(fresh, other)
        torch.testing.assert_close(model.weight, fresh.weight)


def test_entries_that_were_not_moved_keep_their_dual():
    x = nn.Parameter(torch.ones(4))
    optimizer = optim.AMD([x], lr=0.1, mirror=PNorm(3.0))
    run(optimizer, [x], 4)
    before = optimizer.state[x]["z"].clone()
    x.data[1] = 5.0
    x.grad = torch.zeros(4)
    optimizer.step()
    after = optimizer.state[x]["z"]
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])
    assert float(after[1]) == pytest.approx(25.0)  # ∇ψ(5) = 5² for p = 3


def test_means_of_gradients_are_not_forgotten():
    """The moments of Adam do not depend on the position, so they stay, as in torch."""
    ours = nn.Parameter(torch.ones(3))
    theirs = nn.Parameter(torch.ones(3))
    mine = optim.MirrorOptimizer([ours], lr=0.1, method=lambda mirror, t: methods.Adam(t))
    torchs = torch.optim.Adam([theirs], lr=0.1)
    for k in range(6):
        if k == 3:
            ours.data.fill_(2.0)
            theirs.data.fill_(2.0)
        for p, optimizer in ((ours, mine), (theirs, torchs)):
            p.grad = torch.tensor([1.0, -0.5, 0.1]) * (k + 1)
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_a_place_outside_the_domain_is_named():
    x = nn.Parameter(torch.ones(2))
    optimizer = optim.AMD([("weight", x)], mirror=NegativeEntropy())
    run(optimizer, [x], 2)
    x.data[0] = -1.0
    with pytest.raises(
        DomainError, match="parameter weight, which was changed, is outside the domain"
    ):
        run(optimizer, [x], 1)


def test_a_map_of_gradients_does_not_restrict_where_parameters_are_put():
    """With a dual_dtype the parameter itself is stored too, and is updated after a change."""
    x = nn.Parameter(torch.full((3,), 0.5))
    optimizer = optim.Preconditioned([x], lr=0.1, dual_dtype=torch.float64)
    run(optimizer, [x], 2)
    x.data.fill_(7.0)  # far outside of what soft signs map to
    assert still(optimizer, [x]) <= 0.1 * 1.001


def test_watching_can_be_left_out():
    x = nn.Parameter(torch.ones(2))
    optimizer = optim.AMD([x], lr=0.1)
    optimizer.track_changes = False
    run(optimizer, [x], 3)
    x.data.fill_(5.0)
    assert still(optimizer, [x]) > 0.1
    assert copy.deepcopy(optimizer).track_changes is False


# Decoupled weight decay


def test_decoupled_decay_with_adams_method_is_adamw():
    ours = nn.Parameter(torch.ones(3))
    theirs = nn.Parameter(torch.ones(3))
    decay = optim.Decoupled(0.1)
    mine = optim.MirrorOptimizer(
        [ours], lr=0.05, method=lambda mirror, t: methods.Adam(t), weight_decay=decay
    )
    torchs = torch.optim.AdamW([theirs], lr=0.05, weight_decay=0.1)
    for k in range(8):
        for p, optimizer in ((ours, mine), (theirs, torchs)):
            p.grad = torch.tensor([1.0, -0.5, 0.1]) * math.cos(k)
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "mirror", [None, PNorm(1.5), SquaredPNorm(1.5)], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("optimiser", [optim.MD, optim.SMD])
def test_decoupled_decay_shrinks_before_the_step(optimiser, mirror):
    x = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    optimizer = optimiser([x], lr=0.1, mirror=mirror, weight_decay=optim.Decoupled(0.2))
    plain = methods.MD(mirror or Diagonal(1.0), 0.1)
    expected = x.detach().clone()[None]
    for k in range(5):
        x.grad = torch.tensor([0.3, 1.0, -0.2], dtype=torch.float64) * (k + 1)
        optimizer.step()
        expected = plain.update(plain.init(expected * (1 - 0.1 * 0.2)), x.grad[None]).x
    torch.testing.assert_close(x.detach(), expected[0])
    assert optimizer.param_groups[0]["decoupled"] is True


def test_decoupled_decay_leaves_momentum_alone():
    """z − x̃ is the momentum of AMD in the Euclidean geometry; both points move by −t c x."""
    ours, other = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    decayed = optim.AMD([ours], lr=0.1, weight_decay=optim.Decoupled(0.5))
    plain = optim.AMD([other], lr=0.1)
    for k in range(4):
        moved = -0.1 * 0.5 * ours.detach()
        before = ours.detach().clone()
        other.data.copy_(before + moved)
        if k:
            plain.state[other]["z"].copy_(decayed.state[ours]["z"] + moved)
        plain._tracker.clear()
        for p, optimizer in ((ours, decayed), (other, plain)):
            p.grad = torch.tensor([1.0, -0.5], dtype=torch.float64)
            optimizer.step()
        torch.testing.assert_close(ours, other)


# States


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"mirror": PNorm(1.5)}, {"mirror": PNorm(3.0)}, "mirror = .*1.5"),
        ({"r": 3.0}, {"r": 4.0}, "cannot be loaded where"),
        ({"cap": 27}, {"cap": None}, "cannot be loaded where|dual_weight"),
        ({"gamma": 1.0}, {"gamma": 0.5}, "gamma = "),
        ({}, {"correction": "mirror"}, "regulariser = "),
    ],
)
def test_a_state_of_other_settings_is_refused(first, second, message):
    x = nn.Parameter(torch.ones(3))
    optimizer = optim.AMD([x], **first)
    run(optimizer, [x], 2)
    state = optimizer.state_dict()
    if second.get("cap", 1) is None:
        state["param_groups"][0]["settings"] = optim.AMD([x], cap=5).param_groups[0]["settings"]
        second = {"cap": 6}
    with pytest.raises(ValueError, match=message):
        optim.AMD([x], **second).load_state_dict(state)
    optim.AMD([x], **first).load_state_dict(optimizer.state_dict())


@each
def test_every_option_has_a_default_when_a_state_is_loaded(optimiser):
    """A state that was written before the option existed."""
    params = parameters((3, 4), dtype=torch.float32)
    optimizer = optimiser(params, lr=0.1)
    run(optimizer, params, 3)
    state = optimizer.state_dict()
    for option in ("weight_decay", "maximize", "foreach", "decoupled", "settings"):
        del state["param_groups"][0][option]
    twin = copy.deepcopy(params)
    other = optimiser(twin, lr=0.1)
    other.load_state_dict(state)
    for opt, some in ((optimizer, params), (other, twin)):
        pull(some, 3)
        opt.step()
    assert torch.equal(params[0], twin[0])


CASES = {
    f"{optimiser.__name__} {type(mirror).__name__ if mirror else 'None'}": (optimiser, mirror)
    for optimiser in OPTIMISERS
    for mirror in (None, PNorm(1.5), SquaredPNorm(1.5))
} | {"Preconditioned None": (optim.Preconditioned, None)}
STORED = [
    (version, name) for version, states in json.loads(STATES.read_text()).items() for name in states
]


def uninterrupted(name, steps):
    optimiser, mirror = CASES[name]
    params = parameters((2, 3), (3,), dtype=torch.float64)
    optimizer = optimiser(params, lr=0.05, mirror=mirror)
    run(optimizer, params, steps)
    return optimizer, params


@pytest.mark.filterwarnings("ignore:this state was saved with an unrecorded version")
@pytest.mark.parametrize(("version", "name"), STORED)
def test_states_of_earlier_versions_go_on(version, name):
    """Stored by old versions after three steps; three more steps end like six in a row."""
    stored = json.loads(STATES.read_text())[version][name]
    expected = uninterrupted(name, 6)[1]
    optimizer, params = uninterrupted(name, 1)
    for p, values in zip(params, stored["parameters"], strict=True):
        p.data.copy_(torch.tensor(values, dtype=torch.float64))
    tensors = {
        int(number): {
            field: torch.tensor(values, dtype=torch.float64) for field, values in fields.items()
        }
        for number, fields in stored["state"].items()
    }
    optimizer.load_state_dict({"state": tensors, "param_groups": stored["param_groups"]})
    run(optimizer, params, 3, first=3)
    for p, end in zip(params, expected, strict=True):
        torch.testing.assert_close(p, end, rtol=1e-9, atol=1e-9)


# Compiled models, and errors


@pytest.mark.filterwarnings("ignore")
def test_a_layerwise_map_of_a_compiled_model():
    model = nn.Sequential(nn.Linear(3, 2))
    compiled = torch.compile(model, backend="eager")
    mirror = layerwise(compiled)
    assert mirror.names == ("0.weight", "0.bias")
    for named in (model.named_parameters(), compiled.named_parameters()):
        assert len(optim.AMD(named, mirror=mirror).param_groups[0]["params"]) == 2


@each
@pytest.mark.parametrize(
    "option", ["capturable", "differentiable", "momentum", "amsgrad", "weight_deca"]
)
def test_options_that_there_are_not_say_what_to_use(optimiser, option):
    with pytest.raises(
        TypeError, match=f"{option} is not an option of mirror descent|did you mean 'weight_decay'"
    ):
        optimiser([nn.Parameter(torch.ones(1))], **{option: True})


@each
def test_parameters_without_numbers_are_refused(optimiser):
    with pytest.raises(ValueError, match="meta device"):
        optimiser([nn.Parameter(torch.ones(1, device="meta"))])


@each
@mirrors
def test_empty_parameters_take_steps(optimiser, mirror):
    x = nn.Parameter(torch.ones(0, 3))
    optimizer = optimiser([x], mirror=mirror)
    x.grad = torch.ones(0, 3)
    optimizer.step()
    optimizer.step()
    assert x.shape == (0, 3)


if (
    __name__ == "__main__"
):  # python tests/optim/test_moved.py VERSION adds the states of this version

    def as_data(name):
        optimizer, params = uninterrupted(name, 3)
        state = optimizer.state_dict()
        fields = {
            n: {f: v.tolist() for f, v in fields.items()} for n, fields in state["state"].items()
        }
        return {
            "parameters": [p.tolist() for p in params],
            "state": fields,
            "param_groups": state["param_groups"],
        }

    known = json.loads(STATES.read_text())
    known[sys.argv[1]] = {name: as_data(name) for name in CASES}
    STATES.write_text(json.dumps(known) + "\n")
