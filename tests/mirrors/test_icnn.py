"""Gradients, convexity and locality of input-convex potentials, far from the initial weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from mirrordescent.mirrors import ConvICNN, DenseICNN

SMALL = {
    "dense": lambda **options: DenseICNN(4, hidden=5, layers=3, **options),
    "one dense layer": lambda **options: DenseICNN(4, hidden=5, layers=1, **options),
    "images": lambda **options: ConvICNN(2, filters=3, layers=2, **options),
    "grey images": lambda **options: ConvICNN(1, filters=3, layers=3, **options),
    "circular": lambda **options: ConvICNN(2, filters=3, layers=2, padding="circular", **options),
}
OPTIONS = [
    {"activation": activation, "quadratic": quadratic}
    for activation in ("softplus", "leaky_relu")
    for quadratic in (False, True)
]
every_kind = pytest.mark.parametrize("make", SMALL.values(), ids=SMALL.keys())
every_option = pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda o: f"{o['activation']}-{o['quadratic']}"
)
seeds = st.integers(0, 10**6)


def randomised(potential, seed=0, spread=1.0):
    """Return the potential in float64, with random parameters."""
    generator = torch.Generator().manual_seed(seed)
    potential = potential.double()
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.add_(
                spread * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            )
    return potential


def points(potential, batch=3, seed=0, spread=1.0):
    shape = (potential.inputs,) if isinstance(potential, DenseICNN) else (potential.inputs, 4, 5)
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(batch, *shape, generator=generator, dtype=torch.float64)


def per_sample(x):
    return x.flatten(1).sum(1)


@every_kind
@every_option
def test_the_gradient_is_that_of_the_value(make, options):
    potential = randomised(make(**options))
    x = points(potential, spread=3.0).requires_grad_()
    value = potential.value(x)
    assert value.shape == (3,)
    (expected,) = torch.autograd.grad(value.sum(), x)
    gradient = potential.gradient(x)
    assert gradient.shape == x.shape
    assert gradient.is_contiguous()
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)


def test_the_value_is_the_formula():
    potential = randomised(DenseICNN(2, hidden=3, layers=2, quadratic=True))
    x = points(potential)
    positive = torch.nn.functional.softplus
    L0, L1, Q0, Q1 = potential.skips.chunk(4)
    b0, b1 = potential.bias.chunk(2)
    z = positive(x @ L0.T + (x @ Q0.T) ** 2 + b0)
    z = positive(z @ positive(potential.mixing[0]).T + x @ L1.T + (x @ Q1.T) ** 2 + b1)
    expected = z @ positive(potential.output) + 0.5 * (
        0.1 + positive(potential.scale)
    ) * per_sample(x**2)
    torch.testing.assert_close(potential.value(x), expected, rtol=1e-8, atol=1e-8)


@every_kind
@pytest.mark.parametrize("quadratic", [False, True])
def test_the_gradient_can_be_differentiated_twice(make, quadratic):
    potential = randomised(make(quadratic=quadratic), spread=0.5)
    x = (
        points(potential, batch=1)[..., :3].requires_grad_()
        if "Conv" in type(potential).__name__
        else points(potential)
    )
    names = [name for name, _ in potential.named_parameters()]
    inputs = [x.requires_grad_(), *(p.detach().requires_grad_() for p in potential.parameters())]

    def gradient(x, *parameters):
        bound = _Gradient(potential)
        swapped = {f"potential.{name}": p for name, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(bound, swapped, (x,))

    assert torch.autograd.gradcheck(gradient, inputs)
    assert torch.autograd.gradgradcheck(gradient, inputs, fast_mode=True)


class _Gradient(torch.nn.Module):
    def __init__(self, potential):
        super().__init__()
        self.potential = potential

    def forward(self, x):
        return self.potential.gradient(x)


@every_kind
@every_option
@settings(max_examples=15)
@given(seed=seeds, weight=st.floats(0, 1), spread=st.floats(0.1, 10))
def test_strongly_convex_everywhere(make, options, seed, weight, spread):
    potential = randomised(make(**options), seed)
    a = points(potential, seed=seed, spread=spread)
    b = points(potential, seed=seed + 1, spread=spread)
    distance = per_sample((a - b).square())
    alpha = potential.strong_convexity
    assert alpha >= potential.mu
    chord = weight * potential.value(a) + (1 - weight) * potential.value(b)
    bulge = 0.5 * alpha * weight * (1 - weight) * distance
    assert (
        potential.value(weight * a + (1 - weight) * b) <= chord - bulge + 1e-12 * chord.abs()
    ).all()
    product = per_sample((potential.gradient(a) - potential.gradient(b)) * (a - b))
    assert (product >= alpha * distance * (1 - 1e-10)).all()


@every_kind
@every_option
def test_hessians_lie_above_the_stated_bound(make, options):
    for seed in range(4):
        potential = randomised(make(**options), seed)
        (x,) = points(potential, batch=1, seed=seed)

        def gradient(flat, potential=potential, shape=x.shape):
            return potential.gradient(flat.reshape(1, *shape)).flatten()

        hessian = torch.autograd.functional.jacobian(gradient, x.flatten())
        torch.testing.assert_close(hessian, hessian.T, rtol=1e-9, atol=1e-9)
        smallest = torch.linalg.eigvalsh(hessian)[0]
        assert smallest >= potential.strong_convexity * (1 - 1e-9)


def test_the_bound_is_attained_without_the_network():
    potential = randomised(DenseICNN(3, hidden=4))
    with torch.no_grad():
        potential.output.fill_(-1e3)
    x = points(potential)
    torch.testing.assert_close(potential.gradient(x), potential.strong_convexity * x)


@pytest.mark.parametrize("quadratic", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_potentials_start_near_the_identity(quadratic, seed):
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(2, 3, 24, 24, generator=generator)
    vector = torch.randn(8, 51, generator=generator)
    options = {"quadratic": quadratic, "generator": generator}
    for x, potential in [
        (image, ConvICNN(3, **options)),
        (image[:, :1], ConvICNN(1, filters=32, layers=4, kernel=5, **options)),
        (vector, DenseICNN(51, **options)),
        (vector, DenseICNN(51, hidden=96, layers=5, **options)),
    ]:
        deviation = (potential.gradient(x) - x).norm() / x.norm()
        assert 1e-4 < deviation < 0.1
        assert potential.strong_convexity == pytest.approx(1, abs=1e-5)


def test_the_generator_decides_the_start():
    def weights(seed):
        return ConvICNN(1, generator=torch.Generator().manual_seed(seed)).skips

    before = torch.get_rng_state()
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert torch.equal(ConvICNN(1).skips, weights(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_map_is_local(layers, generator):
    potential = randomised(ConvICNN(1, filters=3, layers=layers, quadratic=True), spread=0.5)
    reach = 2 * layers
    x = torch.rand(1, 1, 21, 21, generator=generator, dtype=torch.float64)
    changed = x.clone()
    changed[..., 10, 10] += 1.0
    moved = (potential.gradient(changed) - potential.gradient(x)).abs()[0, 0] > 1e-12
    rows, columns = moved.nonzero(as_tuple=True)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (10 - reach, 10 + reach) * 2


def test_one_map_serves_every_size(generator):
    potential = randomised(ConvICNN(2, filters=3), spread=0.5)
    large = torch.rand(1, 2, 20, 26, generator=generator, dtype=torch.float64)
    crop = large[..., 2:18, 5:21]
    inner = (..., slice(4, -4), slice(4, -4))  # away from the border by the reach of the map
    from_large = potential.gradient(large)[..., 2:18, 5:21][inner]
    torch.testing.assert_close(potential.gradient(crop)[inner], from_large, rtol=1e-10, atol=1e-10)


def test_circular_padding_commutes_with_shifts(generator):
    potential = randomised(ConvICNN(2, filters=3, padding="circular", quadratic=True), spread=0.5)
    x = torch.rand(2, 2, 7, 9, generator=generator, dtype=torch.float64)
    shifted = potential.gradient(x.roll((3, -2), (2, 3)))
    torch.testing.assert_close(
        shifted, potential.gradient(x).roll((3, -2), (2, 3)), rtol=1e-10, atol=1e-10
    )
    zeros = ConvICNN(2, filters=3, quadratic=True).double()
    zeros.load_state_dict(potential.state_dict())
    border = (zeros.gradient(x) - potential.gradient(x)).abs()
    assert border[..., 0, :].max() > 1e-3


@every_kind
@every_option
def test_configurations_rebuild_the_potential(make, options):
    potential = randomised(make(**options))
    again = type(potential)(**potential.config()).double()
    again.load_state_dict(potential.state_dict())
    x = points(potential)
    assert torch.equal(again.gradient(x), potential.gradient(x))
    assert all(isinstance(value, int | float | str | None) for value in potential.config().values())


def test_layouts_and_single_precision_agree(device, generator):
    potential = randomised(ConvICNN(3, quadratic=True), spread=0.1)
    x = torch.rand(2, 3, 9, 8, generator=generator, dtype=torch.float64)
    expected = potential.gradient(x)
    torch.testing.assert_close(
        potential.gradient(x.to(memory_format=torch.channels_last)), expected
    )
    single = potential.float().to(device).gradient(x.float().to(device))
    assert single.device.type == device.type
    torch.testing.assert_close(single.double().cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("potential", "shape", "wanted"),
    [
        (ConvICNN(3), (2, 1, 8, 8), r"images \(batch, 3, height, width\), got \(2, 1, 8, 8\)"),
        (ConvICNN(3), (3, 8, 8), "images"),
        (DenseICNN(51), (2, 50), r"points \(batch, 51\), got \(2, 50\)"),
    ],
)
def test_a_point_of_the_wrong_shape_is_named(potential, shape, wanted):
    for function in (potential.value, potential.gradient):
        with pytest.raises(ValueError, match=wanted):
            function(torch.zeros(shape))


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: ConvICNN(3, kernel=4), "odd kernel"),
        (lambda: ConvICNN(0), "inputs"),
        (lambda: DenseICNN(3, layers=0), "layers"),
        (lambda: DenseICNN(3, activation="relu6"), "softplus, leaky_relu"),
        (lambda: ConvICNN(3, padding="reflect"), "zeros, circular"),
        (lambda: DenseICNN(3, mu=0.0), "0 < mu < 1"),
    ],
)
def test_impossible_potentials_are_refused(make, wanted):
    with pytest.raises(ValueError, match=wanted):
        make()
