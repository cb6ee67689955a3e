"""SpectralDescent: runs of known and unknown length, averages, rates, messages."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mirrordescent import methods, optim, zoo
from mirrordescent.mirrors import PNorm
from mirrordescent.optim.averaging import EXPONENT, INTERPOLATION
from mirrordescent.schedules import OpenEnded, OverRun


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)
    )


def train(model, optimizer, steps, first=0):
    for k in range(first, first + steps):
        generator = torch.Generator().manual_seed(k)
        x = torch.randn(32, 6, generator=generator).to(model[0].weight.dtype)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x[:, :2] * x[:, 2:4])
        loss.backward()
        optimizer.step()
    return loss.item()


def euclidean(model, **options):
    """Return an optimiser whose direction is the normalised gradient."""
    return optim.SpectralDescent(model, lr=0.3, mirror=PNorm(2.0), momentum=0.0, **options)


# Averages


def test_averages_are_those_of_schedule_free_learning():
    """y, z and x, computed in full beside the optimiser, which stores z alone."""
    w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    optimizer = euclidean([("w", w)])
    schedule = OpenEnded()
    x = z = w.detach().clone()
    weights = 0.0
    for k in range(1, 30):
        y = INTERPOLATION * x + (1 - INTERPOLATION) * z
        torch.testing.assert_close(w.detach(), y)
        g = y * torch.tensor([1.0, 3.0, 0.2])
        w.grad = g.clone()
        optimizer.step()
        z = z - 0.3 * schedule(k) * g / g.square().mean().sqrt()
        # the weights of a rising factorial, which grow like kᵖ
        c = (EXPONENT + 1) / (k + EXPONENT)
        weights = (1 - c) * weights + c * k
        x = x + c * (z - x)
    with optimizer.averaged():
        torch.testing.assert_close(w.detach(), x)
    y = INTERPOLATION * x + (1 - INTERPOLATION) * z
    torch.testing.assert_close(w.detach(), y)
    assert 0.7 < weights / 29 < 0.85, "iterates of the last quarter count most"


def test_averages_of_noise_have_less_variance():
    w = nn.Parameter(torch.zeros(400))
    optimizer = optim.SpectralDescent([("w", w)], mirror=PNorm(2.0), lr=0.1, momentum=0.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        w.grad = w.detach() + torch.randn(400, generator=generator)
        optimizer.step()
    before = float(w.detach().square().mean())
    with optimizer.averaged():
        averaged = float(w.detach().square().mean())
    assert averaged < 0.8 * before


def test_evaluation_and_training_alternate_without_a_trace():
    first = network().double()
    second = network().double()
    plain = optim.SpectralDescent(first)
    shown = optim.SpectralDescent(second)
    for k in range(6):
        train(first, plain, 1, k)
        train(second, shown, 1, k)
        shown.eval()
        shown.eval()
        assert k == 0 or not torch.allclose(first[0].weight, second[0].weight, atol=1e-3)
        shown.train()
        shown.train()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_step_on_averaged_weights_is_refused():
    model = network()
    optimizer = optim.SpectralDescent(model)
    train(model, optimizer, 2)
    optimizer.eval()
    with pytest.raises(RuntimeError, match=r"call optimizer.train\(\)"):
        train(model, optimizer, 1)
    optimizer.train()
    train(model, optimizer, 1)


def test_averages_restart_where_weights_were_changed():
    model = network()
    optimizer = optim.SpectralDescent(model)
    train(model, optimizer, 5)
    model.load_state_dict(network(1).state_dict())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    before = copy.deepcopy(model)
    optimizer.param_groups[0]["lr"] *= 1e-9
    optimizer.step()
    for p, q in zip(model.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_half_precision_has_no_averages():
    model = network().bfloat16()
    assert optim.SpectralDescent(model)._average is None
    with pytest.raises(ValueError, match="single or double precision"):
        optim.SpectralDescent(model, average=True)


@pytest.mark.parametrize("shown", [False, True])
def test_a_run_of_unknown_length_is_resumed(shown):
    whole = network()
    optimizer = optim.SpectralDescent(whole)
    train(whole, optimizer, 12)
    first = network()
    interrupted = optim.SpectralDescent(first)
    train(first, interrupted, 7)
    if shown:
        interrupted.eval()
    saved = copy.deepcopy((first.state_dict(), interrupted.state_dict()))
    second = network(3)
    resumed = optim.SpectralDescent(second)
    second.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    resumed.train()
    train(second, resumed, 5, first=7)
    with optimizer.averaged(), resumed.averaged():
        for p, q in zip(whole.parameters(), second.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="omit steps here too"):
        optim.SpectralDescent(network(), steps=12).load_state_dict(saved[1])


def test_a_copy_has_its_own_averages():
    model = network()
    optimizer = optim.SpectralDescent(model)
    train(model, optimizer, 3)
    other, copied = copy.deepcopy((model, optimizer))
    train(model, optimizer, 3, 3)
    train(other, copied, 3, 3)
    with optimizer.averaged(), copied.averaged():
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q)


# The length of the run


def test_a_finished_run_ends_at_its_weights_with_small_steps():
    model = network()
    optimizer = optim.SpectralDescent(model)
    train(model, optimizer, 30)
    optimizer.finish(over=10)
    rates = []
    for k in range(10):
        train(model, optimizer, 1, 30 + k)
        rates.append(optimizer.param_groups[0]["lr"])
    flat = OpenEnded(*_exponents())(30)
    assert rates == pytest.approx([flat * (1 - (k + 0.5) / 10) for k in range(10)])
    before = copy.deepcopy(model)
    with optimizer.averaged():
        for p, q in zip(model.parameters(), before.parameters(), strict=True):
            torch.testing.assert_close(p, q)
    with pytest.warns(UserWarning, match="takes step 41 of a run of 40 steps"):
        train(model, optimizer, 1)
    with pytest.raises(RuntimeError, match="finished once"):
        optimizer.finish(over=3)
    with pytest.raises(ValueError, match="over must be"):
        optim.SpectralDescent(model).finish(over=0)


def _exponents():
    schedule = zoo.load("network-spectral").t
    return schedule.power, schedule.length


@pytest.mark.parametrize("steps", [60, None])
def test_a_known_and_an_unknown_length_train(steps):
    model = network()
    optimizer = optim.SpectralDescent(model, steps=steps)
    start = train(model, optimizer, 1)
    train(model, optimizer, 59, 1)
    optimizer.eval()
    x = torch.randn(500, 6, generator=torch.Generator().manual_seed(-1))
    assert F.mse_loss(model(x), x[:, :2] * x[:, 2:4]).item() < 0.75 * start


@pytest.mark.parametrize("make", [optim.SpectralDescent, optim.Preconditioned])
def test_a_run_longer_than_planned_warns_once_and_goes_on(make):
    model = network()
    parameters = model if make is optim.SpectralDescent else model.named_parameters()
    optimizer = make(parameters, mirror="network-spectral", steps=5)
    train(model, optimizer, 5)
    before = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="takes step 6 of a run of 5 steps") as seen:
        train(model, optimizer, 3)
    assert len(seen) == 1
    power, length = _exponents()
    planned = OverRun(5, power=power, length=length)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(planned(6))
    assert planned(6) == pytest.approx((5 / 100) ** -length * 0.1**power)
    assert not torch.equal(model[0].weight, before[0].weight)


# Rates


def test_the_rate_of_the_last_step_is_shown():
    model = network()
    optimizer = optim.SpectralDescent(model, lr=0.5, steps=10)
    power, length = _exponents()
    warmup = zoo.load("network-spectral").t.warmup
    schedule = OverRun(10, warmup, power, length)
    assert optimizer.param_groups[0]["lr"] == 0.5
    for k in range(4):
        train(model, optimizer, 1, k)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * schedule(k + 1))
    optimizer.param_groups[0]["lr"] *= 0.1
    saved = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, 1, 4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * schedule(5))
    model = network()
    resumed = optim.SpectralDescent(model, steps=10)
    resumed.load_state_dict(saved)
    train(model, resumed, 1, 4)
    assert resumed.param_groups[0]["lr"] == pytest.approx(0.05 * schedule(5))


def test_a_scheduler_on_top_is_reported_once_and_obeyed():
    model = network()
    optimizer = optim.SpectralDescent(model, steps=10)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    train(model, optimizer, 1)
    scheduler.step()
    train(model, optimizer, 1)
    scheduler.step()
    with pytest.warns(UserWarning, match="a learning-rate scheduler multiplies"):
        train(model, optimizer, 1)
    for _ in range(4):
        scheduler.step()
        train(model, optimizer, 1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.125)


def test_a_constant_scheduler_or_one_that_replaces_the_schedule_is_not_reported():
    model = network()
    optimizer = optim.SpectralDescent(model, steps=10)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1.0)
    train(model, optimizer, 1)
    scheduler.step()
    train(model, optimizer, 1)
    optimizer = optim.SpectralDescent(model, t=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    train(model, optimizer, 1)
    scheduler.step()
    train(model, optimizer, 1)


def test_a_scheduler_that_starts_at_zero():
    model = network()
    optimizer = optim.SpectralDescent(model, t=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: k / 10)
    before = copy.deepcopy(model)
    train(model, optimizer, 1)
    assert torch.equal(model[0].weight, before[0].weight)
    scheduler.step()
    train(model, optimizer, 1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    assert not torch.equal(model[0].weight, before[0].weight)


def test_a_plateau_scheduler_shortens_later_steps():
    model = network()
    optimizer = optim.SpectralDescent(model, steps=10)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    for k in range(3):
        train(model, optimizer, 1, k)
        scheduler.step(1.0)
    train(model, optimizer, 1, 3)
    power, length = _exponents()
    schedule = OverRun(10, zoo.load("network-spectral").t.warmup, power, length)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * schedule(4))


# Messages


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"betas": (0.9, 0.99)}, "omit it with a learned geometry"),
        ({"eps": 1e-8}, "omit it"),
        ({"amsgrad": True}, "omit it"),
        ({"nesterov": True}, "lookahead"),
        ({"ns_steps": 5}, "omit it"),
        ({"momentum": 0.9}, "learned momentum of its own"),
    ],
    ids=str,
)
def test_options_of_adamw_and_muon_are_answered(options, remedy):
    with pytest.raises((TypeError, ValueError), match=remedy):
        optim.SpectralDescent(network(), steps=10, **options)


def test_a_learning_rate_of_adamw_is_warned_of_by_the_name_of_the_entry():
    message = "lr = 0.0003 makes the learned steps of network-spectral 3333 times shorter"
    with pytest.warns(UserWarning, match=message) as seen:
        optim.SpectralDescent(network(), lr=3e-4, steps=10)
    assert len(str(seen[0].message)) < 250
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optim.SpectralDescent(network(), lr=3e-4, mirror=zoo.load("network-spectral"))


def test_groups_without_names_need_the_model():
    model = network()
    with pytest.raises(ValueError, match="have no names"):
        optim.SpectralDescent(model.parameters())
    groups = [{"params": list(model[4].parameters())}, {"params": list(model[:4].parameters())}]
    optimizer = optim.SpectralDescent(groups, model=model)
    kinds = [role.kind for role in optimizer._roles.values()]
    assert kinds == ["output", "vector", "input", "vector", "hidden", "vector"]


def test_heads_listed_first_take_the_same_steps():
    first = network()
    second = network()
    groups = [{"params": list(second[4].parameters())}, {"params": list(second[:4].parameters())}]
    train(first, optim.SpectralDescent(first, steps=5), 5)
    train(second, optim.SpectralDescent(groups, model=second, steps=5), 5)
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_summary_has_a_line_for_each_tensor(capsys):
    model = network()
    optimizer = optim.SpectralDescent(model, steps=10)
    train(model, optimizer, 2)
    optimizer.summary()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(list(model.parameters()))
    assert lines[1].split()[0] == "0.weight"
    assert "input" in lines[1]
    assert "%" in lines[1]


def test_weight_decay_has_the_units_of_adamw():
    """A step of size s with decay w shrinks weights by s·w, as AdamW's step of size lr does."""
    w = nn.Parameter(torch.full((4, 4), 10.0))
    optimizer = optim.SpectralDescent([("w", w)], t=1.0, weight_decay=0.1, average=False)
    size = optimizer._executors[0].updates[0].mirror.direction_size
    decay = zoo.load("network-spectral").decay
    w.grad = torch.zeros(4, 4)
    optimizer.step()
    expected = 10.0 * (1 - size * 0.1) * (1 - decay)
    torch.testing.assert_close(w.detach(), torch.full((4, 4), expected))


def test_methods_can_be_given():
    model = network()
    method = methods.Preconditioned(PNorm(3.0), OverRun(100, power=2.0), 0.9, normalised=True)
    optimizer = optim.SpectralDescent(model, mirror=method, steps=20)
    train(model, optimizer, 3)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(OverRun(20, power=2.0)(3))
