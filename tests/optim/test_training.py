"""Training with schedulers, groups, mixed precision, compiled models, layer-wise maps, the zoo."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from mirrordescent import methods, optim, zoo
from mirrordescent.mirrors import (
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    Layerwise,
    Multipliers,
    layerwise,
)

sys.path.insert(0, str(Path(__file__).parent))
from steps import OPTIMISERS, parameters, pull, pure, run

each = pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: o.__name__)


def network(seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def data(seed=0, n=64):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 4, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def fit(model, optimizer, steps):
    inputs, labels = data()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "cosine to 0": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(
        o, max_lr=0.2, total_steps=12, cycle_momentum=False
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10.0),
}


@each
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_drive_the_step(optimiser, name):
    """Against the pure method with the rates of the scheduler as t(k)."""
    (p,) = params = parameters((5,))
    optimizer = optimiser(params, lr=0.2)
    scheduler = SCHEDULERS[name](optimizer)
    rates = []  # without 0, at which nothing moves, and a step does not count
    method = pure(
        optimiser,
        Euclidean(),
        lambda k: rates[k - 1],
        **({"cap": 27} if optimiser is optim.AMD else {}),
    )
    state = method.init(p.detach()[None].clone())
    for k in range(8):
        pull(params, k)
        if rate := optimizer.param_groups[0]["lr"]:
            rates.append(rate)
            state = method.update(state, p.grad[None])
        optimizer.step()
        scheduler.step(*([1.0] if name == "plateau" else []))
        torch.testing.assert_close(p.detach(), state.x[0], rtol=1e-12, atol=1e-14)
    assert len(set(rates)) > 2


@each
def test_training_brings_the_loss_down(optimiser):
    model = network()
    losses = fit(model, optimiser(model.parameters(), lr=0.3, mirror=HyperbolicEntropy()), 150)
    assert losses[-1] < 0.5 * losses[0]


@each
def test_groups_have_their_own_settings(optimiser):
    shared = {"cap": 27} if optimiser is optim.AMD else {}
    a, b = parameters((3,), (4,))
    optimizer = optimiser(
        [{"params": [a], "mirror": Diagonal(2.0).double(), "weight_decay": 0.1}, {"params": [b]}],
        lr=0.1,
    )
    c = parameters((2,), seed=3)[0]
    run(optimizer, [a, b], 2)
    optimizer.add_param_group({"params": [c], "lr": 0.5, "maximize": True, "t": lambda k: 1 / k})
    assert [group["mirror"] for group in optimizer.param_groups] == [
        "Diagonal",
        "Euclidean",
        "Euclidean",
    ]
    before = c.detach().clone()
    run(optimizer, [a, b, c], 3, first=2)
    assert [group["k"] for group in optimizer.param_groups] == [5, 5, 3]
    method = pure(optimiser, Euclidean(), lambda k: 0.5 / k, **shared)
    state = method.init(before[None])
    for k in range(2, 5):
        here = [a.detach().clone(), b.detach().clone(), state.x[0].clone()]
        pull(here, k)
        state = method.update(state, -here[2].grad[None])
    torch.testing.assert_close(c.detach(), state.x[0], rtol=1e-12, atol=1e-14)


def test_a_group_given_twice_is_not_changed():
    params = parameters((3,))
    groups = [{"params": params, "mirror": HyperbolicEntropy()}]
    for optimiser in OPTIMISERS:
        optimizer = optimiser(groups)
        assert optimizer.param_groups[0]["mirror"] == "HyperbolicEntropy"
    assert set(groups[0]) == {"params", "mirror"}


@each
def test_a_rate_of_zero_is_a_pause(optimiser):
    (p,) = params = parameters((3,))
    optimizer = optimiser(params, lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.0
    before = p.detach().clone()
    run(optimizer, params, 3)
    assert torch.equal(p, before)
    assert optimizer.param_groups[0]["k"] == 0


@each
def test_closures(optimiser):
    params = parameters((3,))
    others = parameters((3,))
    optimizer = optimiser(params)
    other = optimiser(others)

    def closure():
        optimizer.zero_grad()
        loss = (params[0] - 1).square().sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert loss.item() == (parameters((3,))[0] - 1).square().sum().item()
    (others[0] - 1).square().sum().backward()
    assert other.step() is None
    assert torch.equal(params[0], others[0])


@each
def test_autocast_and_gradient_scaling(optimiser):
    """bfloat16 activations and float32 gradients of a scaled loss; an overflow skips a step."""
    model = network()
    optimizer = optimiser(model.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    inputs, labels = data()
    losses = []
    for k in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        if k == 10:
            model[0].weight.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert optimizer.param_groups[0]["k"] == 59
    assert losses[-1] < 0.8 * losses[0]


@each
def test_low_precision_networks_train(optimiser):
    model = network().bfloat16()
    reference = network()
    options = {"lr": 0.2, "mirror": HyperbolicEntropy()}
    optimizer = optimiser(model.parameters(), dual_dtype=torch.float32, **options)
    inputs, labels = data()
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs.bfloat16()), labels).backward()
        optimizer.step()
    expected = fit(reference, optimiser(reference.parameters(), **options), 60)
    final = nn.functional.cross_entropy(model(inputs.bfloat16()), labels).item()
    assert final == pytest.approx(expected[-1], rel=0.05)


# Layer-wise maps


def learned_map(model, kind="diagonal"):
    mirror = layerwise(model, kind)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in mirror.parameters():
            p.add_(0.5 * torch.randn(p.shape, generator=generator))
    return mirror


@each
@pytest.mark.parametrize("kind", ["diagonal", "spline"])
def test_layerwise_maps_equal_the_pure_method_on_a_dict(optimiser, kind):
    model = network().double()
    mirror = learned_map(model, kind)
    options = {"cap": 27} if optimiser is optim.AMD else {}
    method = pure(optimiser, mirror, 0.05, **options)
    state = method.init({name: p.detach()[None].clone() for name, p in model.named_parameters()})
    optimizer = optimiser(model.named_parameters(), lr=0.05, mirror=mirror)
    params = list(model.parameters())
    for k in range(10):
        here = [leaf[0].detach().clone() for leaf in state.x.values()]
        pull(here, k)
        state = method.update(
            state, {name: h.grad[None] for name, h in zip(state.x, here, strict=True)}
        )
        run(optimizer, params, 1, first=k)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), state.x[name][0].detach(), rtol=1e-10, atol=1e-12)


def test_layerwise_maps_go_by_name():
    model = network()
    mirror = learned_map(model)
    with pytest.raises(ValueError, match=r"pass model\.named_parameters\(\)"):
        optim.SMD(model.parameters(), mirror=mirror)
    with pytest.raises(
        ValueError, match=r"a map made for another model: it has no map for 'other\.weight'"
    ):
        optim.SMD([("other.weight", model[0].weight)], mirror=mirror)
    with pytest.raises(ValueError, match=r"a map made for another model: '0\.weight' has shape"):
        optim.SMD([("0.weight", model[2].weight)], mirror=mirror)
    backwards = list(model.named_parameters())[::-1]
    optimizer = optim.SMD(backwards, mirror=mirror)
    assert [update.mirror for update in optimizer._executors[0].updates] == [
        mirror[name] for name, _ in backwards
    ]
    assert optimizer.param_groups[0]["mirror"] == "Layerwise(Multipliers)"


def test_parts_of_a_layerwise_map_serve_groups():
    model = network()
    named = dict(model.named_parameters())
    groups = [
        {"params": [(name, p)], "lr": 0.1 * (i + 1)} for i, (name, p) in enumerate(named.items())
    ]
    optimizer = optim.AMD(groups, mirror=learned_map(model))
    run(optimizer, list(named.values()), 2)


def test_frozen_parameters_need_no_map():
    model = network()
    model[0].weight.requires_grad_(False)
    optimizer = optim.AMD(model.named_parameters(), lr=0.1, mirror=layerwise(model))
    before = model[0].weight.detach().clone()
    fit(model, optimizer, 3)
    assert torch.equal(model[0].weight, before)
    model[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"0\.weight was frozen when the layer-wise map was made"):
        fit(model, optimizer, 1)


def test_mixtures_of_maps():
    """One group uses foreach functions, the other the pure method."""
    model = nn.Linear(3, 2)
    mirror = Layerwise(
        {"weight": Multipliers(torch.tensor([[0, 1, 2]])), "bias": HyperbolicEntropy()}
    )
    optimizer = optim.SMD(model.named_parameters(), lr=0.1, mirror=mirror)
    bias = model.bias.detach().clone()
    weight = model.weight.detach().clone()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), weight - 0.1)
    torch.testing.assert_close(model.bias.detach(), (bias.asinh() - 0.1).sinh())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models(backend):
    torch.compiler.reset()
    model = network()
    plain = network()
    compiled = torch.compile(model, backend=backend)
    assert all(name.startswith("_orig_mod.") for name, _ in compiled.named_parameters())
    ours = fit(
        compiled, optim.AMD(compiled.named_parameters(), lr=0.1, mirror=learned_map(plain)), 5
    )
    theirs = fit(plain, optim.AMD(plain.named_parameters(), lr=0.1, mirror=learned_map(plain)), 5)
    assert ours == pytest.approx(theirs, rel=1e-5)


# The zoo


def test_zoo_entries_bring_map_and_schedule():
    entry = zoo.load("photo-inpaint-conjugate")
    generator = torch.Generator().manual_seed(0)
    target = torch.rand(3, 16, 16, generator=generator)
    image = nn.Parameter(target + 0.3 * torch.randn(3, 16, 16, generator=generator))
    method = methods.SMD(entry.mirror, entry.t)
    state = method.init(image.detach()[None])._replace(x=image.detach()[None])
    optimizer = optim.SMD([image], lr=1.0, mirror="photo-inpaint-conjugate")
    for _ in range(3):
        state = method.update(state, state.x - target)
        optimizer.zero_grad()
        (0.5 * (image - target).square().sum()).backward()
        optimizer.step()
    torch.testing.assert_close(image.detach(), state.x[0].detach(), rtol=1e-5, atol=1e-6)
