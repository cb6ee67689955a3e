from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from mirrordescent.data.phantoms import (
    Ellipses,
    ellipse_phantoms,
    normalise,
    random_ellipses,
    rasterise,
)


def test_draws_follow_their_distributions(generator):
    ellipses = random_ellipses(400, generator)
    present = ellipses.value != 0
    counts = present.sum(1).numpy()
    assert counts.max() <= 70
    assert (
        stats.kstest(counts + np.linspace(-0.5, 0.5, 400), stats.norm(40, math.sqrt(40)).cdf).pvalue
        > 1e-3
    )
    for drawn, law in (
        (ellipses.value[present], stats.uniform(-0.4, 1.4)),
        (ellipses.first_axis, stats.expon(scale=0.2)),
        (ellipses.second_axis, stats.expon(scale=0.2)),
        (ellipses.x, stats.uniform(-0.9, 1.8)),
        (ellipses.y, stats.uniform(-0.9, 1.8)),
        (ellipses.rotation, stats.uniform(0, 2 * math.pi)),
    ):
        assert stats.kstest(drawn.flatten().numpy(), law.cdf).pvalue > 1e-3
    assert (
        abs(np.corrcoef(ellipses.first_axis.flatten(), ellipses.second_axis.flatten())[0, 1]) < 0.05
    )


def test_an_ellipse_has_its_area_centre_and_axes():
    first = 0.5
    second = 0.2
    x = 0.1
    y = -0.3
    rotation = 0.6
    ellipse = Ellipses(
        *(torch.tensor([[number]]) for number in (2.0, first, second, x, y, rotation))
    )
    size = 401
    image = rasterise(ellipse, size)[0, 0].double()
    assert image.unique().tolist() == [0, 2]
    inside = (image > 0).nonzero().double()
    points = (inside + 0.5) * (2 / size) - 1
    assert len(points) * (2 / size) ** 2 == pytest.approx(math.pi * first * second, rel=1e-2)
    assert points.mean(0).tolist() == pytest.approx([y, x], abs=2e-3)
    # A uniform ellipse has variance axis²/4 along each of its axes.
    variances, axes = torch.linalg.eigh(torch.cov(points.T))
    assert (2 * variances.sqrt()).tolist() == pytest.approx([second, first], rel=1e-2)
    assert (
        abs(float(axes[:, 1] @ torch.tensor([math.sin(rotation), math.cos(rotation)]).double()))
        > 0.999
    )


def test_ellipses_add_up():
    pair = Ellipses(
        *(torch.tensor([[number, number]]) for number in (0.5, 0.3, 0.2, 0.0, 0.0, 0.0))
    )
    one = Ellipses(*(field[:, :1] for field in pair))
    assert torch.equal(rasterise(pair, 32), 2 * rasterise(one, 32))


def test_normalisation_by_hand():
    images = torch.tensor([[[[-1.0, 0.0, 3.0]]], [[[0.0, 2.0, 1.0]]], [[[0.0, 0.0, 0.0]]]])
    assert normalise(images).flatten(1).tolist() == [[0, 0, 1], [0, 1, 0.5], [0, 0, 0]]


def test_phantoms_fill_the_unit_interval_and_follow_the_generator():
    def draw(seed):
        return ellipse_phantoms(5, 32, generator=torch.Generator().manual_seed(seed))

    images = draw(0)
    assert images.shape == (5, 1, 32, 32)
    assert torch.equal(images.amax((1, 2, 3)), torch.ones(5))
    assert torch.equal(images.amin((1, 2, 3)), torch.zeros(5))
    assert torch.equal(images, draw(0))
    assert not torch.equal(images, draw(1))


def test_chunks_change_nothing(monkeypatch):
    whole = ellipse_phantoms(5, 16, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("mirrordescent.data.phantoms._CHUNK", 2)
    assert torch.equal(whole, ellipse_phantoms(5, 16, generator=torch.Generator().manual_seed(0)))


def test_impossible_counts_and_sizes(generator):
    with pytest.raises(ValueError, match="count"):
        ellipse_phantoms(0, generator=generator)
    with pytest.raises(ValueError, match="size"):
        ellipse_phantoms(1, 0, generator=generator)
