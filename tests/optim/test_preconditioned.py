"""The optimiser Preconditioned: steps of the method, conventions of torch, and networks."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mirrordescent import methods, optim, zoo
from mirrordescent.mirrors import (
    ByKind,
    PNorm,
    SingularValues,
    SoftSign,
    SpectralPower,
    SquaredPNorm,
    roles_of,
    spectral_by_kind,
)
from mirrordescent.mirrors.by_kind import KINDS
from mirrordescent.mirrors.roles import Role
from mirrordescent.recipes.architectures import mlp, small_cnn, small_resnet
from mirrordescent.recipes.training_tasks import Recurrent, Transformer
from mirrordescent.schedules import OverRun

sys.path.insert(0, str(Path(__file__).parent))
from steps import parameters, pull, run

pytestmark = pytest.mark.filterwarnings(
    "ignore:.* parameters have no names", "ignore:input and output layers are taken"
)
MAPS = {
    "power": lambda: SpectralPower(0.4),
    "power, by products": lambda: SpectralPower(0.4, products=4),
    "polar, by products": lambda: SpectralPower(0.0, products=5),
    "sign": lambda: SoftSign(0.1),
    "squared norm": lambda: SingularValues(SquaredPNorm(1.5)),
}
SHAPES = [(3, 4), (4,), (6, 2, 3), (8, 30), (8, 30)]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("second", [None, 0.8, 0.0])
def test_equal_to_the_method_on_every_tensor(name, foreach, lookahead, second):
    mirror = MAPS[name]()
    params = parameters(*SHAPES)
    states = [p.detach()[None].clone() for p in params]
    method = methods.Preconditioned(mirror, 0.02, 0.9, lookahead, normalised=True, decay=0.3)
    if second is not None:
        method = methods.AdaptivePreconditioned(mirror, 0.02, 0.9, second, lookahead, decay=0.3)
    states = [method.init(x) for x in states]
    options = {"momentum": 0.9, "lookahead": lookahead, "weight_decay": 0.3, "foreach": foreach}
    options |= {"second_momentum": second}
    optimizer = optim.Preconditioned(params, lr=0.02, mirror=mirror, **options)
    for k in range(8):
        here = [state.x[0].clone() for state in states]
        pull(here, k)
        states = [method.update(state, x.grad[None]) for state, x in zip(states, here, strict=True)]
        run(optimizer, params, 1, first=k)
        for p, state in zip(params, states, strict=True):
            torch.testing.assert_close(p.detach(), state.x[0], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("fused", [None, False])
def test_tensors_with_gaps_take_the_same_steps(fused):
    params = [
        nn.Parameter(p.detach().to(memory_format=torch.channels_last))
        for p in parameters((4, 3, 2, 2), (3, 2, 3, 3))
    ]
    alike = [nn.Parameter(p.detach().contiguous()) for p in params]
    for some in (params, alike):
        options = {"momentum": 0.9, "second_momentum": 0.9, "fused": fused}
        run(optim.Preconditioned(some, lr=0.02, mirror=SpectralPower(0.4), **options), some, 5)
    for a, b in zip(params, alike, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-8, atol=1e-9)


def test_a_tensor_whose_gradients_come_late_takes_no_long_step():
    first, late = parameters((4, 5), (4, 5))
    optimizer = optim.Preconditioned(
        [first, late], lr=0.01, mirror=PNorm(2.0), second_momentum=0.98
    )
    for _ in range(50):
        first.grad = torch.randn(4, 5, dtype=torch.float64)
        optimizer.step()
    before = late.detach().clone()
    late.grad = torch.randn(4, 5, dtype=torch.float64)
    optimizer.step()
    torch.testing.assert_close(
        (late.detach() - before).abs(), torch.full((4, 5), 0.01).double(), rtol=1e-5, atol=0
    )


def test_every_group_has_the_method_of_its_own_entry():
    a, b = parameters((4, 5), (4, 5))
    groups = [
        {"params": [("a", a)], "mirror": "network-spectral"},
        {"params": [("b", b)], "mirror": PNorm(3.0)},
    ]
    optimizer = optim.Preconditioned(groups, lr=1.0)
    learned, plain = (executor.updates[0].method for executor in optimizer._executors)
    entry = zoo.load("network-spectral")
    assert isinstance(learned, methods.AdaptivePreconditioned)
    assert (learned.momentum, learned.second_momentum) == (entry.momentum, entry.second_momentum)
    assert type(plain) is methods.Preconditioned


def test_the_order_of_what_is_stored_does_not_matter():
    def begin():
        (w,) = parameters((4, 5))
        return w, optim.Preconditioned([w], lr=0.01, second_momentum=0.9)

    (w, optimizer) = begin()
    (again, other) = begin()
    run(optimizer, [w], 3)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0] = dict(reversed(saved["state"][0].items()))
    with torch.no_grad():
        again.copy_(w)
    other.load_state_dict(saved)
    for each, some in ((optimizer, w), (other, again)):
        run(each, [some], 2, first=3)
    assert torch.equal(w, again)


def test_groups_added_later_are_of_the_same_network():
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 2))
    mirror = ByKind({kind: PNorm(2.0) for kind in KINDS}, depth=1.0, depth_normed=0.0)
    optimizer = optim.Preconditioned(model[:3].named_parameters(), mirror=mirror)
    optimizer.add_param_group({"params": [("3.bias", model[3].bias)]})
    sizes = {executor.updates[-1].mirror.direction_size for executor in optimizer._executors}
    assert sizes == {1.0}


def test_a_network_by_kinds_takes_the_steps_of_the_method_on_the_whole_of_it():
    model = small_cnn()
    mirror = spectral_by_kind().requires_grad_(False)
    method = methods.Preconditioned(mirror, 0.01, 0.9, normalised=True)
    state = method.init({name: p.detach()[None].clone() for name, p in model.named_parameters()})
    optimizer = optim.Preconditioned(model.named_parameters(), lr=0.01, momentum=0.9)
    images = torch.rand(20, 1, 14, 14)
    labels = torch.arange(20) % 10
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        state = method.update(
            state, {name: p.grad[None].clone() for name, p in model.named_parameters()}
        )
        optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), state.x[name][0], rtol=1e-3, atol=1e-4)


def test_the_polar_factor_is_that_of_the_singular_value_decomposition():
    (w,) = parameters((5, 8))
    before = w.detach().clone()
    optimizer = optim.Preconditioned(
        [w], lr=0.1, mirror=SpectralPower(0.0, damping=1e-9), momentum=0.0
    )
    w.grad = torch.randn(5, 8, dtype=torch.float64)
    optimizer.step()
    U, _, Vh = torch.linalg.svd(w.grad, full_matrices=False)
    torch.testing.assert_close(before - w.detach(), 0.1 * (U @ Vh) * 8**0.5, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        mlp,
        small_cnn,
        small_resnet,
        lambda: Transformer(16, 1, 2, 8),
        lambda: Recurrent(nn.LSTM, 8, 12),
    ],
    ids=["mlp", "cnn", "resnet", "transformer", "lstm"],
)
def test_one_line_trains_any_network(make):
    torch.manual_seed(0)
    model = make()
    text = isinstance(model, Transformer | Recurrent)
    inputs = (
        torch.randint(90, (16, 8))
        if text
        else torch.rand(16, 1, *[14 if make is small_cnn else 28] * 2)
    )
    targets = torch.randint(10, (16, 8) if text else (16,))
    optimizer = optim.Preconditioned(model.named_parameters(), steps=60)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("second", [None, 0.9])
def test_a_run_resumed_is_the_run(second):
    def begin():
        torch.manual_seed(0)
        model = small_cnn()
        return model, optim.Preconditioned(
            model.named_parameters(), lr=0.02, steps=20, second_momentum=second
        )

    def train(model, optimizer, steps):
        images = torch.rand(16, 1, 14, 14, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(16) % 10
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()

    whole = begin()
    first = begin()
    second = begin()
    train(*whole, 20)
    train(*first, 9)
    for part, saved in zip(
        second, [copy.deepcopy(part.state_dict()) for part in first], strict=True
    ):
        part.load_state_dict(saved)
    train(*second, 11)
    assert all(map(torch.equal, whole[0].parameters(), second[0].parameters()))
    with pytest.warns(UserWarning, match="takes step 21 of a run of 20 steps"):
        train(*copy.deepcopy(second), 1)


def test_the_schedule_goes_over_the_run_and_learning_rates_multiply_it():
    (w,) = parameters((3, 4))
    optimizer = optim.Preconditioned([w], lr=0.5, mirror=PNorm(2.0), steps=10)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5**k)

    def step(k):
        before = w.detach().clone()
        pull([w], k)
        optimizer.step()
        scheduler.step()
        moved = float((w.detach() - before).square().mean().sqrt())
        assert moved == pytest.approx(0.5 * 0.5**k * OverRun(10)(k + 1), rel=1e-6)

    step(0)
    with pytest.warns(UserWarning, match="a learning-rate scheduler multiplies"):
        step(1)
    for k in range(2, 10):
        step(k)


def test_groups_share_what_is_known_of_the_network():
    model = mlp()
    named = list(model.named_parameters())
    groups = [{"params": named[:4], "lr": 0.1}, {"params": named[4:], "weight_decay": 0.1}]
    optimizer = optim.Preconditioned(groups, lr=0.01)
    kinds = optimizer._roles
    assert kinds == roles_of(model)
    assert kinds["3.weight"].kind == "hidden"
    optimizer.add_param_group({"params": [("other.weight", nn.Parameter(torch.ones(3, 3)))]})


def test_roles_can_be_told():
    w = nn.Parameter(torch.randn(6, 6))
    mirror = ByKind(
        {kind: SpectralPower(1.0) for kind in KINDS}, {"hidden": 0.5, "output": 1.0}, width=0.0
    )
    optimizer = optim.Preconditioned([("w", w)], lr=1.0, mirror=mirror, roles={"w": Role("hidden")})
    before = w.detach().clone()
    w.grad = torch.randn(6, 6)
    optimizer.step()
    assert float((w.detach() - before).square().mean().sqrt()) == pytest.approx(
        0.5 * 4**0.0, rel=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dual_dtype", [None, torch.float32])
def test_low_precision(dtype, dual_dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(dtype)
    optimizer = optim.Preconditioned(
        model.named_parameters(), lr=0.02, steps=40, dual_dtype=dual_dtype, weight_decay=0.1
    )
    x = torch.randn(32, 8)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (model(x.to(dtype)).float()[:, 0] - x[:, 0]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_mixed_precision_with_a_gradient_scaler():
    model = mlp()
    optimizer = optim.Preconditioned(model.named_parameters(), nonfinite=None)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.rand(4, 28, 28)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(model[1].weight, before[1].weight)


def test_a_zero_gradient_moves_nothing():
    params = parameters((3, 4), (4,), dtype=torch.float32)
    before = copy.deepcopy(params)
    for p in params:
        p.grad = torch.zeros_like(p)
    optim.Preconditioned(params).step()
    assert all(map(torch.equal, params, before))


def test_a_learned_method_is_used_by_name(tmp_path):
    mirror = spectral_by_kind(0.2).requires_grad_(False)
    method = methods.Preconditioned(mirror, OverRun(100, 0.1, 0.7), 0.8, normalised=True)
    path = zoo.save(method, tmp_path / "mine")
    first = mlp()
    second = mlp()
    second.load_state_dict(first.state_dict())
    ours = optim.Preconditioned(first.named_parameters(), mirror=str(path), steps=30)
    options = {"mirror": mirror, "t": OverRun(30, 0.1, 0.7), "momentum": 0.8}
    theirs = optim.Preconditioned(second.named_parameters(), lr=1.0, **options)
    assert ours.param_groups[0]["lr"] == 1.0
    for k in range(3):
        for model, optimizer in ((first, ours), (second, theirs)):
            run(optimizer, list(model.parameters()), 1, first=k)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_learned_method_keeps_its_momentum_and_decay(tmp_path):
    method = methods.Preconditioned(
        spectral_by_kind(), OverRun(100, 0.1, 0.7, 0.4), 0.8, normalised=True, decay=0.01
    )
    path = str(zoo.save(method.requires_grad_(False), tmp_path / "mine"))
    first = mlp()
    second = mlp()
    second.load_state_dict(first.state_dict())
    ours = optim.Preconditioned(first.named_parameters(), mirror=path, steps=400)
    theirs = optim.Preconditioned(
        second.named_parameters(),
        lr=1.0,
        mirror=method.mirror,
        t=OverRun(400, 0.1, 0.7, 0.4),
        momentum=0.8,
    )
    schedule = OverRun(400, 0.1, 0.7, 0.4)
    for k in range(3):
        before = [p.detach().clone() for p in second.parameters()]
        for model, optimizer in ((first, ours), (second, theirs)):
            run(optimizer, list(model.parameters()), 1, first=k)
        for p, old in zip(second.parameters(), before, strict=True):
            p.data.sub_(0.01 * schedule(k + 1) * old)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(ValueError, match="momentum of its own"):
        optim.Preconditioned(first.named_parameters(), mirror=path, steps=400, momentum=0.9)


def test_wrong_settings_are_refused():
    (w,) = parameters((3, 4))
    with pytest.raises(ValueError, match="either steps"):
        optim.Preconditioned([w], steps=10, t=0.1)
    with pytest.raises(ValueError, match="momentum must be"):
        optim.Preconditioned([w], momentum=1.5)


def test_a_tensor_is_no_list_of_parameters():
    with pytest.raises(TypeError, match="should be an iterable of Tensors or dicts"):
        optim.Preconditioned(torch.ones(3, requires_grad=True))
