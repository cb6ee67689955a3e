"""Measurements of gradient fields and their constants, on fields with known numbers."""

from __future__ import annotations

import math

import pytest
import torch

from mirrordescent import Function, Quadratic
from mirrordescent.domains import Simplex
from mirrordescent.mirrors import Conjugate, Diagonal, Euclidean, MirrorMap, StrongConvexity
from mirrordescent.mirrors.icnn import Potential
from mirrordescent.problems import Problem
from mirrordescent.theory import KnownConstant, map_constants, problem_constants
from mirrordescent.theory.constants import SAFETY, IdentityComparison, compare_with_identity
from mirrordescent.theory.curvature import (
    asymmetry,
    curvature_range,
    extreme_eigenvalues,
    flatten,
    has_jump,
    potential_error,
    smallest_secant,
    transposed_jacobian,
)
from mirrordescent.theory.geometry import LineIntegralPotential


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def cube(x):
    """Of curvature 3x²."""
    return x**3


def test_the_range_is_over_all_points_and_samples():
    points = [double([1.0, 2.0], [0.5, 1.0]), double([1.0, 1.0], [3.0, 2.0])]
    assert curvature_range(cube, points) == pytest.approx((0.75, 27.0))
    assert curvature_range(cube, points[::-1]) == pytest.approx((0.75, 27.0))


def test_few_steps_find_what_lies_between_the_extremes():
    """One step gives the Rayleigh quotient of a random vector, both as smallest and as largest."""
    spectrum = torch.arange(1.0, 9.0, dtype=torch.float64)
    one, many = (
        extreme_eigenvalues(lambda x: spectrum * x, torch.zeros(3, 8).double(), steps=n)
        for n in (1, 8)
    )
    torch.testing.assert_close(*one)
    assert (one[0] > 1.01).all()
    assert (one[1] < 7.99).all()
    torch.testing.assert_close(torch.stack(many), double([1.0] * 3, [8.0] * 3))


def test_another_generator_draws_other_directions():
    spectrum = torch.arange(1.0, 9.0, dtype=torch.float64)
    found = [
        extreme_eigenvalues(
            lambda x: spectrum * x, torch.zeros(1, 8).double(), steps=1, generator=generator
        )[0]
        for generator in (None, torch.Generator().manual_seed(0), torch.Generator().manual_seed(5))
    ]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("factor", [1.0, 0.8, 3.0])
def test_a_potential_is_off_by_its_share_of_the_larger_gradient(factor):
    x = double([1.0, 2.0], [0.0, 3.0])
    found = potential_error(lambda x: factor * x.square().sum(1) / 2, lambda x: x, x)
    assert found == pytest.approx(abs(factor - 1) / max(factor, 1), abs=1e-15)


def test_the_sample_that_is_off_most_counts_and_no_gradient_is_no_error():
    x = double([1.0, 2.0], [3.0, 4.0])
    found = potential_error(
        lambda x: x.square().sum(1) / 2, lambda x: torch.tensor([[1.0], [0.5]]) * x, x
    )
    assert found == pytest.approx(0.5)
    assert potential_error(lambda x: 0 * x.sum(1), torch.zeros_like, x) == 0
    assert potential_error(lambda x: x.detach().sum(1), torch.zeros_like, x) is None


def test_potentials_of_trees_are_compared_leaf_by_leaf():
    x = {"a": double([1.0, 2.0]), "b": double([[3.0], [4.0]])}

    def value(x):
        return x["a"].square().sum(1) / 2 + x["b"].square().sum((1, 2)) / 2

    assert potential_error(value, lambda x: x, x) == 0
    off = potential_error(value, lambda x: {"a": x["a"], "b": 0.5 * x["b"]}, x)
    assert off == pytest.approx(2.5 / 30**0.5)
    unused = potential_error(
        lambda x: x["a"].square().sum(1) / 2, lambda x: {"a": x["a"], "b": 0 * x["b"]}, x
    )
    assert unused == 0


def test_on_a_simplex_constants_are_taken_off():
    x = double([0.2, 0.8], [0.5, 0.5])

    def value(x):
        return x.square().sum(1) / 2

    shift = double([3.0], [-7.0])  # of each sample another one
    assert potential_error(value, lambda x: x + shift, x, Simplex()) == pytest.approx(0, abs=1e-14)
    assert potential_error(value, lambda x: x + shift, x) > 0.5
    # Of sample 1 nothing but a constant is left; of sample 0 both parts are ±0.3, then ±0.6.
    assert potential_error(value, lambda x: 2 * x, x, Simplex()) == pytest.approx(0.5)


def test_products_with_the_transposed_jacobian():
    A = double([1.0, 2.0, 0.0], [0.0, 3.0, 4.0], [5.0, 0.0, 6.0])
    x = {"a": double([1.0], [2.0]), "b": double([3.0, 1.0], [4.0, 2.0])}

    def field(x):
        whole = torch.cat([x["a"], x["b"]], 1) @ A.T  # J = A
        return {"a": whole[:, :1], "b": whole[:, 1:]}

    v = double([1.0, 0.5, 2.0], [0.0, 1.0, -1.0])
    torch.testing.assert_close(transposed_jacobian(field, x)(v), v @ A)
    assert not transposed_jacobian(torch.ones_like, v)(v).any()


def test_a_leaf_whose_gradient_is_constant_has_no_curvature():
    """f = Σ a² + Σ b is linear in b."""
    x = {"a": double([1.0, 2.0]), "b": double([3.0, 1.0, 4.0])}
    for order in (("a", "b"), ("b", "a")):
        tree = {name: x[name] for name in order}

        def field(x, order=order):
            return {n: 2 * x[n] if n == "a" else torch.ones_like(x[n]) for n in order}

        low, high = extreme_eigenvalues(field, tree)
        assert (low.item(), high.item()) == pytest.approx((0, 2))


@pytest.mark.parametrize("scale", [1.0, 10.0, 1e-3])
def test_asymmetry_has_no_unit_and_is_that_of_the_worst_sample(scale):
    """The asymmetry is |sin| of an angle for a rotation by 90°, and 0 for a dilation."""
    turn = torch.stack([double([0.0, -1.0], [1.0, 0.0]), torch.eye(2, dtype=torch.float64)])
    x = double([1.0, 2.0], [3.0, 4.0])
    alone = asymmetry(lambda x: scale * torch.einsum("ij,bj->bi", turn[0], x), x[:1])
    assert 0.05 < alone <= 1 + 1e-12
    assert alone == pytest.approx(asymmetry(lambda x: torch.einsum("ij,bj->bi", turn[0], x), x[:1]))
    both = asymmetry(lambda x: scale * torch.einsum("bij,bj->bi", turn, x), x)
    assert 0 < both <= 1 + 1e-12
    assert asymmetry(lambda x: scale * x, x) == pytest.approx(0, abs=1e-15)
    assert asymmetry(lambda x: 0 * x, x) == 0


def test_the_smallest_secant_is_over_neighbours_and_samples():
    points = [
        double([0.0, 0.0], [1.0, 1.0]),
        double([1.0, 2.0], [1.0, 1.0]),
        double([3.0, 2.0], [1.5, 1.0]),
    ]
    d = double([4.0, 1.0])
    # Sample 0: (4·1 + 1·4)/5 = 1.6 and 4; sample 1 rests, then 4.
    assert smallest_secant(lambda x: d * x, points) == pytest.approx(1.6)
    assert smallest_secant(lambda x: d * x, points[1:]) == pytest.approx(4.0)
    assert smallest_secant(lambda x: d * x, points[::-1]) == pytest.approx(1.6)


@pytest.mark.parametrize("at", [-0.99, -0.7, -0.125, 0.0, 0.3, 0.8, 0.99])
@pytest.mark.parametrize("jump", [1.0, 1e-2])
def test_jumps_are_found_wherever_they_are(at, jump):
    points = [
        double([-1.0], [5.0]),
        double([1.0], [6.0]),
    ]  # between which only the first sample jumps
    assert has_jump(lambda x: x + jump * (x > at), points)
    assert has_jump(lambda x: x + jump * (x > at), [double([-2.0], [5.0]), *points])
    assert not has_jump(lambda x: x + jump * (x > 2 + at), points)


@pytest.mark.parametrize("width", [1e-2, 1e-4, 1.5e-5])
@pytest.mark.parametrize("at", [0.1, 0.2, 0.3])
def test_a_short_ramp_is_no_jump(at, width):
    assert not has_jump(lambda x: ((x - at) / width).clamp(0, 1), [double([-1.0]), double([1.0])])


def test_a_jump_as_small_as_rounding_is_none():
    points = [double([-1.0]), double([1.0])]
    eps = torch.finfo(torch.float64).eps
    for level, jump, found in (
        (100.0, 8e4, False),
        (100.0, 1.5e5, True),
        (1e-6, 8e-4, False),
        (1e-6, 1.5e-3, True),
    ):
        # Of numbers of any size 10³ epsilons are rounding.
        def field(x, level=level, size=jump * eps):
            return level + size * (x > 0.1).to(x)

        assert has_jump(field, points) == found


def test_trees_are_flattened_sample_by_sample():
    tree = {"a": torch.arange(4.0).reshape(2, 2), "b": torch.arange(4.0, 8.0).reshape(2, 2, 1)}
    assert flatten(tree).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_comparison_with_the_identity():
    assert (
        IdentityComparison(0.5, 2.0).multiple,
        IdentityComparison(0.5, 2.0).relative_spread,
    ) == (
        1.25,
        0.6,
    )
    assert IdentityComparison(0.2, 0.4).relative_spread == pytest.approx(1 / 3)
    assert (
        IdentityComparison(-1.0, 1.0).relative_spread
        == IdentityComparison(-3.0, 1.0).relative_spread
        == math.inf
    )
    assert "times the identity" in str(IdentityComparison(0.905, 1.095))
    assert "no multiple" in str(IdentityComparison(0.89, 1.11))


class Squares(Potential):
    """M*(y) = ½ Σ aᵢyᵢ²."""

    def __init__(self, a):
        super().__init__()
        self.a = double(a)[0]

    @property
    def strong_convexity(self):
        return 0.25

    def value(self, y):
        return (self.a * y.square()).sum(1) / 2

    def gradient(self, y):
        return self.a * y


def test_the_constants_of_a_conjugate_are_those_of_the_dual_potential_inverted():
    y = double([1.0, 2.0])
    mirror = Conjugate(Squares([0.5, 4.0]))
    found = map_constants(mirror, [y], duals=[y])
    assert (found.alpha.value, found.alpha.source) == (pytest.approx(1 / (SAFETY * 4.0)), "sampled")
    assert (found.smoothness.value, found.smoothness.source) == (pytest.approx(4.0), "certified")
    assert found.smallest_curvature == pytest.approx(0.5)
    alike = compare_with_identity(mirror, [], [y])
    assert (alike.lowest, alike.highest) == pytest.approx((0.25, 2.0))
    field = map_constants(
        Conjugate(LineIntegralPotential(lambda y: double([0.5, 4.0]) * y)), [y], duals=[y]
    )
    assert (field.smoothness.value, field.smoothness.source) == (
        pytest.approx(SAFETY / 0.5),
        "sampled",
    )
    # Without dual points they are the images of the points: ∇M(x) = x³ for ∇M* a cube root.
    root = Conjugate(LineIntegralPotential(lambda y: y.sign() * y.abs() ** (1 / 3)))
    root._to_dual = lambda x: x**3
    assert compare_with_identity(root, [double([2.0])]).lowest == pytest.approx(12.0)
    assert map_constants(root, [double([2.0])]).smallest_curvature == pytest.approx(1 / 12)


def test_flat_directions_of_a_dual_potential_are_infinitely_curved():
    alike = compare_with_identity(Conjugate(Squares([0.0, 0.0])), [], [double([1.0, 2.0])])
    assert (alike.lowest, alike.highest) == (math.inf, math.inf)


class Stated(MirrorMap):
    """∇ψ = x³ + x, with what a user says about it."""

    said: StrongConvexity | None = None
    smooth: float | None = None

    @property
    def strong_convexity(self):
        return self.said

    @property
    def smoothness(self):
        return self.smooth

    def _to_dual(self, x):
        return x**3 + x


@pytest.mark.parametrize(
    ("said", "smooth", "alpha", "L", "lowest"),
    [
        (
            None,
            None,
            KnownConstant(4.0, "sampled", 1 / SAFETY),
            KnownConstant(13.0, "sampled", SAFETY),
            4.0,
        ),
        (
            StrongConvexity(0.9, 2.0),
            None,
            KnownConstant(0.9, "formula"),
            KnownConstant(13.0, "sampled", SAFETY),
            4.0,
        ),
        (
            StrongConvexity(0.9, 1.0),
            20.0,
            KnownConstant(0.9, "formula"),
            KnownConstant(20.0, "formula"),
            None,
        ),
        (
            StrongConvexity(0.9, 3.0),
            20.0,
            KnownConstant(4.0, "sampled", 1 / SAFETY),
            KnownConstant(20.0, "formula"),
            4.0,
        ),
    ],
)
def test_what_a_map_states_is_taken_and_the_rest_is_sampled(said, smooth, alpha, L, lowest):
    """Strong convexity in ℓ_p with p ≤ 2 implies that in ℓ₂; with p > 2 it does not."""
    mirror = Stated()
    mirror.said = said
    mirror.smooth = smooth
    found = map_constants(mirror, [double([1.0, 2.0])])
    for ours, expected in ((found.alpha, alpha), (found.smoothness, L)):
        assert (ours.source, ours.safety, ours.estimate) == (
            expected.source,
            expected.safety,
            pytest.approx(expected.estimate),
        )
    assert found.smallest_curvature == (None if lowest is None else pytest.approx(lowest))


class Half(Problem):
    """Σ aᵢxᵢ²/2, of which only one constant is stated."""

    def __init__(self, states):
        super().__init__(1, (2,))
        self.states = states

    def value(self, x):
        return (double([0.5, 3.0]) * x.square()).sum(1) / 2

    def grad(self, x):
        return double([0.5, 3.0]) * x

    def smoothness(self):
        return 7.0 if self.states == "smoothness" else None

    def strong_convexity(self):
        return 0.1 if self.states == "convexity" else None


@pytest.mark.parametrize("states", ["smoothness", "convexity", "nothing"])
def test_what_a_problem_states_is_taken_and_the_rest_is_sampled(states):
    found = problem_constants(Half(states), [double([1.0, 2.0]), double([-1.0, 0.0])])
    assert found.smoothness.value == pytest.approx(7.0 if states == "smoothness" else 3.0 * SAFETY)
    assert found.strong_convexity.value == pytest.approx(
        0.1 if states == "convexity" else 0.5 / SAFETY
    )


def test_concave_directions_and_kinks():
    concave = Function(lambda x: (double([1.0, -2.0]) * x.square()).sum(1))
    assert problem_constants(concave, [double([1.0, 1.0])]).strong_convexity.value == 0
    both = problem_constants(
        Quadratic(double([1.0, 4.0])[0], double([0.0, 0.0])), [double([1.0, 1.0])]
    )
    assert (both.smoothness, both.strong_convexity) == (
        KnownConstant(4.0, "formula"),
        KnownConstant(1.0, "formula"),
    )
    kinked = Half("smoothness")
    kinked.grad = lambda x: x + x.sign()
    assert (
        problem_constants(kinked, [double([-1.0, 1.0]), double([1.0, 1.0])]).smoothness.value == 7.0
    ), "as stated"


def test_certified_constants_are_marked():
    mirror = Diagonal(double([0.5, 2.0])[0])
    assert map_constants(mirror, []).alpha == KnownConstant(0.5, "formula")
    mirror.certified = True
    assert map_constants(mirror, []).alpha == KnownConstant(0.5, "certified")
    assert compare_with_identity(
        Euclidean(), [double([1.0, 2.0])]
    ).relative_spread == pytest.approx(0, abs=1e-12)
