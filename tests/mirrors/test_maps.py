"""Inverse, gradient, monotonicity, divergence, strong convexity and domain of every map."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from mirrordescent import DomainError
from mirrordescent.domains import Box, PositiveOrthant, Simplex
from mirrordescent.mirrors import (
    Burg,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    Logit,
    Multipliers,
    NegativeEntropy,
    OrthantEntropy,
    PNorm,
    SimplexEntropy,
    SingularValues,
    SoftSign,
    SpectralPower,
    Spline,
    SquaredPNorm,
    Stencil,
)
from mirrordescent.mirrors.by_kind import ScaledMap
from mirrordescent.mirrors.odd import Saturating
from mirrordescent.mirrors.singular_values import SpectralBall


def learned_spline():
    mirror = Spline(torch.tensor(0), knots=5, reach=2.0).requires_grad_(False)
    mirror.raw_slopes.add_(torch.randn(1, 10, generator=torch.Generator().manual_seed(0)))
    return mirror


MAPS = {
    "euclidean": Euclidean(),
    "diagonal": Diagonal(0.7),
    "multipliers": Multipliers(torch.tensor(0), 0.7).requires_grad_(False),
    "spline": learned_spline(),
    "p-norm 1.5": PNorm(1.5),
    "p-norm 2": PNorm(2.0),
    "p-norm 3": PNorm(3.0),
    "squared 1.1-norm": SquaredPNorm(1.1),
    "squared 1.7-norm": SquaredPNorm(1.7),
    "squared 3-norm": SquaredPNorm(3.0),
    "entropy": NegativeEntropy(),
    "simplex": SimplexEntropy(),
    "hyperbolic": HyperbolicEntropy(0.5),
    "orthant": OrthantEntropy(0.5).requires_grad_(False),
    "burg": Burg(),
    "logit": Logit(-1.0, 2.0),
    "soft sign": SoftSign(0.5),
    "saturating": Saturating([0.5, 0.3, 0.2], ratio=3.0, floor=0.05).requires_grad_(False),
    "scaled": ScaledMap(PNorm(3.0), 0.2),
    "scaled soft sign": ScaledMap(SoftSign(0.5), 3.0),
    "spectral 0.5": SpectralPower(0.5),
    "spectral 1": SpectralPower(1.0),
    "spectral 2": SpectralPower(2.0),
    "spectral 0, damped": SpectralPower(0.0, damping=0.5),
    "singular values, hyperbolic": SingularValues(HyperbolicEntropy(0.5)),
    "singular values, squared norm": SingularValues(SquaredPNorm(1.7)),
    "singular values, saturating": SingularValues(
        Saturating([0.6, 0.4], floor=0.05)
    ).requires_grad_(False),
}
maps = pytest.mark.parametrize("mirror", MAPS.values(), ids=MAPS.keys())
many = settings(max_examples=40)


@st.composite
def shapes(draw):
    """Draw the shape of a batch of points with one to three dimensions."""
    return (draw(st.integers(1, 3)), *draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))


def points(mirror, shape, seed, dtype=torch.float64, spread=2.0):
    """Return random points well inside the primal domain."""
    raw = spread * torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    match mirror.primal_domain:
        case PositiveOrthant():
            raw = raw.exp()
        case Simplex():
            raw = raw.softmax(-1)
        case SpectralBall() as ball:
            raw = (
                0.9
                * ball.radius
                * raw
                / (1 + raw.flatten(1).norm(dim=1).reshape(-1, *[1] * (len(shape) - 1)))
            )
        case Box() as box:
            raw = box.lower + (box.upper - box.lower) * (0.01 + 0.98 * raw.sigmoid())
    raw = raw.to(dtype)
    return raw / raw.sum(-1, keepdim=True) if isinstance(mirror.primal_domain, Simplex) else raw


@maps
@many
@given(
    shape=shapes(),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_to_primal_inverts_to_dual(mirror, shape, seed, dtype):
    x = points(mirror, shape, seed, dtype)
    mirror = mirror.to(dtype)
    back = mirror.to_primal(mirror.to_dual(x))
    assert back.dtype == dtype
    # |y|^(1/(p−1)) with p near 1 has a large condition number, (p/(p−1)) digits of which are lost.
    tolerance = 1e-3 if dtype == torch.float32 else 1e-11
    torch.testing.assert_close(back, x, rtol=tolerance, atol=tolerance)


@maps
@many
@given(shape=shapes(), seed=st.integers(0, 10**6))
def test_to_dual_inverts_to_primal(mirror, shape, seed):
    mirror = mirror.double()
    y = mirror.to_dual(points(mirror, shape, seed)) * 0.8
    again = mirror.to_dual(mirror.to_primal(y))
    difference = again - y
    if isinstance(mirror, SimplexEntropy):  # dual points are equal up to a constant
        difference = difference - difference.mean(-1, keepdim=True)
    torch.testing.assert_close(
        difference, torch.zeros_like(y), rtol=0, atol=1e-10 * (1 + float(y.abs().max()))
    )


@maps
@many
@given(shape=shapes(), seed=st.integers(0, 10**6))
def test_to_dual_is_the_gradient_of_the_potential(mirror, shape, seed):
    x = points(mirror.double(), shape, seed).requires_grad_()
    potential = mirror.potential(x)
    assert potential.shape == shape[:1]
    (gradient,) = torch.autograd.grad(potential.sum(), x)
    torch.testing.assert_close(mirror.to_dual(x).detach(), gradient, rtol=1e-10, atol=1e-12)


@maps
@many
@given(shape=shapes(), seed=st.integers(0, 10**6))
def test_monotone_and_strongly_convex_as_stated(mirror, shape, seed):
    mirror = mirror.double()
    a = points(mirror, shape, seed)
    b = points(mirror, shape, seed + 1)
    product = ((mirror.to_dual(a) - mirror.to_dual(b)) * (a - b)).flatten(1).sum(1)
    a_single_point = isinstance(mirror, SimplexEntropy) and shape[-1] == 1
    assert (product > 0).all() or a_single_point
    if mirror.strong_convexity is not None:
        alpha, p = mirror.strong_convexity
        # Norms of a batch of simplices are taken simplex by simplex, and added up.
        distance = (
            torch.linalg.vector_norm(a - b, ord=p, dim=-1)
            if p == 1
            else (a - b).flatten(1).norm(p, dim=1)
        )
        squared = distance.square().reshape(shape[0], -1).sum(1)
        assert (product >= alpha * squared - 1e-9).all()


@maps
@many
@given(shape=shapes(), seed=st.integers(0, 10**6))
def test_divergence(mirror, shape, seed):
    mirror = mirror.double()
    a = points(mirror, shape, seed)
    b = points(mirror, shape, seed + 1)
    divergence = mirror.divergence(a, b)
    linear = (mirror.to_dual(b) * (a - b)).flatten(1).sum(1)
    definition = mirror.potential(a) - mirror.potential(b) - linear
    size = mirror.potential(a).abs() + mirror.potential(b).abs() + linear.abs() + 1
    assert divergence.shape == shape[:1]
    assert ((divergence - definition).abs() <= 1e-12 * size).all()
    assert (divergence >= -1e-12 * size).all()
    assert (mirror.divergence(a, a).abs() <= 1e-12 * size).all()


@maps
@many
@given(shape=shapes(), seed=st.integers(0, 10**6))
def test_step_is_the_composition(mirror, shape, seed):
    mirror = mirror.double()
    x = points(mirror, shape, seed, spread=1.0)
    v = 0.1 * torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    composed = mirror.to_primal(mirror.to_dual(x) - v)
    torch.testing.assert_close(mirror.step(x, v), composed, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("mirror", "expected"),
    [
        (Euclidean(), (1.0, 2.0)),
        (Diagonal(torch.tensor([3.0, 0.5])), (0.5, 2.0)),
        (Diagonal(torch.nn.Parameter(torch.tensor([3.0, 0.5]))), (0.5, 2.0)),
        (Multipliers(torch.arange(2), 4.0), (0.25, 2.0)),
        (Spline(torch.arange(2), slope=3.0), (pytest.approx(3.0), 2.0)),
        (PNorm(2), (1.0, 2.0)),
        (PNorm(1.5), (0.0, 2.0)),
        (PNorm(3), (0.0, 2.0)),
        (SquaredPNorm(1.25), (0.25, 1.25)),
        (SquaredPNorm(3), (0.0, 2.0)),
        (NegativeEntropy(), (0.0, 2.0)),
        (SimplexEntropy(), (1.0, 1.0)),
        (HyperbolicEntropy(), (0.0, 2.0)),
        (OrthantEntropy(), (0.0, 2.0)),
        (Burg(), (0.0, 2.0)),
        (Logit(0, 2), (2.0, 2.0)),
    ],
)
def test_strong_convexity_constants(mirror, expected):
    assert mirror.strong_convexity == expected
    assert mirror.exact


@pytest.mark.parametrize(
    ("mirror", "outside"),
    [
        (NegativeEntropy(), [1.0, 0.0]),
        (Burg(), [-1.0, 1.0]),
        (SimplexEntropy(), [0.5, 0.6]),
        (Logit(0, 1), [0.5, 1.0]),
    ],
)
def test_a_start_outside_the_domain_is_named(mirror, outside):
    from mirrordescent import AMD, ASMD, MD, SMD

    good = torch.full((2,), 0.5)
    x0 = torch.stack([good, torch.tensor(outside)])
    for method in (MD(mirror, 0.1), SMD(mirror, 0.1), AMD(mirror, 0.1), ASMD(mirror, 0.1)):
        with pytest.raises(DomainError, match=rf"x0.*{type(mirror).__name__}.*samples 1\b"):
            method.init(x0)


def test_dual_domain_of_burg():
    assert Burg().dual_domain.contains(torch.tensor([[-1.0], [0.0], [1.0]])).tolist() == [
        True,
        False,
        False,
    ]


def test_dicts_are_sums_over_leaves():
    mirror = HyperbolicEntropy(2.0).double()
    tree = {
        "w": torch.randn(2, 3, dtype=torch.float64),
        "b": torch.randn(2, 1, dtype=torch.float64),
    }
    joined = torch.cat(list(tree.values()), 1)
    torch.testing.assert_close(mirror.potential(tree), mirror.potential(joined))
    torch.testing.assert_close(
        torch.cat(list(mirror.to_dual(tree).values()), 1), mirror.to_dual(joined)
    )
    other = {name: leaf + 1 for name, leaf in tree.items()}
    torch.testing.assert_close(
        mirror.divergence(tree, other), mirror.divergence(joined, joined + 1)
    )


@pytest.mark.parametrize(
    ("mirror", "expected"),
    [
        (Euclidean(), 1.0),
        (Diagonal(torch.tensor([3.0, 0.5])), 3.0),
        (Multipliers(torch.arange(2), 4.0), 0.25),
        (PNorm(2), 1.0),
        (PNorm(3), float("inf")),
        (SquaredPNorm(3), 2.0),
        (SimplexEntropy(), float("inf")),
        (HyperbolicEntropy(0.5), 2.0),
        (OrthantEntropy(0.5), pytest.approx(2.0)),
        (Logit(), float("inf")),
    ],
)
def test_smoothness_constants(mirror, expected):
    assert mirror.smoothness == expected


def test_a_subclass_with_another_formula_does_not_inherit_that_it_is_linear():
    class Cubed(Diagonal):
        def _to_dual(self, x):
            return x + x**3

    class Doubled(Diagonal):
        def _step(self, x, v, t):
            return super()._step(x, 2 * v, t)

    assert Diagonal.linear
    assert not Cubed.linear
    x = torch.ones(1, 3)
    v = torch.full((1, 3), 0.5)
    for mirror, expected in ((Diagonal(1.0), x - 0.5 * v), (Doubled(1.0), x - v)):
        torch.testing.assert_close(mirror.steps(v, (x, 0.5)), [expected])


def test_saturated_logit_stays_in_its_box():
    mirror = Logit(-0.1, 1.1)
    x = mirror.to_primal(torch.tensor([[-1e4, 40.0, 1e4]]))
    assert mirror.primal_domain.contains(x, closed=True).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Diagonal(torch.tensor([1.0, 0.0])),
        lambda: PNorm(1.0),
        lambda: SquaredPNorm(0.5),
        lambda: Logit(1, 1),
        lambda: HyperbolicEntropy(0.0),
    ],
)
def test_impossible_maps_are_refused(make):
    with pytest.raises(ValueError, match="needs"):
        make()


def test_a_diagonal_of_another_width_is_refused():
    mirror = Diagonal(torch.ones(5))
    one = torch.ones(2, 1)
    for call in (mirror.potential, mirror.to_dual, mirror.to_primal, lambda x: mirror.step(x, x)):
        with pytest.raises(
            ValueError, match=r"d of shape \(5,\) must broadcast to points of shape \(2, 1\)"
        ):
            call(one)
    assert mirror.to_dual(torch.ones(2, 3, 5)).shape == (2, 3, 5)
    assert Diagonal(torch.ones(3, 1)).to_dual(torch.ones(2, 3, 5)).shape == (2, 3, 5)


def test_maps_run_on_the_device(device):
    for mirror in MAPS.values():
        x = points(mirror, (2, 3), 0, torch.float32).to(device)
        assert mirror.to(device).float().to_primal(mirror.to_dual(x)).device.type == device.type
        mirror.to("cpu")


@pytest.mark.parametrize("mirror", [*MAPS.values(), Stencil(0.5)], ids=[*MAPS, "stencil"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_sample_does_not_depend_on_its_neighbours(mirror, dtype):
    """Equal to the last bit, because methods with jumps amplify differences."""
    mirror = mirror.to(dtype)
    for shape in ((3, 1, 1, 5), (2, 3, 4, 6), (3, 1, 9, 7), (2, 1, 33, 17)):
        x = points(mirror, shape, seed=1, dtype=dtype)
        y = mirror.to_dual(x).detach()
        back = mirror.to_primal(y).detach()
        for i in range(len(x)):
            assert torch.equal(mirror.to_dual(x[i : i + 1].clone()).detach(), y[i : i + 1])
            assert torch.equal(mirror.to_primal(y[i : i + 1].clone()).detach(), back[i : i + 1])
