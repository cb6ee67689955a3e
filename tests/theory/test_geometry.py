"""Points to sample at, couplings and fields, and the advice that follows from constants."""

from __future__ import annotations

import math

import pytest
import torch

from mirrordescent import MD, SMD, Quadratic
from mirrordescent.domains import Box, Simplex, WholeSpace
from mirrordescent.mirrors import Conjugate, Diagonal, Euclidean, HyperbolicEntropy, PNorm
from mirrordescent.oracles import Noisy
from mirrordescent.theory import KnownConstant, map_constants, recommend
from mirrordescent.theory.assumptions import sample_nearby_points
from mirrordescent.theory.constants import SAFETY
from mirrordescent.theory.geometry import (
    Coupling,
    LineIntegralPotential,
    NewtonInverse,
    move_inside,
    usable_domain,
)
from mirrordescent.theory.recommendation import advise, local_alpha


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


class Stretched(Euclidean):
    """An inverse that is too long."""

    exact = False

    def _to_primal(self, y):
        return 1.5 * y


def test_nearby_points_are_around_the_start_and_inside():
    x0 = double([5.0, 5.0], [0.1, 0.2])
    near = sample_nearby_points(x0, WholeSpace(), torch.Generator().manual_seed(0))
    assert len(near) == 4
    assert torch.equal(near[0], x0)
    noise = torch.randn(2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(near[1], x0 + x0.square().mean().sqrt() * noise)
    boxed = sample_nearby_points(x0, Box(0.0, 0.3), torch.Generator().manual_seed(0), 2)
    assert len(boxed) == 3
    assert all(bool(Box(0.0, 0.3).contains(x).all()) for x in boxed)


def test_a_point_outside_is_projected_and_drawn_inside():
    box = Box(0.0, 1.0)
    within = double([0.2, 0.9])
    assert move_inside(within, box) is within
    torch.testing.assert_close(
        move_inside(double([2.0, -1.0]), box), 0.9 * double([1.0, 0.0]) + 0.1 * double([0.5, 0.5])
    )


def test_the_usable_domain_of_a_map():
    bowl = Quadratic(double([1.0, 4.0])[0], double([0.0, 0.0]))
    bowl.domain = Box(0.0, 1.0)
    simplex = Euclidean(Simplex())
    assert usable_domain(None, bowl) is bowl.domain
    assert usable_domain(Euclidean(), bowl) is bowl.domain
    assert usable_domain(simplex, bowl) is simplex.primal_domain


def test_the_coupling_is_fenchel_s():
    """ψ(u) + ψ*(y) − ⟨y, u⟩ for ψ = Σ dx²/2: Σ (du − y)²/2d, by way of either form."""
    d = double([2.0, 5.0])[0]
    u = double([1.0, -1.0])
    y = double([0.5, 3.0])
    expected = ((d * u - y).square() / (2 * d)).sum(1)
    for mirror in (Diagonal(d), NewtonInverse(Diagonal(d))):
        coupling = Coupling(mirror, u)
        torch.testing.assert_close(coupling(y), expected)
        torch.testing.assert_close(coupling(y, y / d), expected)
    conjugate = Conjugate(LineIntegralPotential(lambda y: 0.5 * y))  # M* = y²/4, so ψ = x²
    torch.testing.assert_close(Coupling(conjugate, u)(y), ((2 * u - y).square() / 4).sum(1))


def test_a_field_is_integrated_along_the_ray():
    """Exactly for polynomials up to degree 31: ∫₀¹ ⟨(sx)³⁰, x⟩ ds = x³¹/31."""
    x = double([1.1, -0.9])
    torch.testing.assert_close(
        LineIntegralPotential(lambda x: x**30).value(x), (x**31 / 31).sum(1), rtol=1e-13, atol=0
    )
    torch.testing.assert_close(
        LineIntegralPotential(lambda x: 2 * x + 1).value(x), (x.square() + x).sum(1)
    )


# Advice


@pytest.mark.parametrize(
    ("theorem", "storage", "exact", "stochastic", "kinks", "t", "gamma", "rule"),
    [
        ("descent", "dual", True, False, False, 0.125, None, "min"),
        ("descent", "dual", False, False, False, 0.125, None, "min"),
        ("descent", "primal", True, False, False, 0.125, None, "min"),
        ("descent", "dual", True, True, False, None, None, "root_reciprocal"),
        ("descent", "dual", True, False, True, None, None, "root_reciprocal"),
        ("descent", "primal", True, True, False, None, None, "root_reciprocal"),
        ("descent", "primal", False, False, False, 0.125, None, "min"),
        ("descent", "primal", False, True, False, 0.125, None, "min"),
        ("descent", "primal", False, False, True, None, None, "min"),
        ("accelerated", "dual", True, False, False, 0.125, 2.0, "min"),
        ("accelerated", "primal", False, False, False, 0.125, 2.0, "min"),
        ("accelerated", "dual", True, True, False, None, 2.0, "root_reciprocal"),
        ("accelerated", "dual", True, False, True, None, 2.0, "root_reciprocal"),
        ("accelerated stochastic", "dual", True, True, False, 0.125 / 8**0.5, None, "min"),
        ("accelerated stochastic", "dual", True, False, True, None, None, "min"),
    ],
)
def test_advice(theorem, storage, exact, stochastic, kinks, t, gamma, rule):
    """α = ½ and L_f = 4, or kinks: t = α/L_f; γ = 1/α and t = 1/(L_f γ); t = α/(√8 L_f)."""
    advice = advise(
        theorem,
        storage,
        exact,
        stochastic,
        KnownConstant(0.5, "formula"),
        KnownConstant(math.inf if kinks else 4.0, "formula"),
    )
    assert (advice.t, advice.gamma, advice.extension) == (
        t if t is None else pytest.approx(t),
        gamma,
        rule,
    )
    assert "α = 0.5 (formula), L_f = " in advice.reasons[0]
    first_line = str(advice).splitlines()[0]
    assert ("t = " in first_line) == (t is not None)
    assert ("γ = 2" in first_line) == (gamma is not None)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.inf])
def test_without_a_finite_convexity_there_is_no_advice(alpha):
    advice = advise(
        "accelerated",
        "dual",
        True,
        False,
        KnownConstant(alpha, "formula"),
        KnownConstant(4.0, "formula"),
    )
    assert (advice.t, advice.gamma) == (None, None)
    assert "No α > 0" in advice.reasons[1]


@pytest.mark.parametrize(
    ("alpha", "L", "certain"),
    [
        (KnownConstant(0.5, "formula"), KnownConstant(4.0, "certified"), True),
        (KnownConstant(0.5, "certified"), KnownConstant(4.0, "formula"), True),
        (KnownConstant(0.5, "sampled"), KnownConstant(4.0, "formula"), False),
        (KnownConstant(0.5, "formula"), KnownConstant(4.0, "sampled"), False),
        (
            KnownConstant(0.5, "formula"),
            KnownConstant(math.inf, "sampled"),
            True,
        ),  # a jump that was found is one
    ],
)
def test_advice_is_certain_if_its_constants_are(alpha, L, certain):
    assert advise("descent", "dual", True, False, alpha, L).certain is certain


def test_kinks_and_noise_have_reasons_of_their_own():
    options = {"alpha": KnownConstant(0.5, "formula"), "storage": "dual", "exact": True}
    for stochastic, L, words in (
        (True, 4.0, "stochastic gradients"),
        (False, math.inf, "f has kinks"),
    ):
        advice = advise(
            "accelerated", stochastic=stochastic, smoothness=KnownConstant(L, "formula"), **options
        )
        assert words in advice.reasons[-1]


def test_a_local_convexity_is_that_of_the_points():
    """∇ψ = asinh x has the slope 1/√(1 + x²), which has no positive lower bound.

    α is the slope at the outermost entry.
    """
    points = [double([0.0, 1.0]), double([0.5, 2.0])]
    mirror = HyperbolicEntropy(1.0)
    found = local_alpha(mirror, map_constants(mirror, points), points)
    assert (found.source, found.value) == ("sampled", pytest.approx(5**-0.5 / SAFETY))
    assert local_alpha(
        Diagonal(2.0), map_constants(Diagonal(2.0), points), points
    ) == KnownConstant(2.0, "formula")


def test_advice_is_for_the_oracle_that_is_used_and_the_points_that_are_given():
    bowl = Quadratic(double([1.0, 4.0])[0], double([0.0, 0.0]))
    mirror = PNorm(3.0)
    near, far = (recommend(mirror, bowl, "SMD", points=[double([s, 2 * s])]).t for s in (1.0, 2.0))
    assert near == pytest.approx(2.0 / SAFETY / 4.0)  # ψ = Σ|x|³/3 has the curvature 2|x|
    assert far == pytest.approx(2 * near)
    for method in ("SMD", SMD(mirror, 1.0)):
        assert recommend(mirror, bowl, method, oracle=Noisy(1.0)).t is None
    wrong = Stretched()
    assert "keep t constant" in str(recommend(wrong, bowl, MD(wrong, 1.0)))
    curved = HyperbolicEntropy(1.0)
    drawn = [
        recommend(curved, bowl, "SMD", generator=torch.Generator().manual_seed(s)).t
        for s in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
