"""Propositions 2 and 3, and motions of images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent import GD, SMD
from mirrordescent.diagnosis import learned_equivariance as learning
from mirrordescent.learn import Descent, NetworkFamily, Objective, Settings, Validation
from mirrordescent.learn.families import DenoisingFamily
from mirrordescent.mirrors import (
    Conjugate,
    ConvICNN,
    DenseICNN,
    Diagonal,
    Euclidean,
    Layerwise,
    LearnedPair,
    Multipliers,
    layerwise,
    symmetries,
)
from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.theory import equivariance


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)
    ).double()


@pytest.fixture
def problem(model, generator):
    inputs = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    return NetworkTraining(model, inputs, (inputs[:, 0] > inputs[:, 1]).double())


def parameters(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def untied(model, value=1.0):
    return Layerwise(
        {
            name: Diagonal(nn.Parameter(torch.full_like(p, value)))
            for name, p in parameters(model).items()
        }
    )


def test_gradient_descent_is_equivariant(problem, model, generator):
    assert equivariance.network_defect(GD(1.0), problem, model, generator) < 1e-12


def test_a_map_that_treats_hidden_units_differently_is_not_equivariant(problem, model, generator):
    mirror = untied(model)
    with torch.no_grad():
        mirror["0.weight"].d[0] = 3.0
    assert equivariance.network_defect(SMD(mirror, 0.1), problem, model, generator, steps=3) > 0.01
    tied = layerwise(model, ties="orbit").double()
    with torch.no_grad():
        for p in tied.parameters():
            p.add_(torch.rand(p.shape, generator=generator, dtype=torch.float64))
    assert equivariance.network_defect(SMD(tied, 0.1), problem, model, generator, steps=3) < 1e-12


@pytest.mark.parametrize("kind", ["diagonal", "tied", "spline"])
def test_the_meta_gradient_is_invariant_on_a_batch_closed_under_g(problem, model, generator, kind):
    """Proposition 3 without an expectation; from a map that is not equivariant, it is not."""
    symmetry = symmetries(model)
    g = symmetry.random(generator)
    if kind == "diagonal":
        mirror = untied(model)
    else:
        mirror = layerwise(
            model, kind="diagonal" if kind == "tied" else "spline", ties="orbit"
        ).double()
    start = parameters(model)
    defect = learning.meta_gradient_defect(SMD(mirror, 0.5), problem, start, symmetry, g, horizon=4)
    assert defect < 1e-12
    if kind == "diagonal":
        with torch.no_grad():
            mirror["0.weight"].d[:2] *= 2.0
        assert (
            learning.meta_gradient_defect(SMD(mirror, 0.5), problem, start, symmetry, g, horizon=4)
            > 0.01
        )


def test_on_a_batch_that_is_not_closed_the_meta_gradient_is_not_invariant(
    problem, model, generator, monkeypatch
):
    symmetry = symmetries(model)
    monkeypatch.setattr(learning, "_closed_under", lambda g, z, symmetry: [dict(z)])
    g = symmetry.random(generator)
    method = SMD(untied(model), 0.5)
    assert (
        learning.meta_gradient_defect(method, problem, parameters(model), symmetry, g, horizon=4)
        > 0.01
    )


def test_learning_keeps_tied_maps_equivariant_and_untied_ones_nearly(generator):
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    inputs = torch.randn(20, 2, generator=generator)
    family = NetworkFamily(model, inputs, (inputs[:, 0] > inputs[:, 1]).float())
    settings = Settings(
        meta_steps=20,
        batch=16,
        horizon=5,
        optimiser=Descent(0.05),
        objective=Objective(weights="last"),
        validation=Validation(every=20, horizons=(1.0,)),
    )
    free = Layerwise(
        {name: Diagonal(nn.Parameter(torch.ones_like(p))) for name, p in model.named_parameters()}
    )
    tied = layerwise(model, ties="orbit")
    methods = {"untied": SMD(free, 0.5), "tied": SMD(tied, 0.5)}
    held_out = family.validation(1).problem
    found = learning.defects_through_learning(
        methods,
        family,
        settings,
        lambda m: equivariance.network_defect(m, held_out, model, generator),
    )
    before, learned = (
        {kind: found[kind][when] for kind in methods} for when in ("before learning", "learned")
    )
    assert max(before["untied"], before["tied"], learned["tied"]) < 1e-5
    assert 1e-3 < learned["untied"] < 0.5
    assert torch.equal(free["0.weight"].d, torch.ones(4, 2)), (
        "the method given must be left as it was"
    )


@pytest.mark.parametrize("motion", ["translation", "vertical flip", "rotation by 90°"])
def test_learning_on_images_keeps_tied_maps_equivariant_and_untied_ones_not(generator, motion):
    """Pictures are bright at the top: one number per pixel learns that, a single number cannot."""
    slope = torch.linspace(1, 0, 8)[:, None].expand(1, 8, 8)
    pictures = [slope + 0.1 * torch.rand(1, 8, 8, generator=generator) for _ in range(8)]
    family = DenoisingFamily(pictures, pictures[:2], size=8)
    settings = Settings(
        meta_steps=5,
        batch=4,
        horizon=3,
        optimiser=Descent(0.05),
        validation=Validation(every=5, horizons=(1.0,)),
    )
    every_pixel = Multipliers(torch.arange(64).reshape(1, 8, 8))
    methods = {"untied": SMD(every_pixel, 0.5), "tied": SMD(Multipliers(torch.tensor(0)), 0.5)}
    x = family.validation(1).x0
    found = learning.defects_through_learning(
        methods, family, settings, lambda m: equivariance.image_defects(m.mirror, x)["∇ψ"][motion]
    )
    assert max(found["untied"]["before learning"], *found["tied"].values()) < 1e-5
    assert found["untied"]["learned"] > 1e-3
    assert (every_pixel.multipliers == 1).all(), "the method given must be left as it was"


def test_spread_within_orbits(model, generator):
    symmetry = symmetries(model)
    start = parameters(model)
    mirror = untied(model)
    assert set(learning.orbit_spread(mirror, start, symmetry).values()) == {0.0}
    with torch.no_grad():
        mirror["2.bias"].d.copy_(torch.tensor([1.0, 3.0, 1.0, 3.0]))
        mirror["0.weight"].d[:, 1] = (
            7.0  # the two inputs are different orbits, so this is no spread
        )
    spread = learning.orbit_spread(mirror, start, symmetry)
    assert spread["2.bias"] == pytest.approx(1 / 5**0.5)
    assert spread["0.weight"] == 0
    tied = layerwise(model, kind="spline", ties="orbit").double()
    assert max(learning.orbit_spread(tied, start, symmetry).values()) < 1e-12


def test_maps_that_do_not_learn_entries_are_refused(model):
    mirror = Layerwise({name: Euclidean() for name in parameters(model)})
    with pytest.raises(TypeError, match="Euclidean does not learn numbers for entries"):
        learning.per_entry(mirror, parameters(model), lambda p: p)


def network(padding, generator, symmetric=False):
    potential = ConvICNN(1, filters=4, layers=1, padding=padding).double().requires_grad_(False)
    for p in potential.parameters():
        p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    if symmetric:
        turned = [potential.skips.rot90(i, (-2, -1)) for i in range(4)]
        kernel = sum(turned + [t.flip(-1) for t in turned]) / 8
        potential.skips.copy_(kernel)
    return potential


def test_motions_of_images(generator):
    x = torch.rand(2, 1, 40, 40, generator=generator, dtype=torch.float64)
    circular = equivariance.image_defects(Conjugate(network("circular", generator)), x)
    assert circular["∇ψ*"]["translation"] < 1e-12
    assert circular["∇ψ"]["translation"] < 1e-8
    assert circular["∇ψ*"]["horizontal flip"] > 1e-3

    padded = LearnedPair(network("zeros", generator), network("zeros", generator))
    found = equivariance.image_defects(padded, x)
    for field in ("∇ψ", "∇ψ*"):
        assert found[field]["translation"] > 1e-3
        assert found[field]["translation, away from the border"] < 1e-12

    symmetric = LearnedPair(
        network("zeros", generator, symmetric=True), network("zeros", generator, symmetric=True)
    )
    found = equivariance.image_defects(symmetric, x)
    for motion in ("horizontal flip", "vertical flip", "rotation by 90°"):
        assert found["∇ψ"][motion] < 1e-12


def test_an_untied_map_of_images_moves_with_nothing(generator):
    """A dense network on pixels."""
    potential = DenseICNN(16, hidden=8).double().requires_grad_(False)
    x = torch.rand(2, 1, 4, 4, generator=generator, dtype=torch.float64)

    def field(images):
        return potential.gradient(images.flatten(1)).reshape(images.shape)

    for act in equivariance.IMAGE_ACTIONS.values():
        assert equivariance.defect(field, act, x) > 1e-4
        assert equivariance.defect(lambda images: 3 * images, act, x) == 0


def test_motions_of_an_image():
    x = torch.arange(24.0).reshape(1, 1, 4, 6)
    act = equivariance.IMAGE_ACTIONS
    for i in range(4):
        for j in range(6):
            assert act["translation"](x)[0, 0, i, j] == x[0, 0, (i - 3) % 4, (j - 3) % 6]
            assert act["horizontal flip"](x)[0, 0, i, j] == x[0, 0, i, 5 - j]
            assert act["vertical flip"](x)[0, 0, i, j] == x[0, 0, 3 - i, j]
    turned = act["rotation by 90°"](x)
    assert turned.shape == (1, 1, 6, 4)
    assert all(turned[0, 0, 5 - j, i] == x[0, 0, i, j] for i in range(4) for j in range(6))


def test_a_defect_is_relative_to_the_image_and_that_of_the_worst_sample():
    """Ω multiplies the first column by 3, so that after a flip the last column differs.

    The defect is ‖(2a, −2b)‖ relative to ‖(b, 3a)‖.
    """

    def omega(x):
        return torch.cat([3 * x[..., :1], x[..., 1:]], -1)

    flip = equivariance.IMAGE_ACTIONS["horizontal flip"]
    x = double([[[1.0, 2.0]]], [[[5.0, 1.0]]])
    worst = max(
        ((2 * a) ** 2 + (2 * b) ** 2) ** 0.5 / (b**2 + (3 * a) ** 2) ** 0.5
        for a, b in ((1, 2), (5, 1))
    )
    assert equivariance.defect(omega, flip, x) == pytest.approx(worst)
    inner = torch.ones(1, 1, 6, 6, dtype=torch.float64)
    assert equivariance.defect(omega, flip, inner) > 0.1
    assert equivariance.defect(omega, flip, inner, margin=1) == 0, (
        "the columns at the border are left out"
    )

    def rows(x):
        return torch.cat([3 * x[..., :1, :], x[..., 1:, :]], -2)

    assert (
        equivariance.defect(rows, equivariance.IMAGE_ACTIONS["vertical flip"], inner, margin=1) == 0
    )
    assert equivariance.defect(lambda x: 0 * x, flip, x) == 0
    weights = torch.ones(6, 6, dtype=torch.float64)
    # one pixel inside, and one at the border
    weights[2, 1] = 3.0
    weights[0, 3] = 9.0
    # Inside, where 16 pixels are left, Ω(g·x) has the 3 at one place and g·Ω(x) at another.
    assert equivariance.defect(lambda x: weights * x, flip, inner, margin=1) == pytest.approx(
        (8 / (15 + 9)) ** 0.5
    )


@pytest.mark.parametrize("side", [26, 27])
def test_the_border_is_left_out_where_something_is_left(side):
    """A margin of 10 pixels and the shift of 3, on both sides."""
    found = equivariance.image_defects(Diagonal(2.0), random(1, 1, side, 30))
    name = "translation, away from the border"
    assert (name in found["∇ψ"]) == (name in found["∇ψ*"]) == (side == 27)
    seen = []

    class Spy(Diagonal):
        def _to_primal(self, y):
            seen.append(y)
            return super()._to_primal(y)

    x = random(1, 1, 4, 4)
    equivariance.image_defects(Spy(2.0), x)
    torch.testing.assert_close(seen[0], 2 * x, msg="∇ψ* is asked at the images of the points")
