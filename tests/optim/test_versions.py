"""States that were saved with another version of an entry, or of the default geometry."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from torch import nn

from mirrordescent import methods, optim, zoo
from mirrordescent.mirrors import Diagonal


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def train(model, optimizer, steps, first=0):
    """Take steps on a fixed sequence of batches."""
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        (model(x) - x[:, :2]).square().mean().backward()
        optimizer.step()


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def interrupted(mirror, again, old=lambda group: group, **options):
    """Return a training of 9 steps, and one that was saved after 4 and resumed with ``again``."""
    whole = network()
    train(whole, optim.Preconditioned(whole.named_parameters(), mirror=mirror, **options), 9)
    model = network()
    optimizer = optim.Preconditioned(model.named_parameters(), mirror=mirror, **options)
    train(model, optimizer, 4)
    state = through_a_file(optimizer.state_dict())
    for group in state["param_groups"]:
        old(group)
    resumed = optim.Preconditioned(model.named_parameters(), mirror=again, **options)
    resumed.load_state_dict(state)
    train(model, resumed, 5, first=4)
    return whole, model, resumed


def assert_equal(one, other):
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def forget_entry(group):
    """Remove what states of earlier versions of the library lack."""
    del group["entry"]
    del group["geometry_version"]


@pytest.mark.parametrize("options", [{}, {"steps": 9}], ids=str)
@pytest.mark.parametrize("old", [lambda group: group, forget_entry], ids=["named", "described"])
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_training_is_resumed_with_the_version_of_its_entry(version, old, options):
    name = f"network-spectral@{version}"
    whole, resumed, optimizer = interrupted(name, "network-spectral", old, **options)
    assert_equal(whole, resumed)
    (group,) = optimizer.state_dict()["param_groups"]
    assert group["entry"] == name
    assert group["k"] == 9
    twin = copy.deepcopy(optimizer)
    assert twin.state_dict()["param_groups"][0]["entry"] == name


def test_a_state_names_the_newest_version():
    optimizer = optim.Preconditioned(network().named_parameters(), mirror="network-spectral")
    assert optimizer.state_dict()["param_groups"][0]["entry"] == "network-spectral@4"
    assert optimizer.state_dict()["param_groups"][0]["geometry_version"] is None


def state_of(name):
    model = network()
    optimizer = optim.Preconditioned(model.named_parameters(), mirror=name)
    train(model, optimizer, 1)
    return optimizer.state_dict()


def test_a_chosen_version_is_not_replaced():
    optimizer = optim.Preconditioned(network().named_parameters(), mirror="network-spectral@4")
    with pytest.raises(
        ValueError,
        match=r"a state of network-spectral@1, .* constructed with network-spectral@4: construct "
        r"it with mirror='network-spectral@1' or mirror='network-spectral'",
    ):
        optimizer.load_state_dict(state_of("network-spectral@1"))


def test_a_version_that_is_not_installed_is_named():
    state = state_of("network-spectral")
    state["param_groups"][0]["entry"] = "network-spectral@5"
    model = network()
    optimizer = optim.Preconditioned(model.named_parameters(), mirror="network-spectral")
    with pytest.raises(
        ValueError,
        match=r"a state of network-spectral@5, .* with network-spectral@4\. network-spectral@5 is "
        r"not installed: .* copy network-spectral@5\.safetensors",
    ):
        optimizer.load_state_dict(state)
    train(model, optimizer, 1)
    assert optimizer.state_dict()["param_groups"][0]["k"] == 1, "a refused state changes nothing"


def test_versions_of_an_own_map(tmp_path):
    """Learned numbers are not part of a state; its version tells which ones were used."""

    def method(scale):
        return methods.SMD(Diagonal(nn.Parameter(torch.full((3,), scale))), 0.5)

    def step(optimizer, x):
        x.grad = torch.ones(3)
        optimizer.step()
        return x.detach().clone()

    zoo.save(method(2.0), tmp_path / "mine")
    x = nn.Parameter(torch.zeros(3))
    optimizer = optim.SMD([x], lr=1.0, mirror=tmp_path / "mine")
    step(optimizer, x)
    state = through_a_file(optimizer.state_dict())
    assert state["param_groups"][0]["entry"] == "mine@1"
    zoo.save(method(4.0), tmp_path / "mine@2")
    for name in ("mine", "mine.safetensors"):
        x = nn.Parameter(torch.zeros(3))
        optimizer = optim.SMD([x], lr=1.0, mirror=tmp_path / name)
        optimizer.load_state_dict(state)
        assert torch.equal(step(optimizer, x), torch.full((3,), -0.25))
    newest = optim.SMD([x := nn.Parameter(torch.zeros(3))], lr=1.0, mirror=tmp_path / "mine")
    assert torch.equal(step(newest, x), torch.full((3,), -0.125))


def test_the_version_of_the_default_geometry_is_in_the_state():
    model = network()
    optimizer = optim.Preconditioned(model.named_parameters())
    train(model, optimizer, 2)
    state = through_a_file(optimizer.state_dict())
    version = state["param_groups"][0]["geometry_version"]
    assert isinstance(version, int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.load_state_dict(state)
    for old, words in ((None, "an unrecorded version"), (1, "version 1")):
        state["param_groups"][0]["geometry_version"] = old
        with pytest.warns(
            UserWarning, match=f"saved with {words} of .* continues with version {version}"
        ) as caught:
            optimizer.load_state_dict(state)
        assert caught[0].filename == __file__
    assert optimizer.state_dict()["param_groups"][0]["geometry_version"] == version
