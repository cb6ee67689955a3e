"""Evolution, the tasks it learns a geometry on, and the optimisers that the geometry is compared
with.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mirrordescent import optim, zoo
from mirrordescent.mirrors import Euclidean
from mirrordescent.recipes import spectral_maps as spectral
from mirrordescent.recipes.architectures import small_cnn
from mirrordescent.recipes.covariance_adaptation import CovarianceAdaptation
from mirrordescent.recipes.training_tasks import LEARNING, TEST, VALIDATION, Task, Transformer, flat
from mirrordescent_experiments import contestants, network_geometry

TINY = (Task("tiny", partial(flat, (64, 8, 10)), "digits", 3, 16, evaluated=50),)


def test_evolution_finds_the_minimum_of_a_stretched_bowl():
    search = CovarianceAdaptation(torch.ones(4), torch.full((4,), 0.5), 10)
    generator = torch.Generator().manual_seed(0)
    axes = torch.tensor([1.0, 10.0, 30.0, 100.0]).double()
    for _ in range(120):
        candidates = search.ask(generator)
        search.tell(candidates, (axes * (candidates - 3)).square().sum(1))
    assert (search.mean - 3).abs().max() < 1e-3
    assert search.sigma < 0.1


def test_tasks_are_determined_by_their_seeds_and_kept_apart():
    names = [{task.name for task in group} for group in (LEARNING, VALIDATION, TEST)]
    assert not names[0] & names[1] | names[1] & names[2] | names[0] & names[2]
    task = Task("tiny", lambda: flat((64, 8, 10)), "digits", 3, 16)
    first, again, other = (
        task.train(contestants.adamw(1e-2, "cosine"), seed) for seed in (0, 0, 1)
    )
    assert first[:3] == again[:3] != other[:3]


@pytest.mark.parametrize("shape", contestants.SHAPES)
@pytest.mark.parametrize(
    "make", [contestants.adamw, contestants.sgd, contestants.muon, contestants.by_hand()]
)
def test_every_contestant_trains_a_network_with_convolutions(make, shape):
    task = replace(network_geometry.small(TEST[3], 0.2), steps=20)
    with contestants.muon_in_single_precision():
        end = task.train(make(1e-2, shape), 0)
    assert end.loss < 2.3


def test_muon_in_single_precision_is_muon():
    def trained():
        torch.manual_seed(0)
        w = nn.Parameter(torch.randn(6, 9))
        optimizer = torch.optim.Muon([w], 0.1)
        w.grad = torch.randn(6, 9)
        optimizer.step()
        return w.detach()

    plain = trained()
    with contestants.muon_in_single_precision():
        precise = trained()
    torch.testing.assert_close(precise, plain, rtol=0.02, atol=0.02)
    assert torch.equal(plain, trained())


def test_muon_with_adamw_steps_every_parameter_through_flat_views():
    model = small_cnn()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = contestants.MuonWithAdamW(model, 1e-2)
    F.cross_entropy(model(torch.rand(4, 1, 14, 14)), torch.arange(4)).backward()
    optimizer.step()
    assert not any(map(torch.equal, before, model.parameters()))


def test_the_start_is_what_its_numbers_say():
    method = spectral.method_of(torch.tensor([start for start, _ in spectral.START.values()]))
    assert (method.momentum, method.second_momentum) == pytest.approx(
        (1 - math.exp(-1.52), 1 - math.exp(-3.45))
    )
    assert method.mirror.scales["hidden"] == pytest.approx(math.exp(-4.57))
    assert (method.mirror.widths["output"], method.mirror.widths["hidden"]) == pytest.approx(
        (0.47, 0.46)
    )
    assert (method.mirror.depth, method.mirror.depth_normed) == pytest.approx((0.73, 0.09))
    assert (method.damping, method.memory, method.mirror.initial) == pytest.approx((0.75, 0.1, 0.5))
    assert method.mirror.trained == pytest.approx(math.exp(-4.6))
    optimizer = contestants.optimiser_of(method, Transformer(8, 1, 2, 4), 10)
    assert isinstance(optimizer, optim.Preconditioned)
    settings = json.loads(optimizer.param_groups[0]["settings"])
    assert settings["second_momentum"] == pytest.approx(1 - math.exp(-3.45))


def test_candidates_shared_among_processes_are_measured_alike():
    family = spectral.TaskFamily(TINY, TINY, None)
    numbers = torch.tensor([start for start, _ in spectral.START.values()], dtype=torch.float64)
    jobs = [(family, TINY, seed, spectral.Candidate(numbers)) for seed in (0, 1)]
    found = []
    for workers in (1, 2):
        with spectral._working(workers) as share:
            found.append(torch.stack(list(share(jobs))))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)  # threads add up in another order


def test_evolution_of_a_geometry_goes_on_where_it_was(tmp_path):
    family = spectral.TaskFamily(TINY, TINY, None)
    whole = spectral.Evolved(generations=2, population=4, networks=1, workers=1)
    part = replace(whole, generations=1)
    method, record = whole.run(None, family, folder=tmp_path / "whole", resume=True)
    part.run(None, family, folder=tmp_path / "part", resume=True)
    _, again = whole.run(None, family, folder=tmp_path / "part", resume=True)
    logs = [json.loads((tmp_path / name / "log.json").read_text()) for name in ("whole", "part")]
    assert [each["losses"] for each in logs[0]] == [each["losses"] for each in logs[1]]
    assert record["use"] == again["use"]
    other = spectral.TaskFamily((replace(TINY[0], name="another"),), TINY, None)
    with pytest.raises(ValueError, match="is of another search"):
        whole.run(None, other, folder=tmp_path / "part", resume=True)
    loaded = zoo.load(zoo.save(method, tmp_path / "entry"))
    assert loaded.mirror.scales == pytest.approx(method.mirror.scales)


def test_the_shipped_entry_is_that_of_its_numbers():
    entry = zoo.load(spectral.ENTRY)
    numbers = zoo.card(spectral.ENTRY).use["numbers"]
    again = spectral.method_of(torch.tensor([numbers[name] for name in spectral.START]))
    for name in ("scales", "widths", "depth", "depth_normed"):
        assert getattr(entry.mirror, name) == pytest.approx(getattr(again.mirror, name), rel=1e-3)
    for kind in (0, 2):  # one of matrices, one of entries
        states = [each.mirror.maps[kind].state_dict() for each in (entry, again)]
        for name, tensor in states[0].items():
            torch.testing.assert_close(tensor, states[1][name], rtol=1e-3, atol=1e-3)
    for found, wanted in ((entry, again), (entry.t, again.t)):
        for name in (
            ("momentum", "second_momentum", "decay")
            if found is entry
            else ("warmup", "power", "length")
        ):
            assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-3)


def test_the_control_has_no_map_and_all_the_rest():
    numbers = torch.tensor([start for start, _ in spectral.START.values()])
    method = spectral.method_of(numbers)
    control = spectral.method_of(numbers, identity=True)
    g = {
        "0.weight": torch.randn(1, 6, 5),
        "0.bias": torch.randn(1, 6),
        "2.weight": torch.randn(1, 3, 6),
    }
    for name, direction in control.mirror.direction(g).items():
        leaf = g[name]
        cosine = torch.nn.functional.cosine_similarity(direction.flatten(), leaf.flatten(), 0)
        torch.testing.assert_close(cosine, torch.tensor(1.0))
        sizes = [
            each[name].norm() for each in (method.mirror.direction(g), control.mirror.direction(g))
        ]
        torch.testing.assert_close(*sizes, rtol=1e-4, atol=0)
    assert (control.momentum, control.decay, control.t(7)) == (
        method.momentum,
        method.decay,
        method.t(7),
    )
    assert spectral.SPECTRAL_RECIPES[f"{spectral.ENTRY}-control"].stages[0].identity
    shipped = [zoo.load(name) for name in (spectral.ENTRY, f"{spectral.ENTRY}-control")]
    assert type(shipped[0]) is type(shipped[1])
    assert all(isinstance(each, Euclidean) for each in shipped[1].mirror.maps)


def test_minibatches_of_images_come_in_epochs():
    """Every image once, then all of them again in another order; the rest that is no whole
    minibatch waits.
    """
    task = Task("tiny", lambda: flat((1, 10)), "digits", 3, 4)
    images = torch.arange(10.0)[:, None]
    labels = torch.arange(10)
    drawn = task._minibatches((images, labels), torch.Generator().manual_seed(0))
    epochs = [torch.cat([next(drawn)[1], next(drawn)[1]]) for _ in range(5)]
    assert all(len(epoch.unique()) == 8 for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
