"""Spectral maps, against SciPy's cosine transform, and their symmetries."""

from __future__ import annotations

import pytest
import torch
from scipy.fft import dctn

from mirrordescent._internal.dct import add_low, dct, low_frequencies
from mirrordescent.mirrors import Spectral, SpectralSpline, Stencil
from mirrordescent.mirrors.spectral import _hats, _positions
from mirrordescent.theory.equivariance import IMAGE_ACTIONS, MARGIN, SHIFT, defect

SIZES = [(1, 1), (1, 7), (2, 3), (8, 8), (12, 9), (31, 20)]


def images(height, width, seed=0, dtype=torch.float64):
    return torch.rand(
        2, 3, height, width, generator=torch.Generator().manual_seed(seed), dtype=dtype
    )


def spectral(cutoff=0.4, knots=4, seed=1):
    mirror = Spectral(cutoff, knots).double()
    values = torch.randn(knots, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return mirror.requires_grad_(False), mirror.log_spectrum.copy_(values)


def splines(seed=2):
    mirror = SpectralSpline(0.4, bands=3, knots=4, reach=2.0).double().requires_grad_(False)
    raw = mirror.spline.raw_slopes
    raw.add_(
        torch.randn(raw.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    )
    return mirror


LINEAR = {
    "low block": lambda: spectral()[0],
    "whole band": lambda: spectral(cutoff=1.0)[0],
    "stencil": lambda: Stencil(0.7).double().requires_grad_(False),
}
MAPS = {**LINEAR, "splines": splines}
linear_maps = pytest.mark.parametrize("make", LINEAR.values(), ids=LINEAR.keys())
maps = pytest.mark.parametrize("make", MAPS.values(), ids=MAPS.keys())


@pytest.mark.parametrize("size", SIZES)
def test_transform_is_scipys(size):
    x = images(*size)
    torch.testing.assert_close(
        low_frequencies(x, 1.0), torch.from_numpy(dctn(x.numpy(), axes=(-2, -1), norm="ortho"))
    )


@pytest.mark.parametrize("size", SIZES)
def test_block_of_low_frequencies(size):
    x = images(*size)
    low = low_frequencies(x, 0.3)
    whole = low_frequencies(x, 1.0)
    rows, columns = (sum(i / n < 0.3 for i in range(n)) for n in size)
    torch.testing.assert_close(low, whole[..., :rows, :columns])
    torch.testing.assert_close(low_frequencies(add_low(x, low), 0.3), 2 * low)


def test_spectrum_by_hand():
    mirror, values = spectral(cutoff=0.4, knots=3)  # values at 0, 0.1, 0.2, and 0 at 0.4
    found = mirror.spectrum(20, 10).log()
    assert found.shape == (8, 4)
    torch.testing.assert_close(found[0, 0], values[0])
    torch.testing.assert_close(found[2, 0], values[1])
    torch.testing.assert_close(found[0, 1], values[1])
    torch.testing.assert_close(found[1, 0], (values[0] + values[1]) / 2)
    torch.testing.assert_close(found[6, 0], values[2] / 2)
    assert found[7, 3] == 0  # the corner of the block lies beyond the cut-off


@linear_maps
@pytest.mark.parametrize("size", SIZES)
def test_diagonal_in_the_cosine_transform(make, size):
    mirror = make()
    x = images(*size)
    factors = torch.ones(size, dtype=torch.float64)
    m = mirror.spectrum(*size)
    factors[: m.shape[0], : m.shape[1]] = m
    torch.testing.assert_close(
        low_frequencies(mirror.to_primal(x), 1.0), factors * low_frequencies(x, 1.0)
    )
    torch.testing.assert_close(
        low_frequencies(mirror.to_dual(x), 1.0), low_frequencies(x, 1.0) / factors
    )


@maps
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inverse_is_exact_to_rounding(make, size, dtype):
    mirror = make().to(dtype)
    x = images(*size, dtype=dtype)
    eps = torch.finfo(dtype).eps
    for back in (mirror.to_primal(mirror.to_dual(x)), mirror.to_dual(mirror.to_primal(x))):
        assert back.dtype == dtype
        assert float((back - x).abs().max()) < 200 * eps


@maps
def test_gradient_of_its_potential(make):
    mirror = make()
    x = images(7, 9).requires_grad_()
    (gradient,) = torch.autograd.grad(mirror.potential(x).sum(), x)
    torch.testing.assert_close(gradient, mirror.to_dual(x))
    a = images(7, 9, 1)
    b = images(7, 9, 2)
    linear = (mirror.to_dual(b) * (a - b)).flatten(1).sum(1)
    torch.testing.assert_close(
        mirror.divergence(a, b), mirror.potential(a) - mirror.potential(b) - linear
    )


@linear_maps
def test_strong_convexity_is_the_largest_there_is(make):
    mirror = make()
    alpha = mirror.strong_convexity.alpha
    hessian = torch.autograd.functional.jacobian(
        mirror.to_dual, torch.zeros(1, 1, 12, 12, dtype=torch.float64)
    )
    least = float(torch.linalg.eigvalsh(hessian.reshape(144, 144)).min())
    assert alpha <= least * (1 + 1e-12)
    assert isinstance(mirror, Spectral) or least == pytest.approx(
        alpha
    )  # that of a spectrum is taken at its knots


@linear_maps
def test_linear_step(make):
    mirror = make()
    x = images(6, 5)
    v = images(6, 5, 1)
    expected = mirror.to_primal(mirror.to_dual(x) - 0.3 * v)
    torch.testing.assert_close(mirror.step(x, v, 0.3), expected)


@pytest.mark.parametrize(
    "make",
    [lambda: Spectral(0.5, 3), Stencil, lambda: SpectralSpline(0.7, 2, knots=3)],
    ids=["spectral", "stencil", "splines"],
)
def test_differentiable_in_points_and_parameters(make):
    mirror = make().double()
    names = [f"mirror.{name}" for name, _ in mirror.named_parameters()]

    def through(x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return tuple(
            torch.func.functional_call(Call(mirror, field), given, (x,))
            for field in ("to_primal", "to_dual", "potential")
        )

    x = images(4, 5)[:1, :1].requires_grad_()
    assert torch.autograd.gradcheck(
        through, (x, *(p.detach().requires_grad_() for p in mirror.parameters()))
    )


class Call(torch.nn.Module):
    def __init__(self, mirror, field):
        super().__init__()
        self.mirror = mirror
        self.field = field

    def forward(self, x):
        return getattr(self.mirror, self.field)(x)


@pytest.mark.parametrize("size", SIZES)
def test_stencil_has_the_same_numbers_without_a_graph(size):
    mirror = Stencil(0.6).double()
    x = images(*size)
    with torch.no_grad():
        fast = mirror.to_primal(x)
    torch.testing.assert_close(fast, mirror.to_primal(x).detach(), rtol=1e-14, atol=1e-15)


@maps
@pytest.mark.parametrize("field", ["to_dual", "to_primal"])
def test_equivariance(make, field):
    """Exact for flips, rotations and colours; away from the border, linear maps also translate."""
    mirror = make()
    x = images(64, 64)
    omega = getattr(mirror, field)
    for motion in ("horizontal flip", "vertical flip", "rotation by 90°"):
        assert defect(omega, IMAGE_ACTIONS[motion], x) < 1e-13, motion
    assert defect(omega, lambda x: x[:, [2, 0, 1]], x) < 1e-13
    if not mirror.linear:
        return
    translation = IMAGE_ACTIONS["translation"]
    at_border, inside = (defect(omega, translation, x, margin) for margin in (0, MARGIN + SHIFT))
    assert inside < (1e-13 if isinstance(mirror, Stencil) and field == "to_primal" else 0.05)
    assert inside < at_border


@maps
def test_use_in_inference_mode_does_not_spoil_derivatives(make):
    """Tensors cached in inference mode must be usable in a graph later."""
    for kept in (dct, _hats, _positions):
        kept.cache_clear()
    mirror = make().requires_grad_()
    x = images(9, 9).requires_grad_()
    with torch.inference_mode():
        mirror.to_primal(mirror.to_dual(x))
    mirror.potential(mirror.to_primal(mirror.to_dual(x))).sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in mirror.parameters())


def test_splines_of_bands_by_hand():
    """A pure wave is changed by the spline of its band alone; one above the block is not
    changed.
    """
    mirror = splines()
    n = 20
    waves = dct(n, n, torch.float64, torch.device("cpu"))
    for i, band in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (7, 2)):  # bands end at 0.1, 0.2, 0.4
        wave = torch.outer(waves[i], waves[0])[None, None]
        for size in (-3.0, 0.4):
            inputs = torch.zeros(1, 3, dtype=torch.float64).index_fill_(
                1, torch.tensor([band]), size
            )
            expected = mirror.spline.to_dual(inputs)[0, band]
            torch.testing.assert_close(mirror.to_dual(size * wave), expected * wave)
            torch.testing.assert_close(mirror.to_dual(-size * wave), -expected * wave)
    high = torch.outer(waves[8], waves[0])[None, None]
    torch.testing.assert_close(mirror.to_dual(high), high)


def test_splines_are_strongly_convex_as_stated():
    mirror = splines()
    a = images(16, 16, 1)
    b = images(16, 16, 2)
    product = ((mirror.to_dual(a) - mirror.to_dual(b)) * (a - b)).flatten(1).sum(1)
    assert (product >= mirror.strong_convexity.alpha * (a - b).square().flatten(1).sum(1)).all()
    torch.testing.assert_close(
        SpectralSpline().double().to_dual(a).detach(), a
    )  # the identity before learning


def test_one_set_of_parameters_for_all_sizes():
    """Images of all sizes have the same factor for a wave of the same length in pixels."""
    mirror, _ = spectral(cutoff=0.5, knots=5)
    found = []
    for n in (16, 64, 256):
        wave = dct(n // 8 + 1, n, torch.float64, torch.device("cpu"))[-1].expand(1, 1, n, n)
        found.append(float((mirror.to_primal(wave) / wave).mean()))
    assert found == pytest.approx([found[0]] * 3)


@pytest.mark.parametrize("bad", [{"cutoff": 0.0}, {"cutoff": 1.5}, {"knots": 0}])
def test_bad_arguments(bad):
    with pytest.raises(ValueError, match="Spectral needs"):
        Spectral(**bad)
    with pytest.raises(ValueError, match="Stencil needs"):
        Stencil(1.0)
    with pytest.raises(ValueError, match="SpectralSpline needs"):
        SpectralSpline(cutoff=2.0)
