"""Fast steps of the damped method, against whatever its ``update`` computes."""

from __future__ import annotations

import pytest
import torch

from mirrordescent.execution.parameters import GradientBatch, updates_for
from mirrordescent.methods import DampedPreconditioned
from mirrordescent.mirrors import MirrorMap, PNorm, SoftSign, SpectralPower
from mirrordescent.mirrors.by_kind import ScaledMap
from mirrordescent.schedules import OverRun

SHAPES = [(3, 4), (4,), (6, 2, 3), (8, 30), (8, 30), (1, 1), (33, 17)]


class PartOfTensor(MirrorMap):
    """The map of one of two equal parts of a tensor: sums over the whole are twice its own."""

    def __init__(self, mirror):
        super().__init__()
        self.mirror = mirror

    def _direction(self, y):
        return self.mirror._direction(y)

    @property
    def direction_size(self):
        return self.mirror.direction_size

    def sum_of_parts(self, values):
        return 2 * values


MAPS = {
    "power": lambda: SpectralPower(0.4),
    "power by products": lambda: SpectralPower(0.4, products=4),
    "entries": lambda: PNorm(3.0),
    "scaled": lambda: ScaledMap(SoftSign(0.1), 0.3),
    "part": lambda: PartOfTensor(ScaledMap(PNorm(3.0), 0.3)),
    "part of a matrix": lambda: PartOfTensor(SpectralPower(0.4)),
}


def random_tensors(generator, dtype):
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]


def compare(method, dtype, steps=6, scale=lambda k: 1.0, **options):
    """Return the largest difference between the executor and ``update``, relative to steps."""
    generator = torch.Generator().manual_seed(0)
    start = random_tensors(generator, dtype)
    parameters = [x.clone() for x in start]
    states = [method.init(x[None].clone()) for x in start]
    executor = updates_for(
        [method] * len(start), [method.mirror] * len(start), parameters, **options
    )
    stored = {}
    for k in range(steps):
        gradients = [scale(k) * g for g in random_tensors(generator, dtype)]
        batch = GradientBatch(executor.updates, parameters, parameters, gradients)
        executor.step(batch, stored, k, tracker=None)
        states = [method.update(state, g[None]) for state, g in zip(states, gradients, strict=True)]
    assert options.get("foreach") is False or not executor._single_steps
    differences = [
        float((p - state.x[0]).abs().max()) for p, state in zip(parameters, states, strict=True)
    ]
    moved = [float((state.x[0] - x).abs().max()) for x, state in zip(start, states, strict=True)]
    assert min(moved) > 0
    return max(d / m for d, m in zip(differences, moved, strict=True))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("options", [{"fused": False}, {"foreach": False}, {}], ids=str)
def test_fast_steps_are_those_of_update(name, lookahead, options):
    method = DampedPreconditioned(
        MAPS[name](), OverRun(8), 0.9, 0.8, lookahead, decay=0.3, damping=0.7
    )
    assert compare(method, torch.float64, **options) < 1e-7


@pytest.mark.parametrize("damping", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("options", [{"fused": False}, {}], ids=str)
def test_fast_steps_in_single_precision_and_with_gradients_that_change(damping, options):
    method = DampedPreconditioned(SpectralPower(0.4), 0.02, 0.9, 0.8, damping=damping)
    for scale in (lambda k: 10.0**-k, lambda k: 10.0**k, lambda k: float(k != 2)):
        assert compare(method, torch.float32, scale=scale, **options) < 1e-3


def test_fast_steps_over_a_run():
    method = DampedPreconditioned(PNorm(2.0), OverRun(100), 0.9, 0.8, damping=0.5, memory=0.4).over(
        1000
    )
    assert compare(method, torch.float64) < 1e-9


def test_negative_settings_are_refused():
    for settings in ({"damping": -1.0}, {"memory": -1.0}):
        with pytest.raises(ValueError, match="≥ 0"):
            DampedPreconditioned(PNorm(2.0), 0.1, **settings)
