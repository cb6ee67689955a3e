"""Verdicts on maps and problems at their edges, and which runs count as exact."""

from __future__ import annotations

import math

import pytest
import torch

from mirrordescent import Function, Quadratic
from mirrordescent.domains import PositiveOrthant
from mirrordescent.mirrors import Conjugate, Diagonal, MirrorMap, StrongConvexity
from mirrordescent.mirrors.icnn import Potential
from mirrordescent.theory import KnownConstant, MapConstants, map_constants, problem_constants
from mirrordescent.theory.assumptions import (
    Verdict,
    inverts_exactly,
    map_verdicts,
    problem_verdicts,
    round_trip_error,
    takes_exact_steps,
)
from mirrordescent.theory.geometry import LineIntegralPotential, exact_geometry
from mirrordescent.trees import sum_per_sample

ROOT = torch.finfo(torch.float64).eps ** 0.5


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


POINTS = [double([1.0, 2.0], [-0.5, 0.1]), double([0.3, -1.0], [2.0, 1.5])]


class By(MirrorMap):
    """A map by two functions, and what its author says of it."""

    def __init__(self, there, back, alpha=None, p=2.0, potential=None):
        super().__init__()
        self.there = there
        self.back = back
        self.alpha = alpha
        self.p = p
        self.value = potential

    @property
    def strong_convexity(self):
        return None if self.alpha is None else StrongConvexity(self.alpha, self.p)

    def _potential(self, x):
        return (
            LineIntegralPotential(self._to_dual).value(x) if self.value is None else self.value(x)
        )

    def _to_dual(self, x):
        return self.there(x)

    def _to_primal(self, y):
        return self.back(y)


def the(mirror, words, points=POINTS, constants=None, geometry=None, duals=None):
    geometry = geometry or exact_geometry(mirror, "primal")
    duals = duals or [mirror.to_dual(x) for x in points]
    constants = constants or map_constants(geometry, points, duals)
    (found,) = [
        v for v in map_verdicts(mirror, geometry, points, duals, constants) if words in v.assumption
    ]
    return found


def identity(**options):
    return By(lambda x: x, lambda y: y, **options)


# Maps


@pytest.mark.parametrize(
    ("off", "answer"), [(0.8 * ROOT, "not known"), (1.4 * ROOT, "does not hold")]
)
def test_a_potential_may_be_off_by_the_root_of_the_machine_epsilon(off, answer):
    mirror = identity(potential=lambda x: (1 + off) * sum_per_sample(x.square()) / 2)
    verdict = the(mirror, "∇ of the potential")
    assert verdict.answer == answer
    assert "at 2 points" in verdict.reason or answer == "does not hold"


@pytest.mark.parametrize(("skew", "answer"), [(1e-9, "not known"), (1e-3, "does not hold")])
def test_a_jacobian_may_be_skew_by_rounding(skew, answer):
    turn = double([1.0, skew], [-skew, 1.0])
    assert (
        the(By(lambda x: x @ turn, lambda y: y @ turn.inverse()), "gradient of a function").answer
        == answer
    )


@pytest.mark.parametrize(
    ("L", "lowest", "answer"),
    [
        (10.0, -0.8e-5, "holds"),  # 10⁻⁶ of L is rounding
        (10.0, -1.4e-5, "does not hold"),
        (1e-9, -0.8e-15, "holds"),
        (1e-9, -1.4e-15, "does not hold"),
        (math.inf, -0.8e-6, "holds"),
        (math.inf, -1.4e-6, "does not hold"),
    ],
)
def test_a_curvature_that_is_negative_by_rounding_is_none(L, lowest, answer):
    constants = MapConstants(KnownConstant(1.0, "formula"), KnownConstant(L, "formula"), lowest)
    verdict = the(identity(), "monotone", constants=constants)
    assert verdict.answer == answer
    assert ("By construction." in verdict.reason) == (answer == "holds")


@pytest.mark.parametrize(
    ("alpha", "L", "answer"),
    [
        (KnownConstant(1.0, "sampled"), KnownConstant(1.0, "sampled"), "not known"),
        (KnownConstant(1.0, "certified"), KnownConstant(1.0, "sampled"), "holds"),
        (KnownConstant(1.0, "sampled"), KnownConstant(1.0, "certified"), "holds"),
        (KnownConstant(1.0, "sampled"), KnownConstant(1.0, "formula"), "not known"),
    ],
)
def test_what_is_proven_to_be_convex(alpha, L, answer):
    verdict = the(identity(), "monotone", constants=MapConstants(alpha, L, 0.9))
    assert verdict.answer == answer
    assert ("The smallest curvature found is 0.9" in verdict.reason) == (answer == "not known")


@pytest.mark.parametrize(
    ("mirror", "alpha", "lowest", "answer", "words"),
    [
        (identity(alpha=1.0), KnownConstant(1.0, "formula"), 0.9992, "holds", "α = 1 (formula)"),
        (
            identity(alpha=1.0),
            KnownConstant(1.0, "formula"),
            0.9985,
            "does not hold",
            "states α = 1",
        ),
        (
            identity(alpha=1.0, p=1.0),
            KnownConstant(1.0, "formula"),
            0.5,
            "holds",
            "α = 1",
        ),  # ℓ₁ curvatures are others
        (
            identity(alpha=0.0),
            KnownConstant(0.0, "formula"),
            0.9,
            "does not hold",
            "no positive lower bound",
        ),
        (identity(), KnownConstant(0.8, "sampled"), 0.9, "not known", "found is 0.9; α = 0.8"),
        (
            identity(),
            KnownConstant(-0.1, "sampled"),
            0.0,
            "does not hold",
            "A curvature of 0 was found",
        ),
        (identity(), KnownConstant(0.8, "sampled"), 99.0, "not known", "found is 1;"),
        (identity(), KnownConstant(0.8, "sampled"), 1.0, "not known", "found is 1;"),
    ],
)
def test_strong_convexity_as_stated_as_found_and_as_sampled(mirror, alpha, lowest, answer, words):
    """Of the identity secants have the slope 1, so no larger curvature is believed."""
    verdict = the(
        mirror, "strongly", constants=MapConstants(alpha, KnownConstant(1.0, "formula"), lowest)
    )
    assert (verdict.answer, words in verdict.reason) == (answer, True), verdict.reason


@pytest.mark.parametrize(("floor", "answer"), [(0.02, "not known"), (0.004, "does not hold")])
def test_a_curvature_that_falls_to_a_hundredth_far_out_has_no_lower_bound(floor, answer):
    """∇ψ = x for |x| ≤ 10 and of the slope ``floor`` beyond; probed a thousand times as far out."""

    def bent(x):
        return x.clamp(-10, 10) + floor * (x - x.clamp(-10, 10))

    verdict = the(By(bent, lambda y: y), "strongly")
    assert verdict.answer == answer
    if answer == "does not hold":
        assert "falls from 1 to 0.004 at points that are 1000 times" in verdict.reason


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
    [
        (2.0, "not known", "slopes of at most 2.5 where sampled, so α = 0.4"),
        (-1.0, "does not hold", "not monotone"),
    ],
)
def test_a_dual_potential_is_judged_by_its_slopes(s, answer, words):
    verdict = the(Conjugate(Bent(s)), "strongly", duals=POINTS)
    assert (verdict.answer, words in verdict.reason) == (answer, True), verdict.reason


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

    smooth = Said(lambda x: x, lambda y: y)
    jumps = Said(lambda x: x + x.sign(), lambda y: y)
    assert (
        the(smooth, "continuous").answer
        == {True: "holds", False: "does not hold", None: "not known"}[stated]
    )
    assert the(jumps, "continuous").answer == ("holds" if stated else "does not hold")


@pytest.mark.parametrize(("factor", "answer"), [(8.0, "holds"), (14.0, "does not hold")])
def test_an_inverse_may_be_off_by_ten_roots_of_the_machine_epsilon(factor, answer):
    mirror = By(lambda x: x, lambda y: (1 + factor * ROOT) * y)
    assert the(mirror, "is the inverse of", geometry=mirror).answer == answer
    duals = [mirror.to_dual(x) for x in POINTS]
    assert inverts_exactly(mirror, POINTS, duals) == (answer == "holds")
    assert (
        "says that it is exact, but"
        in the(By(lambda x: x, lambda y: 2 * y), "is the inverse of").reason
    )
    surrogate = By(lambda x: x, lambda y: 2 * y)
    surrogate.exact = False
    assert the(surrogate, "is the inverse of").reason.startswith(
        "∇ψ*(∇ψ(x)) differs from x by up to 1 of"
    )


def test_dual_storage_names_the_inconsistency_of_a_pair_and_is_exact():
    for says in (True, False):
        pair = By(lambda x: x, lambda y: 1.5 * y)
        pair.exact = says
        verdict = the(pair, "is the inverse of", geometry=exact_geometry(pair, "dual", exact=False))
        assert (verdict.answer, "inconsistent by 0.5 of ‖x‖" in verdict.reason) == ("holds", True)
        assert ("says that it is exact, but as a pair" in verdict.reason) == says
    alone = Conjugate(Bent(2.0))
    assert "Dual-stored" not in the(alone, "is the inverse of").reason


def test_round_trips_are_relative_to_the_point_or_to_a_hundredth_of_the_largest():
    shift = By(lambda x: x, lambda y: y + double([0.0, 0.03]))
    large = double([3.0, 4.0])
    small = double([0.0, 0.5])
    tiny = double([0.0, 0.001])
    assert round_trip_error(shift, [large], [large]) == pytest.approx(0.03 / 5)
    assert round_trip_error(shift, [large, small], [large, small]) == pytest.approx(0.03 / 0.5)
    assert round_trip_error(shift, [small, large], [small, large]) == pytest.approx(0.03 / 0.5)
    assert round_trip_error(shift, [large, tiny], [large, tiny]) == pytest.approx(0.03 / 0.05)
    zero = double([0.0, 0.0])
    assert round_trip_error(identity(), [zero], [zero]) == 0


@pytest.mark.parametrize("dual_stored", [True, False])
def test_which_runs_are_exact_in_which_geometry(dual_stored):
    """Dual-stored runs apply only ∇ψ*, primal-stored ones both ways."""
    double_it = By(lambda x: 2 * x, lambda y: y / 2)
    same = Diagonal(2.0)
    assert takes_exact_steps(double_it, dual_stored, same, POINTS)
    assert not takes_exact_steps(double_it, dual_stored, Diagonal(3.0), POINTS)
    wrong_back = By(lambda x: 2 * x, lambda y: y / 3)
    wrong_there = By(lambda x: 3 * x, lambda y: y / 2)
    assert not takes_exact_steps(wrong_back, dual_stored, same, POINTS)
    assert takes_exact_steps(wrong_there, dual_stored, same, POINTS) == dual_stored
    inverse = By(lambda x: 3 * x, lambda y: y / 3)
    assert not takes_exact_steps(inverse, dual_stored, same, POINTS)
    assert takes_exact_steps(wrong_back, dual_stored, wrong_back, POINTS) is False
    assert takes_exact_steps(double_it, dual_stored, double_it, POINTS) is True


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e4])
def test_runs_are_exact_to_rounding_of_the_points(size):
    """Within 10√eps of ‖x‖."""
    points = [size * x for x in POINTS]
    biggest = min(float(x.norm(dim=1).min()) for x in points) * 10 * ROOT
    for factor, answer in ((0.5, True), (1.5, False)):
        off = By(lambda x: x, lambda y, shift=factor * biggest: y + double([shift, 0.0]))
        assert takes_exact_steps(off, True, identity(), points) == answer


def test_a_verdict_gives_the_reason_for_its_answer():
    reasons = [Verdict.of("a", holds, "yes", "no") for holds in (True, False, None)]
    assert [v.reason for v in reasons] == ["yes", "no", "yes"]
    assert [v.answer for v in reasons] == ["holds", "does not hold", "not known"]
    assert Verdict.of("a", False, "only this").reason == "only this"
    assert str(reasons[1]) == "a: does not hold. no"


# Problems


def test_problems_are_convex_as_stated_or_as_found():
    class Said(Function):
        convex = None

    def judged(curvature, convex):
        problem = Said(lambda x: (double(curvature) * x.square()).sum(1) / 2)
        Said.convex = convex
        return problem_verdicts(problem, POINTS, problem_constants(problem, POINTS))[0]

    stated = judged([1.0, 2.0], True)
    assert stated.answer == "not known"
    assert stated.reason == "Stated by Said, not disproved by samples."
    refuted = judged([1.0, -2.0], True)
    assert (refuted.answer, "the curvature is -2" in refuted.reason) == ("does not hold", True)
    unknown = judged([1.0, 2.0], None)
    assert (unknown.answer, "found is 1;" in unknown.reason) == ("not known", True)
    found = judged([1.0, -2.0], None)
    assert (found.answer, "the curvature is -2" in found.reason) == ("does not hold", True)
    said = judged([1.0, 2.0], False)
    assert (said.answer, "The problem says that it is not" in said.reason) == (
        "does not hold",
        True,
    )
    assert judged([1.0, -0.7 * ROOT], None).answer == "not known"
    assert judged([1.0, -1.5 * ROOT], None).answer == "does not hold"
    assert judged([1.0, 0.0], False).reason.startswith("The problem says")


def test_smoothness_is_known_by_a_formula_not_by_samples():
    bowl = Quadratic(double([1.0, 4.0])[0], double([0.0, 0.0]))
    of = problem_constants(bowl, POINTS)
    assert problem_verdicts(bowl, POINTS, of)[1].reason == "L_f = 4 (formula)."
    for how, estimate, answer in (
        ("formula", 4.0, "holds"),
        ("sampled", 4.0, "not known"),
        ("sampled", math.inf, "does not hold"),
    ):
        constants = type(of)(KnownConstant(estimate, how), of.strong_convexity)
        assert problem_verdicts(bowl, POINTS, constants)[1].answer == answer
