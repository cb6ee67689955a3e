"""Decisions that an optimiser makes when it is constructed, and not again while it steps."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
import torch

from mirrordescent import kernels, optim, zoo
from mirrordescent.kernels import loading
from mirrordescent.mirrors import PNorm, spectral_by_kind

sys.path.insert(0, str(Path(__file__).parent))
from steps import parameters, run

pytestmark = pytest.mark.filterwarnings(
    "ignore:.* parameters have no names", "ignore:input and output layers are taken"
)
SHAPES = [(6, 4), (4,), (5, 7), (3, 2, 2)]


def counted(monkeypatch, module, name):
    """Count the calls of a function; return the list that grows with every call."""
    calls = []
    own = getattr(module, name)

    def wrapper(*args, **options):
        calls.append(args)
        return own(*args, **options)

    monkeypatch.setattr(module, name, wrapper)
    return calls


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"second_momentum": 0.9},
        {"mirror": PNorm(4.0)},
        {"dual_dtype": torch.float64},
        {"foreach": False},
    ],
    ids=str,
)
def test_steps_do_not_look_for_kernels_in_the_file_system(options, monkeypatch):
    checks = counted(monkeypatch, loading, "library_path")
    params = parameters(*SHAPES, dtype=torch.float32)
    later = parameters(*SHAPES, dtype=torch.float32, seed=1)
    optimizer = optim.Preconditioned(params, **options)
    assert len(checks) <= 1
    checks.clear()
    run(optimizer, params, 3)
    assert not checks
    optimizer.add_param_group({"params": later})
    assert len(checks) <= 1
    checks.clear()
    run(optimizer, [*params, *later], 3)
    assert not checks


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dual_dtype", [None, torch.float64])
def test_the_choice_of_kernels_does_not_change_during_a_run(dual_dtype, monkeypatch):
    params = parameters(*SHAPES, dtype=torch.float32)
    later = parameters(*SHAPES, dtype=torch.float32, seed=1)
    options = {"mirror": spectral_by_kind(), "dual_dtype": dual_dtype}
    with kernels.disabled():
        optimizer = optim.Preconditioned(params, **options)
    calls = counted(monkeypatch, kernels, "directions")
    run(optimizer, params, 2)
    assert not calls
    optimizer.add_param_group({"params": later})
    run(optimizer, [*params, *later], 2, first=2)
    assert len(calls) == 2  # one matrix of the new group, two steps


def test_an_entry_of_the_zoo_is_read_once(monkeypatch):
    reads = counted(monkeypatch, zoo, "load_entry")
    a, b, c = parameters((4, 5), (4, 5), (3,))
    groups = [{"params": [("a", a)]}, {"params": [("b", b)], "mirror": "network-spectral"}]
    optimizer = optim.Preconditioned(groups, mirror="network-spectral", steps=10)
    optimizer.add_param_group({"params": [("c", c)]})
    run(optimizer, [a, b, c], 2)
    assert len(reads) == 1


def test_the_old_name_of_track_changes_warns():
    optimizer = optim.AMD(parameters((3,)))
    with pytest.warns(DeprecationWarning, match="renamed to track_changes"):
        optimizer.watches = False
    assert not optimizer.track_changes
    with pytest.warns(DeprecationWarning, match="renamed to track_changes"):
        assert not optimizer.watches


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ready", "available"),
        ("suits", "supports"),
        ("without", "disabled"),
        ("adapted", "adaptive_step"),
        ("BuildError", "KernelsUnavailable"),
    ],
)
def test_old_names_of_kernels_warn(old, new):
    with pytest.warns(DeprecationWarning, match=f"renamed to mirrordescent.kernels.{new}"):
        assert getattr(kernels, old) is getattr(kernels, new)


@pytest.mark.parametrize("optimiser", [optim.AMD, optim.Preconditioned])
def test_a_pickled_optimiser_steps_on_a_machine_without_kernels(optimiser, monkeypatch):
    """Kernels that were chosen by default must not be required there."""
    params = parameters(*SHAPES, dtype=torch.float32)
    monkeypatch.setattr(kernels, "available", lambda: True)
    saved = pickle.dumps((params, optimiser(params, lr=0.1)))
    monkeypatch.setattr(kernels, "available", lambda: False)

    def missing():
        raise kernels.KernelsUnavailable("this installation has no kernels")

    monkeypatch.setattr(kernels.call, "library", missing)
    params, optimizer = pickle.loads(saved)
    before = [p.detach().clone() for p in params]
    run(optimizer, params, 2)
    assert all(not torch.equal(p, old) for p, old in zip(params, before, strict=True))
