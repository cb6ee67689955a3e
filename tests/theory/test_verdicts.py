"""Verdicts on maps and problems at their edges, advice from constants, and which runs count as exact."""

from __future__ import annotations

import math

import pytest
import torch

from mirrordescent import MD, SMD, Function, Quadratic
from mirrordescent.domains import Box, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.mirrors import (
    Conjugate,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    MirrorMap,
    PNorm,
    Potential,
    StrongConvexity,
)
from mirrordescent.oracles import Noisy
from mirrordescent.theory import (
    Constant,
    MapConstants,
    map_constants,
    map_verdicts,
    problem_constants,
    problem_verdicts,
    recommend,
)
from mirrordescent.theory.assumptions import Verdict, is_exact, nearby_points, round_trip_error, runs_exactly
from mirrordescent.theory.constants import SAFETY
from mirrordescent.theory.geometry import Coupling, Field, Inverted, domain_of, exact_geometry, inside
from mirrordescent.theory.recommend import advise, local_alpha
from mirrordescent.trees import sum_per_sample

ROOT = torch.finfo(torch.float64).eps ** 0.5


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


POINTS = [double([1.0, 2.0], [-0.5, 0.1]), double([0.3, -1.0], [2.0, 1.5])]


class By(MirrorMap):
    """A map by two functions, and what its author says of it."""

    def __init__(self, there, back, alpha=None, p=2.0, potential=None):
        super().__init__()
        self.there, self.back, self.alpha, self.p, self.value = there, back, alpha, p, potential

    @property
    def strong_convexity(self):
        return None if self.alpha is None else StrongConvexity(self.alpha, self.p)

    def _potential(self, x):
        return Field(self._to_dual).value(x) if self.value is None else self.value(x)

    def _to_dual(self, x):
        return self.there(x)

    def _to_primal(self, y):
        return self.back(y)


def the(mirror, words, points=POINTS, constants=None, geometry=None, duals=None):
    geometry = geometry or exact_geometry(mirror, "primal")
    duals = duals or [mirror.to_dual(x) for x in points]
    constants = constants or map_constants(geometry, points, duals)
    (found,) = [v for v in map_verdicts(mirror, geometry, points, duals, constants) if words in v.assumption]
    return found


def identity(**options):
    return By(lambda x: x, lambda y: y, **options)


# Maps


@pytest.mark.parametrize(("off", "answer"), [(0.8 * ROOT, "not known"), (1.4 * ROOT, "does not hold")])
def test_a_potential_may_be_off_by_the_root_of_the_machine_epsilon(off, answer):
    mirror = identity(potential=lambda x: (1 + off) * sum_per_sample(x.square()) / 2)
    verdict = the(mirror, "∇ of the potential")
    assert verdict.answer == answer
    assert "at 2 points" in verdict.because or answer == "does not hold"


@pytest.mark.parametrize(("skew", "answer"), [(1e-9, "not known"), (1e-3, "does not hold")])
def test_a_jacobian_may_be_skew_by_rounding(skew, answer):
    turn = double([1.0, skew], [-skew, 1.0])
    assert the(By(lambda x: x @ turn, lambda y: y @ turn.inverse()), "gradient of a function").answer == answer


@pytest.mark.parametrize(
    ("L", "lowest", "answer"),
    [
        (9.0, -0.8e-5, "holds"),  # 10⁻⁶ of 1 + L is rounding
        (9.0, -1.4e-5, "does not hold"),
        (0.0, -0.8e-6, "holds"),
        (0.0, -1.4e-6, "does not hold"),
        (math.inf, -0.8e-6, "holds"),
        (math.inf, -1.4e-6, "does not hold"),
    ],
)
def test_a_curvature_that_is_negative_by_rounding_is_none(L, lowest, answer):
    constants = MapConstants(Constant(1.0, "formula"), Constant(L, "formula"), lowest)
    verdict = the(identity(), "monotone", constants=constants)
    assert verdict.answer == answer
    assert ("By construction." in verdict.because) == (answer == "holds")


@pytest.mark.parametrize(
    ("alpha", "L", "answer"),
    [
        (Constant(1.0, "sampled"), Constant(1.0, "sampled"), "not known"),
        (Constant(1.0, "certified"), Constant(1.0, "sampled"), "holds"),
        (Constant(1.0, "sampled"), Constant(1.0, "certified"), "holds"),
        (Constant(1.0, "sampled"), Constant(1.0, "formula"), "not known"),
    ],
)
def test_what_is_proven_to_be_convex(alpha, L, answer):
    verdict = the(identity(), "monotone", constants=MapConstants(alpha, L, 0.9))
    assert verdict.answer == answer
    assert ("The smallest curvature found is 0.9" in verdict.because) == (answer == "not known")


@pytest.mark.parametrize(
    ("mirror", "alpha", "lowest", "answer", "words"),
    [
        (identity(alpha=1.0), Constant(1.0, "formula"), 0.9992, "holds", "α = 1 (formula)"),
        (identity(alpha=1.0), Constant(1.0, "formula"), 0.9985, "does not hold", "states α = 1"),
        (identity(alpha=1.0, p=1.0), Constant(1.0, "formula"), 0.5, "holds", "α = 1"),  # ℓ₁ curvatures are others
        (identity(alpha=0.0), Constant(0.0, "formula"), 0.9, "does not hold", "no positive lower bound"),
        (identity(), Constant(0.8, "sampled"), 0.9, "not known", "found is 0.9; α = 0.8"),
        (identity(), Constant(-0.1, "sampled"), 0.0, "does not hold", "A curvature of 0 was found"),
        (identity(), Constant(0.8, "sampled"), 99.0, "not known", "found is 1;"),
        (identity(), Constant(0.8, "sampled"), 1.0, "not known", "found is 1;"),
    ],
)
def test_strong_convexity_as_stated_as_found_and_as_sampled(mirror, alpha, lowest, answer, words):
    """Of the identity secants have the slope 1, so no larger curvature is believed."""
    verdict = the(mirror, "strongly", constants=MapConstants(alpha, Constant(1.0, "formula"), lowest))
    assert (verdict.answer, words in verdict.because) == (answer, True), verdict.because


@pytest.mark.parametrize(("floor", "answer"), [(0.02, "not known"), (0.004, "does not hold")])
def test_a_curvature_that_falls_to_a_hundredth_far_out_has_no_lower_bound(floor, answer):
    """∇ψ = x for |x| ≤ 10 and of the slope ``floor`` beyond; probed a thousand times as far out."""

    def bent(x):
        return x.clamp(-10, 10) + floor * (x - x.clamp(-10, 10))

    verdict = the(By(bent, lambda y: y), "strongly")
    assert verdict.answer == answer
    if answer == "does not hold":
        assert "falls from 1 to 0.004 at points 1000 times" in verdict.because


@pytest.mark.parametrize(("floor", "answer"), [(0.02, "not known"), (0.004, "does not hold")])
def test_nor_if_it_falls_near_the_origin(floor, answer):
    points = [double([1.0, 2.0]), double([3.0, 4.0])]

    def flat(x):
        return floor * x.clamp(-0.5, 0.5) + (x - x.clamp(-0.5, 0.5))

    assert the(By(flat, lambda y: y), "strongly", points).answer == answer


def test_on_a_set_curvature_is_not_probed_outside():
    mirror = By(lambda x: x.clamp(max=10) + 0.001 * x, lambda y: y)
    assert the(mirror, "strongly", [x.abs() for x in POINTS]).answer == "does not hold"
    mirror.primal_domain = PositiveOrthant()
    assert the(mirror, "strongly", [x.abs() for x in POINTS]).answer == "not known"


class Bent(Potential):
    """M* with ∇M*(y) = s·y."""

    def __init__(self, s):
        super().__init__()
        self.s = s

    @property
    def strong_convexity(self):
        return abs(self.s)

    def value(self, y):
        return self.s * sum_per_sample(y.square()) / 2

    def gradient(self, y):
        return self.s * y


@pytest.mark.parametrize(
    ("s", "answer", "words"),
    [(2.0, "not known", "slopes of at most 2.5 where sampled, so α = 0.4"), (-1.0, "does not hold", "not monotone")],
)
def test_a_dual_potential_is_judged_by_its_slopes(s, answer, words):
    verdict = the(Conjugate(Bent(s)), "strongly", duals=POINTS)
    assert (verdict.answer, words in verdict.because) == (answer, True), verdict.because


def test_a_dual_potential_that_is_not_the_map_is_found():
    class Off(Bent):
        def value(self, y):
            return 3 * super().value(y)

    assert the(Conjugate(Bent(2.0)), "∇ of the potential is the map, ∇M*").answer == "holds"
    assert the(Conjugate(Off(2.0)), "∇ of the potential is the map, ∇M*").answer == "does not hold"


@pytest.mark.parametrize("stated", [True, False, None])
def test_continuity_as_stated_or_as_found(stated):
    class Said(By):
        continuous = stated

    smooth, jumps = Said(lambda x: x, lambda y: y), Said(lambda x: x + x.sign(), lambda y: y)
    assert the(smooth, "continuous").answer == {True: "holds", False: "does not hold", None: "not known"}[stated]
    assert the(jumps, "continuous").answer == ("holds" if stated else "does not hold")


@pytest.mark.parametrize(("factor", "answer"), [(8.0, "holds"), (14.0, "does not hold")])
def test_an_inverse_may_be_off_by_ten_roots_of_the_machine_epsilon(factor, answer):
    mirror = By(lambda x: x, lambda y: (1 + factor * ROOT) * y)
    assert the(mirror, "way back", geometry=mirror).answer == answer
    duals = [mirror.to_dual(x) for x in POINTS]
    assert is_exact(mirror, POINTS, duals) == (answer == "holds")
    assert "says that it is exact, but" in the(By(lambda x: x, lambda y: 2 * y), "way back").because
    surrogate = By(lambda x: x, lambda y: 2 * y)
    surrogate.exact = False
    assert the(surrogate, "way back").because.startswith("∇ψ*(∇ψ(x)) differs from x by up to 1 of")


def test_dual_storage_names_the_inconsistency_of_a_pair_and_is_exact():
    for says in (True, False):
        pair = By(lambda x: x, lambda y: 1.5 * y)
        pair.exact = says
        verdict = the(pair, "way back", geometry=exact_geometry(pair, "dual", exact=False))
        assert (verdict.answer, "inconsistent by 0.5 of ‖x‖" in verdict.because) == ("holds", True)
        assert ("says that it is exact, but as a pair" in verdict.because) == says
    alone = Conjugate(Bent(2.0))
    assert "Dual-stored" not in the(alone, "way back").because


def test_round_trips_are_relative_to_the_point_or_to_a_hundredth_of_the_largest():
    shift = By(lambda x: x, lambda y: y + double([0.0, 0.03]))
    large, small, tiny = double([3.0, 4.0]), double([0.0, 0.5]), double([0.0, 0.001])
    assert round_trip_error(shift, [large], [large]) == pytest.approx(0.03 / 5)
    assert round_trip_error(shift, [large, small], [large, small]) == pytest.approx(0.03 / 0.5)
    assert round_trip_error(shift, [small, large], [small, large]) == pytest.approx(0.03 / 0.5)
    assert round_trip_error(shift, [large, tiny], [large, tiny]) == pytest.approx(0.03 / 0.05)
    zero = double([0.0, 0.0])
    assert round_trip_error(identity(), [zero], [zero]) == 0


@pytest.mark.parametrize("dual_stored", [True, False])
def test_which_runs_are_exact_in_which_geometry(dual_stored):
    """Dual-stored runs apply only ∇ψ*, primal-stored ones both ways."""
    double_it, same = By(lambda x: 2 * x, lambda y: y / 2), Diagonal(2.0)
    assert runs_exactly(double_it, dual_stored, same, POINTS)
    assert not runs_exactly(double_it, dual_stored, Diagonal(3.0), POINTS)
    wrong_back, wrong_there = By(lambda x: 2 * x, lambda y: y / 3), By(lambda x: 3 * x, lambda y: y / 2)
    assert not runs_exactly(wrong_back, dual_stored, same, POINTS)
    assert runs_exactly(wrong_there, dual_stored, same, POINTS) == dual_stored
    inverse = By(lambda x: 3 * x, lambda y: y / 3)
    assert not runs_exactly(inverse, dual_stored, same, POINTS)
    assert runs_exactly(wrong_back, dual_stored, wrong_back, POINTS) is False
    assert runs_exactly(double_it, dual_stored, double_it, POINTS) is True


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_runs_are_exact_to_rounding_of_the_points(size):
    """Within 10√eps of 1 + ‖x‖."""
    points = [size * x for x in POINTS]
    biggest = min(float((1 + x.norm(dim=1)).min()) for x in points) * 10 * ROOT
    for factor, answer in ((0.5, True), (1.5, False)):
        off = By(lambda x: x, lambda y, shift=factor * biggest: y + double([shift, 0.0]))
        assert runs_exactly(off, True, identity(), points) == answer


def test_a_verdict_gives_the_reason_for_its_answer():
    reasons = [Verdict.of("a", holds, "yes", "no") for holds in (True, False, None)]
    assert [v.because for v in reasons] == ["yes", "no", "yes"]
    assert [v.answer for v in reasons] == ["holds", "does not hold", "not known"]
    assert Verdict.of("a", False, "only this").because == "only this"
    assert str(reasons[1]) == "a: does not hold. no"


# Problems


def test_problems_are_convex_as_stated_or_as_found():
    class Said(Function):
        convex = None

    def judged(curvature, convex):
        problem = Said(lambda x: (double(curvature) * x.square()).sum(1) / 2)
        Said.convex = convex
        return problem_verdicts(problem, POINTS, problem_constants(problem, POINTS))[0]

    assert judged([1.0, 2.0], True).because == "By construction."
    unknown = judged([1.0, 2.0], None)
    assert (unknown.answer, "found is 1;" in unknown.because) == ("not known", True)
    found = judged([1.0, -2.0], None)
    assert (found.answer, "the curvature is -2" in found.because) == ("does not hold", True)
    said = judged([1.0, 2.0], False)
    assert (said.answer, "The problem says that it is not" in said.because) == ("does not hold", True)
    assert judged([1.0, -0.7 * ROOT], None).answer == "not known"
    assert judged([1.0, -1.5 * ROOT], None).answer == "does not hold"
    assert judged([1.0, 0.0], False).because.startswith("The problem says")


def test_smoothness_is_known_by_a_formula_not_by_samples():
    bowl = Quadratic(double([1.0, 4.0])[0], double([0.0, 0.0]))
    of = problem_constants(bowl, POINTS)
    assert problem_verdicts(bowl, POINTS, of)[1].because == "L_f = 4 (formula)."
    for how, estimate, answer in (
        ("formula", 4.0, "holds"), ("sampled", 4.0, "not known"), ("sampled", math.inf, "does not hold"),
    ):  # fmt: skip
        constants = type(of)(Constant(estimate, how), of.strong_convexity)
        assert problem_verdicts(bowl, POINTS, constants)[1].answer == answer


# Points and geometries


def test_points_nearby_are_around_the_start_and_inside():
    x0 = double([5.0, 5.0], [0.1, 0.2])
    near = nearby_points(x0, WholeSpace(), torch.Generator().manual_seed(0))
    assert len(near) == 4
    assert torch.equal(near[0], x0)
    noise = torch.randn(2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(near[1], x0 + x0.square().mean().sqrt() * noise)
    boxed = nearby_points(x0, Box(0.0, 0.3), torch.Generator().manual_seed(0), 2)
    assert len(boxed) == 3
    assert all(bool(Box(0.0, 0.3).contains(x).all()) for x in boxed)


def test_a_point_outside_is_projected_and_drawn_inside():
    box = Box(0.0, 1.0)
    within = double([0.2, 0.9])
    assert inside(within, box) is within
    torch.testing.assert_close(inside(double([2.0, -1.0]), box), 0.9 * double([1.0, 0.0]) + 0.1 * double([0.5, 0.5]))


def test_where_a_map_is_used():
    bowl = Quadratic(double([1.0, 4.0])[0], double([0.0, 0.0]))
    bowl.domain = Box(0.0, 1.0)
    simplex = Euclidean(Simplex())
    assert domain_of(None, bowl) is bowl.domain
    assert domain_of(Euclidean(), bowl) is bowl.domain
    assert domain_of(simplex, bowl) is simplex.primal_domain


def test_the_coupling_is_fenchel_s():
    """ψ(u) + ψ*(y) − ⟨y, u⟩ for ψ = Σ dx²/2: Σ (du − y)²/2d, by way of either form."""
    d, u, y = double([2.0, 5.0])[0], double([1.0, -1.0]), double([0.5, 3.0])
    expected = ((d * u - y).square() / (2 * d)).sum(1)
    for mirror in (Diagonal(d), Inverted(Diagonal(d))):
        coupling = Coupling(mirror, u)
        torch.testing.assert_close(coupling(y), expected)
        torch.testing.assert_close(coupling(y, y / d), expected)
    conjugate = Conjugate(Bent(0.5))  # M* = y²/4, so ψ = x²
    torch.testing.assert_close(Coupling(conjugate, u)(y), ((2 * u - y).square() / 4).sum(1))


def test_a_field_is_integrated_along_the_ray():
    """Exactly for polynomials up to degree 31: ∫₀¹ ⟨(sx)³⁰, x⟩ ds = x³¹/31."""
    x = double([1.1, -0.9])
    torch.testing.assert_close(Field(lambda x: x**30).value(x), (x**31 / 31).sum(1), rtol=1e-13, atol=0)
    torch.testing.assert_close(Field(lambda x: 2 * x + 1).value(x), (x.square() + x).sum(1))


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
        theorem, storage, exact, stochastic, Constant(0.5, "formula"), Constant(math.inf if kinks else 4.0, "formula")
    )
    assert (advice.t, advice.gamma, advice.extension) == (t if t is None else pytest.approx(t), gamma, rule)
    assert "α = 0.5 (formula), L_f = " in advice.reasons[0]
    first_line = str(advice).splitlines()[0]
    assert ("t = " in first_line) == (t is not None)
    assert ("γ = 2" in first_line) == (gamma is not None)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.inf])
def test_without_a_finite_convexity_there_is_no_advice(alpha):
    advice = advise("accelerated", "dual", True, False, Constant(alpha, "formula"), Constant(4.0, "formula"))
    assert (advice.t, advice.gamma) == (None, None)
    assert "No α > 0" in advice.reasons[1]


@pytest.mark.parametrize(
    ("alpha", "L", "certain"),
    [
        (Constant(0.5, "formula"), Constant(4.0, "certified"), True),
        (Constant(0.5, "certified"), Constant(4.0, "formula"), True),
        (Constant(0.5, "sampled"), Constant(4.0, "formula"), False),
        (Constant(0.5, "formula"), Constant(4.0, "sampled"), False),
        (Constant(0.5, "formula"), Constant(math.inf, "sampled"), True),  # a jump that was found is one
    ],
)
def test_advice_is_certain_if_its_constants_are(alpha, L, certain):
    assert advise("descent", "dual", True, False, alpha, L).certain is certain


def test_kinks_and_noise_have_reasons_of_their_own():
    options = {"alpha": Constant(0.5, "formula"), "storage": "dual", "exact": True}
    for stochastic, L, words in ((True, 4.0, "stochastic gradients"), (False, math.inf, "f has kinks")):
        advice = advise("accelerated", stochastic=stochastic, smoothness=Constant(L, "formula"), **options)
        assert words in advice.reasons[-1]


def test_a_local_convexity_is_that_of_the_points():
    """∇ψ = asinh x has the slope 1/√(1 + x²), without a lower bound; α is that of the outermost entry."""
    points = [double([0.0, 1.0]), double([0.5, 2.0])]
    mirror = HyperbolicEntropy(1.0)
    found = local_alpha(mirror, map_constants(mirror, points), points)
    assert (found.how, found.value) == ("sampled", pytest.approx(5**-0.5 / SAFETY))
    assert local_alpha(Diagonal(2.0), map_constants(Diagonal(2.0), points), points) == Constant(2.0, "formula")


def test_advice_is_for_the_oracle_that_is_used_and_the_points_that_are_given():
    bowl = Quadratic(double([1.0, 4.0])[0], double([0.0, 0.0]))
    mirror = PNorm(3.0)
    near, far = (recommend(mirror, bowl, "SMD", points=[double([s, 2 * s])]).t for s in (1.0, 2.0))
    assert near == pytest.approx(2.0 / SAFETY / 4.0)  # ψ = Σ|x|³/3 has the curvature 2|x|
    assert far == pytest.approx(2 * near)
    for method in ("SMD", SMD(mirror, 1.0)):
        assert recommend(mirror, bowl, method, oracle=Noisy(1.0)).t is None
    wrong = By(lambda x: x, lambda y: 1.5 * y)
    assert "keep t constant" in str(recommend(wrong, bowl, MD(wrong, 1.0)))
    curved = HyperbolicEntropy(1.0)
    drawn = [recommend(curved, bowl, "SMD", generator=torch.Generator().manual_seed(s)).t for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
