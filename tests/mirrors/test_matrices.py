"""Functions of singular values: LAPACK, rotations, degenerate cases and approximations."""

from __future__ import annotations

import pytest
import torch

from mirrordescent.execution import matrices
from mirrordescent.execution.matrices import direction_function, matrix_directions
from mirrordescent.mirrors import (
    Euclidean,
    HyperbolicEntropy,
    MirrorMap,
    NegativeEntropy,
    PNorm,
    SingularValues,
    SoftSign,
    SpectralPower,
    SquaredPNorm,
    resolvents,
    singular_values,
)
from mirrordescent.mirrors.odd import Saturating
from mirrordescent.mirrors.products import SIGN, combined, fitted, ramps

SHAPES = [(5, 5), (3, 8), (9, 4), (6, 2, 3, 3), (7,), (1, 6)]
POWERS = [0.0, 0.2, 0.5, 1.0]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


@pytest.fixture(params=["products", "resolvents"])
def form(request, monkeypatch):
    """Select one approximation of directions on all devices."""
    for module in (singular_values, matrices):
        monkeypatch.setattr(module, "approximation_on", lambda device: request.param)
    return request.param


def rotation(n, seed):
    return torch.linalg.qr(numbers(n, n, seed=seed))[0]


def by_svd(y, function):
    """U diag(f(σ)) Vᵀ of one sample, by LAPACK's decomposition of the matrix itself."""
    U, S, Vh = torch.linalg.svd(y.reshape(y.shape[0], -1), full_matrices=False)
    return (U @ torch.diag(function(S)) @ Vh).reshape(y.shape)


@shapes
@pytest.mark.parametrize("p", [0.2, 0.5, 2.0])
def test_powers_of_singular_values(shape, p):
    y = numbers(2, *shape)
    expected = torch.stack([by_svd(each, lambda s: s**p) for each in y])
    torch.testing.assert_close(SpectralPower(p).to_primal(y), expected, rtol=1e-9, atol=1e-10)


@shapes
def test_the_conjugate_of_a_power_is_a_schatten_norm(shape):
    p = 0.5
    y = numbers(3, *shape)
    sigma = torch.linalg.svdvals(y.reshape(3, shape[0], -1))
    torch.testing.assert_close(SpectralPower(p).conjugate(y), sigma.pow(1 + p).sum(1) / (1 + p))


def test_half_the_square_of_a_schatten_norm_is_a_gradient_with_its_normalisation():
    y = numbers(1, 4, 6)
    mirror = SingularValues(SquaredPNorm(3.0))
    sigma = torch.linalg.svdvals(y[0])
    torch.testing.assert_close(mirror.conjugate(y)[0], 0.5 * sigma.pow(1.5).sum().pow(2 / 1.5))
    found = 7 * mirror.to_primal(y)  # homogeneous of degree 1
    torch.testing.assert_close(mirror.to_primal(7 * y), found)


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize(
    "inner", [PNorm(3.0), SoftSign(0.1), HyperbolicEntropy(), Saturating([0.5, 0.5])], ids=repr
)
def test_equivariant_under_rotations(inner, steps, form):
    mirror = SingularValues(inner, products=steps).requires_grad_(False).double()
    y = numbers(1, 5, 8)
    P = rotation(5, 1)
    Q = rotation(8, 2)
    for apply in (mirror.to_primal, mirror.direction):
        torch.testing.assert_close(apply(P @ y @ Q.T), P @ apply(y) @ Q.T, rtol=1e-8, atol=1e-8)


def test_a_convolution_is_a_matrix_of_outputs_by_all_inputs():
    y = numbers(1, 6, 2, 3, 3)
    flat = SpectralPower(0.3).to_primal(y.flatten(2))
    torch.testing.assert_close(SpectralPower(0.3).to_primal(y).flatten(2), flat)


@pytest.mark.parametrize("steps", [None, 4])
def test_blocks_of_rows_are_matrices_of_their_own(steps, form):
    y = numbers(1, 12, 5)
    whole = SpectralPower(0.2, parts=3, products=steps)
    block = SpectralPower(0.2, products=steps)
    torch.testing.assert_close(
        whole.to_primal(y), torch.cat([block.to_primal(b) for b in y.split(4, 1)], 1)
    )
    along = torch.nn.functional.cosine_similarity
    for ours, alone in zip(
        whole.direction(y).split(4, 1), (block.direction(b) for b in y.split(4, 1)), strict=True
    ):
        torch.testing.assert_close(
            along(ours.flatten(), alone.flatten(), 0), torch.tensor(1.0).double()
        )
    with pytest.raises(ValueError, match="cannot be divided"):
        SpectralPower(0.2, parts=5).to_primal(y)


@pytest.mark.parametrize("steps", [None, 3, 4, 5])
@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_degenerate_matrices_give_finite_directions(p, steps, dtype, form):
    if dtype == torch.bfloat16 and steps is None:
        pytest.skip("decompositions are in double precision, and bfloat16 has no digits to lose")
    mirror = SpectralPower(p, products=steps)
    rank_one = numbers(6, 1) @ numbers(1, 9)
    for y in (
        torch.zeros(6, 9),
        rank_one,
        torch.eye(9)[:6],
        1e-15 * rank_one,
        1e15 * rank_one,
        torch.ones(6, 9),
    ):
        d = mirror.direction(y[None].to(dtype))
        assert d.dtype == dtype
        assert d.isfinite().all()
        scale = d.double().square().mean().sqrt()
        assert abs(float(scale) - 1) < 1e-2 or not y.any()


@pytest.mark.parametrize("steps", SIGN)
def test_the_polynomials_push_singular_values_to_one(steps):
    floor, _ = SIGN[steps]
    s = torch.linspace(floor, 1, 20_000, dtype=torch.float64)
    final = ramps(s, steps)[-1]
    assert float((final - 1).abs().max()) < 0.07
    for k, ramp in enumerate(ramps(s, steps)[1:-1], 1):
        slope = torch.tensor([a for a, _, _ in SIGN[steps][1][:k]]).prod()
        saturated = ramp[s > 1 / slope]
        assert float(saturated.min()) > 0.65
        assert float(saturated.max()) < 1.25


@pytest.mark.parametrize("steps", SIGN)
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.8])
def test_combined_steps_fit_powers(p, steps):
    weights = fitted(lambda s: s**p, steps)
    s = torch.logspace(float(torch.tensor(SIGN[steps][0]).log10()), 0, 999, dtype=torch.float64)
    error = torch.tensor(weights).double() @ ramps(s, steps) / s**p - 1
    assert min(weights) >= 0
    assert float(error.abs().max()) < 0.15
    assert float(error.square().mean().sqrt()) < 0.04


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize(
    "shape", [(20, 20), (20, 90), (90, 20), (16, 24), (8, 3, 3, 3), (70, 70)], ids=str
)
def test_approximations_agree_with_the_decomposition(shape, p, form):
    mirror = SpectralPower(p, damping=1e-4, products=5)
    y = numbers(1, *shape, dtype=torch.float32)
    exact = MirrorMap._direction(mirror, y)
    approximate = mirror.direction(y)
    assert float((exact - approximate).norm() / exact.norm()) < 0.08


def test_matrices_of_many_shapes_are_computed_together_as_they_are_alone(form):
    maps = [
        SpectralPower(p, products=4, parts=parts)
        for p, parts in ((0, 1), (0.5, 1), (0.2, 2), (1, 1), (0, 1), (0.3, 1))
    ]
    ys = [numbers(*shape) for shape in ((10, 40), (14, 60), (8, 30), (60, 10), (12, 12), (12, 12))]
    together = matrix_directions(maps, ys)
    for mirror, y, d in zip(maps, ys, together, strict=True):
        torch.testing.assert_close(d, mirror.direction(y[None])[0], rtol=1e-9, atol=1e-9)


def test_the_sum_of_iterates_is_that_of_the_polynomials_of_singular_values():
    X = numbers(2, 5, 5)
    weights = (0.1, 0.2, 0.3, 0.4)
    (found,) = combined([X], [weights])
    for each, ours in zip(X, found, strict=True):
        size = (each @ each.T).norm().sqrt()
        expected = by_svd(each / size, lambda s: torch.tensor(weights).double() @ ramps(s, 3))
        torch.testing.assert_close(ours, expected)


def test_weights_are_fitted_again_when_the_inner_map_has_changed():
    inner = Saturating([1.0, 1e-6, 1e-6]).requires_grad_(False)
    mirror = SingularValues(inner, products=4)
    before = mirror.fit("products")
    resolved = mirror.fit("resolvents")
    assert mirror.fit("products") is before
    inner.log_weights.copy_(torch.tensor([1e-6, 1e-6, 1.0]).log())
    assert mirror.fit("products")[0] < 0.1 < 0.9 < before[0]
    small = torch.tensor(0.02).double()
    assert mirror.fit("resolvents")(small) > 0.1 > 0.03 > resolved(small)


@pytest.mark.parametrize("steps", SIGN)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
def test_resolvents_fit_powers_more_closely_than_polynomials(p, steps):
    s = torch.logspace(float(torch.tensor(SIGN[steps][0]).log10()), 0, 999, dtype=torch.float64)
    h = resolvents.fitted(lambda s: s**p, steps)
    error = h(s) / s**p - 1
    assert min(h.weights) >= 0
    by_products = torch.tensor(fitted(lambda s: s**p, steps)).double() @ ramps(s, steps) / s**p - 1
    assert float(error.abs().max()) < 0.06
    assert p == 1 or error.abs().max() < by_products.abs().max()
    assert float(error.square().mean().sqrt()) < 0.03
    assert (
        float((1 - h(s) / h(s).cummax(0).values).max()) < 0.08
    )  # it may fall a little where it should rise


def test_errors_are_what_the_documentation_says():
    s = torch.logspace(-2, 0, 9999, dtype=torch.float64)
    by_inverses = resolvents.fitted(lambda s: s**0, 4)(s) - 1
    by_products = torch.tensor(fitted(lambda s: s**0, 4)).double() @ ramps(s, 4) - 1
    assert float(by_inverses.abs().max()) == pytest.approx(0.014, abs=1e-3)
    assert float(by_products.abs().max()) == pytest.approx(0.07, abs=5e-3)


def test_both_forms_fit_what_a_learned_map_does():
    steps = 4
    inner = Saturating([0.02, 0.03, 0.03, 0.05, 0.87], 3.6).requires_grad_(False)
    mirror = SingularValues(inner, products=steps)
    s = torch.logspace(-1.5, 0, 300, dtype=torch.float64)
    wanted = mirror._slope(s)
    by_products = torch.tensor(mirror.fit("products")).double() @ ramps(s, steps)
    for found in (by_products, mirror.fit("resolvents")(s)):
        assert float((found / wanted - 1).abs().max()) < 0.12


def test_resolvents_act_on_singular_values():
    X = numbers(2, 5, 8)
    h = resolvents.Resolvents((0.3, 0.1, 0.2), (1e-3, 0.1))
    (found,) = resolvents.combined([X], [h])
    for each, ours in zip(X, found, strict=True):
        size = (each @ each.T).norm().sqrt()
        expected = by_svd(
            each / size, lambda s: 0.3 * s + 0.1 * s / (s**2 + 1e-3) + 0.2 * s / (s**2 + 0.1)
        )
        torch.testing.assert_close(ours, expected)


def test_learning_goes_through_the_exact_form():
    mirror = SingularValues(Saturating([0.5, 0.5]), products=4)
    y = numbers(1, 4, 6, dtype=torch.float32)
    mirror.direction(y).square().mean().backward()
    (mirror.direction(y) * numbers(1, 4, 6, seed=1, dtype=torch.float32)).sum().backward()
    assert mirror.inner.log_weights.grad.abs().sum() > 0


@pytest.mark.parametrize("inner", [NegativeEntropy(), torch.nn.Parameter], ids=str)
def test_maps_that_tell_entries_apart_are_refused(inner):
    if inner is torch.nn.Parameter:
        with pytest.raises(ValueError, match="products None or one of"):
            SingularValues(Euclidean(), products=7)
        return
    with pytest.raises(TypeError, match="must be symmetric to act on singular values"):
        SingularValues(inner)


def test_directions_of_zeros_and_of_nothing():
    ys = [torch.zeros(3, 2), torch.ones(0), torch.ones(2)]
    found = direction_function(SoftSign(0.1))(ys)
    assert [d.shape for d in found] == [y.shape for y in ys]
    assert torch.equal(found[0], ys[0])
    torch.testing.assert_close(found[2], ys[2])


@pytest.mark.parametrize(
    "mirror", [SoftSign(0.1), PNorm(4.0), Saturating([0.5, 0.5]).requires_grad_(False)], ids=repr
)
def test_directions_of_many_tensors_are_those_of_each(mirror):
    ys = [numbers(3, 4, dtype=torch.float32), numbers(5, dtype=torch.float32), torch.zeros(2)]
    for together, y in zip(direction_function(mirror)(ys), ys, strict=True):
        torch.testing.assert_close(together, mirror.direction(y[None])[0])


def test_directions_of_tensors_of_many_kinds_without_kernels(form, monkeypatch):
    monkeypatch.setattr(matrices.kernels, "available", lambda: False)
    mirror = SpectralPower(0.0, products=4)
    ys = [
        torch.ones(3, 3).double(),
        torch.zeros(3, 3),
        torch.ones(5, 0),
        torch.ones(0, 5),
        torch.ones(4, 2).bfloat16(),
    ]
    found = direction_function(mirror)(ys)
    for d, y in zip(found, ys, strict=True):
        assert d.dtype == y.dtype
        torch.testing.assert_close(d, y, rtol=1e-2, atol=0)


def test_casting_products_does_not_matter(form, monkeypatch):
    monkeypatch.setattr(matrices.kernels, "available", lambda: False)
    mirror = SpectralPower(0.0, products=5)
    y = numbers(1, 32, 32, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        cast = mirror.direction(y)
        together = direction_function(mirror)([y[0]])[0]
    torch.testing.assert_close(cast, mirror.direction(y))
    torch.testing.assert_close(together, mirror.direction(y)[0], rtol=1e-4, atol=1e-4)


def test_errors_are_multiplied_by_at_most_the_amplification():
    """The bound holds for any error, and is attained where singular values are small."""
    h = resolvents.fitted(lambda s: torch.ones_like(s), steps=4)
    generator = torch.Generator().manual_seed(0)

    def mapped(X):
        u, sigma, vh = torch.linalg.svd(X, full_matrices=False)
        return u @ (h(sigma)[:, None] * vh)

    X = torch.randn(20, 30, generator=generator, dtype=torch.float64)
    low = X[:, :2] @ X[:2]
    factors = []
    for matrix in (X, low):
        matrix = matrix / matrix.norm()
        for size in (1e-6, 1e-3, 0.3):
            error = torch.randn(20, 30, generator=generator, dtype=torch.float64)
            error = size * error / error.norm()
            change = (mapped(matrix + error) - mapped(matrix)).norm()
            factors.append(float(change / error.norm()) / h.amplification)
    assert max(factors) <= 1
    assert max(factors) > 0.7
    steepest = float(h(torch.tensor(1e-9, dtype=torch.float64))) / 1e-9
    assert h.amplification == pytest.approx(steepest, rel=1e-6)
