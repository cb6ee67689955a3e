"""Features of weights at the start of a run, and the laws by which they condition steps."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from mirrordescent import optim, zoo
from mirrordescent.mirrors import ByKind, Euclidean, Role, roles_of
from mirrordescent.mirrors.by_kind import KINDS, SMALLEST_SCALE, TRAINED_PEAK
from mirrordescent.mirrors.start import Start, root_mean_square, singular_peak, starts
from mirrordescent.recipes.varied_tasks import VARIED_LEARNING


def features(model):
    return starts(dict(model.named_parameters()), roles_of(model))


def dense(*widths):
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(*layers)


def test_usual_initialisations_are_told_apart_by_their_scale():
    model = dense(60, 200, 200, 10)
    assert features(model)["1.weight"].network_scale == pytest.approx(1, rel=0.03)
    for layer in model:
        nn.init.kaiming_normal_(layer.weight)
    assert features(model)["1.weight"].network_scale == pytest.approx(math.sqrt(6), rel=0.03)
    for layer in model:
        bound = math.sqrt(6 / layer.in_features) / 30  # of a sine network
        nn.init.uniform_(layer.weight, -bound, bound)
    assert features(model)["1.weight"].network_scale == pytest.approx(math.sqrt(6) / 30, rel=0.03)


def test_the_peak_is_that_of_the_singular_value_decomposition():
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(300, 200, generator=generator)
    u, _, vh = torch.linalg.svd(random, full_matrices=False)
    trained = u @ (torch.logspace(0, -3, 200)[:, None] * vh)
    for matrix in (random, trained, u @ vh, trained[:, :1] @ trained[:1]):
        m, n = matrix.shape
        rms = float(matrix.square().mean().sqrt())
        largest = float(torch.linalg.matrix_norm(matrix, 2))
        expected = largest / ((math.sqrt(m) + math.sqrt(n)) * rms)
        assert singular_peak(matrix) == pytest.approx(expected, rel=0.03)
    assert singular_peak(random) == pytest.approx(1, abs=0.05)
    assert singular_peak(u @ vh) < 0.6
    assert singular_peak(trained) > 1.67


def test_rotations_of_inputs_and_outputs_change_no_feature():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(40, 30, generator=generator)
    matrix[:, 0] *= 9
    left, _ = torch.linalg.qr(torch.randn(40, 40, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(30, 30, generator=generator))
    assert singular_peak(left @ matrix @ right) == pytest.approx(singular_peak(matrix), rel=1e-4)
    assert root_mean_square(left @ matrix @ right) == pytest.approx(root_mean_square(matrix))


def test_zero_and_infinite_weights_count_neither_for_the_scale_nor_for_the_peak():
    model = dense(20, 30, 30, 5)
    before = features(model)["0.bias"]
    with torch.no_grad():
        model[2].weight.zero_()
    after = features(model)
    assert after["2.weight"].rms == 0
    assert after["0.bias"].network_scale == pytest.approx(before.network_scale, rel=0.1)
    with torch.no_grad():
        model[1].weight.fill_(math.inf)
    assert features(model)["1.weight"].rms == 0
    assert singular_peak(model[1].weight) == 1


def size(start, kind="hidden", **laws):
    mirror = ByKind({each: Euclidean() for each in KINDS}, dict.fromkeys(KINDS, 0.2), **laws)
    return mirror.of(Role(kind, fan_in=64, depth=4), start).direction_size


@pytest.mark.parametrize(
    ("scale", "expected"), [(1.0, 0.2), (2.4, 0.2), (0.25, 0.1), (1e-9, 0.2 * SMALLEST_SCALE**0.5)]
)
def test_small_weights_shorten_steps_by_a_power_of_their_scale(scale, expected):
    start = Start(0.1, 1.0, scale, 1.0)
    assert size(start, initial=0.5) == pytest.approx(expected)
    assert size(start) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("peak", "expected"),
    [(0.5, 0.2), (1.0, 0.2), (TRAINED_PEAK, 3e-4), (4.0, 3e-4), (TRAINED_PEAK**0.5, None)],
)
def test_steps_of_trained_weights_are_in_proportion_to_the_weights(peak, expected):
    """Halfway between random and trained weights is the geometric mean of both."""
    expected = math.sqrt(0.2 * 3e-4) if expected is None else expected
    start = Start(0.03, peak, 1.0, peak)
    assert size(start, trained=0.01) == pytest.approx(expected)
    # A new output layer on a trained network has steps of its own.
    new = Start(0.03, 1.0, 1.0, peak)
    assert size(new, "output", trained=0.01) == pytest.approx(0.2)
    assert size(new, trained=0.01) == pytest.approx(expected)


def test_trained_weights_of_large_size_do_not_lengthen_steps():
    assert size(Start(1e3, 4.0, 1.0, 4.0), trained=0.01) == pytest.approx(0.2)


def task_named(name):
    (task,) = (task for task in VARIED_LEARNING if task.name == name)
    return task


def entry(version):
    return lambda model, steps: (optim.SpectralDescent(model, mirror=version, steps=steps), None)


def test_sine_networks_learn():
    task = task_named("sine network")
    assert task.train(entry("network-spectral"), 5).test_loss < 0.1
    assert task.train(entry("network-spectral@3"), 5).test_loss > 0.3  # does not learn


def test_fine_tuning_keeps_what_was_learned():
    """Steps along noise move trained weights by a smaller share of their size than random ones."""
    torch.manual_seed(0)

    def moved(decay):
        """Return the largest relative change of an inner matrix in five steps along noise."""
        model = dense(32, 64, 64, 64, 8)
        for layer in model:
            u, _, vh = torch.linalg.svd(layer.weight.detach(), full_matrices=False)
            spectrum = torch.logspace(0, -decay, len(vh))
            with torch.no_grad():
                layer.weight.copy_(u @ (spectrum[:, None] * vh))
                layer.weight.mul_(
                    1 / (3 * layer.in_features) ** 0.5 / root_mean_square(layer.weight)
                )
        before = [layer.weight.detach().clone() for layer in model]
        optimiser = optim.SpectralDescent(model, steps=50)
        generator = torch.Generator().manual_seed(0)
        for _ in range(5):
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=generator)
            optimiser.step()
        changes = [
            float((layer.weight.detach() - w).norm() / w.norm())
            for layer, w in zip(model[1:3], before[1:3], strict=True)
        ]
        return max(changes)

    assert moved(decay=3.0) < 0.3 * moved(decay=0.0)


def test_the_entry_has_laws_of_the_start():
    mirror = zoo.load("network-spectral").mirror
    assert mirror.initial > 0
    assert mirror.trained is not None
