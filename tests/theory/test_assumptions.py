"""Verdicts: what holds, what does not, and that broken maps are called broken."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import (
    AMD,
    ASMD,
    MD,
    SMD,
    Adam,
    Function,
    LeastSquares,
    LogisticRegression,
    Quadratic,
    TVDenoising,
)
from mirrordescent.domains import Simplex
from mirrordescent.methods import Averaged, Equipped
from mirrordescent.mirrors import (
    Conjugate,
    DenseICNN,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    Layerwise,
    LearnedPair,
    MirrorMap,
    Multipliers,
    NegativeEntropy,
    SimplexEntropy,
    Spline,
    StrongConvexity,
)
from mirrordescent.oracles import Exact, Noisy, Smoothed
from mirrordescent.schedules import Prefix, Reciprocal, RootReciprocal
from mirrordescent.theory import diagnose, map_constants, observe, problem_constants, recommend
from mirrordescent.theory.assumptions import map_verdicts, problem_verdicts
from mirrordescent.theory.conditions import Setting, method_verdicts
from mirrordescent.theory.geometry import LineIntegralPotential, exact_geometry
from mirrordescent.theory.recording import theorem_of


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


POINTS = [random(2, 3, seed=seed) for seed in range(4)]


class UserMap(MirrorMap):
    """A map written by a user, given by two functions."""

    def __init__(self, there, back, alpha=None):
        super().__init__()
        self.there = there
        self.back = back
        self.alpha = alpha

    @property
    def strong_convexity(self):
        return None if self.alpha is None else StrongConvexity(self.alpha, 2.0)

    def _potential(self, x):
        return LineIntegralPotential(self._to_dual).value(x)

    def _to_dual(self, x):
        return self.there(x)

    def _to_primal(self, y):
        return self.back(y)


TURN = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
BROKEN = {
    "not monotone": (UserMap(lambda x: x - 2 * x.tanh(), lambda y: y), "monotone", "not monotone"),
    "wrong inverse": (
        UserMap(lambda x: 2 * x, lambda y: y / 3),
        "∇ψ* is the inverse of",
        "says that it is exact",
    ),
    "flat at 0": (
        UserMap(lambda x: x**3, lambda y: y.sign() * y.abs() ** (1 / 3)),
        "strongly",
        "curvature falls",
    ),
    "flat far out": (
        UserMap(lambda x: x.asinh(), lambda y: y.sinh()),
        "strongly",
        "curvature falls",
    ),
    "overstated": (UserMap(lambda x: x, lambda y: y, alpha=2.0), "strongly", "states α = 2"),
    "no gradient": (
        UserMap(lambda x: x @ TURN, lambda y: y @ TURN.inverse()),
        "gradient of",
        "not symmetric",
    ),
    "with a jump": (
        UserMap(lambda x: x + x.sign(), lambda y: y - y.clamp(-1, 1)),
        "continuous",
        "jumps",
    ),
}


def judged(mirror, storage="primal", points=POINTS):
    geometry = exact_geometry(mirror, storage)
    duals = [mirror.to_dual(x) for x in points]
    verdicts = map_verdicts(mirror, geometry, points, duals, map_constants(geometry, points, duals))
    return {verdict.assumption: verdict for verdict in verdicts}


def the(verdicts, words):
    (found,) = [verdict for assumption, verdict in verdicts.items() if words in assumption]
    return found


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_map_is_reported_in_words(name):
    mirror, assumption, words = BROKEN[name]
    verdict = the(judged(mirror), assumption)
    assert verdict.answer == "does not hold"
    assert words in verdict.reason


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_map_is_diagnosed_as_such(name):
    """Primal-stored methods use the broken ∇ψ; dual-stored methods need no verdict on it."""
    mirror, assumption, words = BROKEN[name]
    problem = Quadratic(torch.ones(3, dtype=torch.float64), random(3))
    methods = {"MD": MD(mirror, 0.1), "SMD": SMD(mirror, 0.1), "AMD": AMD(mirror, 0.1)}
    diagnosis = diagnose(mirror, problem, -2 * problem.centre[None], methods=methods, iterations=5)
    found = the({v.assumption: v for v in diagnosis.geometries["primal"].verdicts}, assumption)
    assert found.answer == "does not hold"
    assert words in found.reason
    if name == "wrong inverse":
        assert "says that it is exact" in diagnosis.geometries["dual"].verdicts[-1].reason


@pytest.mark.parametrize(
    "mirror",
    [Euclidean(), Diagonal(random(3).abs() + 0.1), LearnedPair(*[DenseICNN(3).double()] * 2)],
    ids=["Euclidean", "Diagonal", "pair"],
)
def test_a_sound_map_has_nothing_against_it(mirror):
    verdicts = judged(mirror)
    assert all(v.answer == "holds" for a, v in verdicts.items() if "is the inverse of" not in a)
    assert the(verdicts, "is the inverse of").answer == (
        "holds" if mirror.exact else "does not hold"
    )


def test_a_user_map_that_seems_sound_is_not_known_to_be():
    mirror = UserMap(lambda x: 2 * x, lambda y: y / 2)
    answers = {v.answer for a, v in judged(mirror).items() if "is the inverse of" not in a}
    assert answers == {"not known"}
    assert the(judged(mirror), "is the inverse of").answer == "holds"


def test_dual_storage_is_judged_by_the_second_network_alone():
    first = DenseICNN(3).double()
    second = DenseICNN(3, generator=torch.Generator().manual_seed(1)).double()
    verdicts = judged(LearnedPair(first, second), "dual")
    assert "∇M enters only through y⁰" in the(verdicts, "is the inverse of").reason
    assert the(verdicts, "monotone").answer == "holds"
    assert the(verdicts, "strongly").answer == "not known"
    alone = judged(Conjugate(second), "dual")
    assert the(alone, "is the inverse of").answer == "holds"


def test_a_kinked_network_is_no_mirror_potential():
    kinked = DenseICNN(3, activation="leaky_relu").double()
    assert the(judged(LearnedPair(kinked, kinked)), "continuous").answer == "does not hold"


def test_classical_maps_without_strong_convexity():
    for mirror, points in (
        (HyperbolicEntropy(), POINTS),
        (NegativeEntropy(), [x.exp() for x in POINTS]),
    ):
        assert the(judged(mirror, points=points), "strongly").answer == "does not hold"
    simplex = judged(SimplexEntropy(), points=[x.softmax(-1) for x in POINTS])
    assert the(simplex, "strongly").answer == "holds"


def test_problems():
    def answers(problem, points=POINTS):
        return [
            v.answer for v in problem_verdicts(problem, points, problem_constants(problem, points))
        ]

    assert answers(LeastSquares(random(4, 3), random(4))) == ["holds", "holds"]
    assert answers(Quadratic(torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64), random(3))) == [
        "does not hold",
        "holds",
    ]
    assert answers(Function(lambda x: x.cos().sum(-1))) == ["does not hold", "not known"]
    assert answers(Function(lambda x: x.square().sum(-1))) == ["not known", "not known"]
    images = [random(1, 1, 4, 4, seed=seed) for seed in range(3)]
    assert answers(TVDenoising(images[0]), images) == ["holds", "does not hold"]


def conditions(method, problem=None, oracle=None, iterations=30, record=None, points=POINTS):
    problem = problem or Quadratic(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64), random(3))
    of_map = map_constants(method.mirror, points)
    of_problem = problem_constants(problem, points)
    setting = Setting(problem, oracle or Exact(), iterations, of_map, of_problem, points, record)
    return {verdict.assumption: verdict for verdict in method_verdicts(method, setting)}


def test_admissible_acceleration_has_nothing_against_it():
    verdicts = conditions(AMD(Diagonal(0.5), 0.125, gamma=2.0))
    assert {verdict.answer for verdict in verdicts.values()} == {"holds"}


@pytest.mark.parametrize(
    ("options", "assumption", "words"),
    [
        ({"gamma": 1.0}, "γ ≥", "smallest γ is 1"),
        ({"gamma": 2.0, "t": 0.2}, "t_k ≤", "0.4"),
        ({"gamma": 2.0, "t": Reciprocal(0.1)}, "c < 1", "excludes this rule"),
        ({"gamma": 2.0, "weight_offset": 1}, "weights", "at k = 0 is 0.3333, not 0"),
        ({"gamma": 2.0, "cap": 5}, "weights", "outside the theorem"),
        (
            {"gamma": 2.0, "t": Prefix([0.1, 0.01], "reciprocal")},
            "does not increase",
            "Step 3 is 2 times step 2",
        ),
        ({"gamma": 2.0, "regulariser": NegativeEntropy()}, "γ ≥", "L_R L_ψ* = inf"),
    ],
)
def test_what_is_outside_lemma_1_and_theorem_1(options, assumption, words):
    points = [x.abs() + 0.1 for x in POINTS]
    verdict = the(
        conditions(AMD(Diagonal(0.5), **{"t": 0.125, **options}), points=points), assumption
    )
    assert verdict.answer == "does not hold"
    assert words in verdict.reason


def test_kinks_and_noise_are_outside_the_theory_of_acceleration():
    images = [random(1, 1, 4, 4, seed=seed) for seed in range(2)]
    verdict = the(conditions(AMD(Euclidean(), 0.1), TVDenoising(images[0]), points=images), "t_k ≤")
    assert (verdict.answer, "empirical" in verdict.reason) == ("does not hold", True)
    for oracle, words in ((Noisy(1.0), "stochastic"), (Smoothed(0.1), "another function")):
        verdict = the(conditions(AMD(Euclidean(), 0.1), oracle=oracle), "exact")
        assert (verdict.answer, words in verdict.reason) == ("does not hold", True)


def test_sampled_constants_can_refute_but_not_prove():
    problem = Function(lambda x: x.square().sum(-1))
    assert the(conditions(AMD(Euclidean(), 0.1), problem), "t_k ≤").answer == "not known"
    assert the(conditions(AMD(Euclidean(), 0.9), problem), "t_k ≤").answer == "does not hold"


def test_descent():
    logistic = LogisticRegression(random(5, 3), random(5).sign())
    assert the(conditions(SMD(Euclidean(), 0.1), logistic), "E‖G‖").answer == "holds"
    assert the(conditions(SMD(Euclidean(), 0.1)), "E‖G‖").answer == "does not hold"
    simplex = LeastSquares(random(4, 3), random(4), Simplex())
    inside = [x.softmax(-1) for x in POINTS]
    assert (
        the(conditions(SMD(SimplexEntropy(), 0.1), simplex, points=inside), "E‖G‖").answer
        == "holds"
    )
    for t, answer, words in (
        (Reciprocal(0.1), "holds", "1/log k"),
        (RootReciprocal(0.1), "does not hold", "log k/√k"),
        (0.1, "does not hold", "need no decay"),
        (10.0, "does not hold", "does not vanish"),
        (lambda k: 0.1 / k**2, "does not hold", "finite length"),
    ):
        verdict = the(conditions(MD(Euclidean(), t)), "Σ t_k")
        assert verdict.answer == answer
        assert words in verdict.reason


def test_accelerated_stochastic_descent():
    constant, decaying = (conditions(ASMD(Euclidean(), t)) for t in (0.1, RootReciprocal(0.1)))
    assert the(constant, "constant").answer == "holds"
    assert the(decaying, "constant").answer == "does not hold"
    increasing = the(conditions(ASMD(Euclidean(), Prefix([0.1, 0.2], "min"))), "constant")
    assert (increasing.answer, "increases at times" in increasing.reason) == (
        "does not hold",
        True,
    )
    assert the(constant, "M_ψ").answer == "does not hold"
    assert the(constant, "weights").answer == "holds"
    assert (
        the(conditions(ASMD(Euclidean(), 0.1, dual_weight=1.0)), "weights").answer
        == "does not hold"
    )
    simplex = LeastSquares(random(4, 3), random(4), Simplex())
    inside = [x.softmax(-1) for x in POINTS]
    assert (
        the(conditions(ASMD(Euclidean(Simplex()), 0.1), simplex, points=inside), "M_ψ").answer
        == "holds"
    )


def test_measured_errors_are_judged():
    problem = Quadratic(torch.ones(3, dtype=torch.float64), random(3))
    pair = LearnedPair(
        DenseICNN(3).double(), DenseICNN(3, generator=torch.Generator().manual_seed(1)).double()
    )
    for t, words in ((0.3, "does not grow"), (Reciprocal(0.3), "It grows")):
        record = observe(
            problem, MD(pair, t), POINTS[0], minimiser=problem.centre, iterations=60
        ).record
        verdict = the(conditions(MD(pair, t), problem, record=record), "⟨U_k")
        assert (verdict.answer, words in verdict.reason) == ("not known", True)
    record = observe(
        problem, SMD(pair, 0.3), POINTS[0], minimiser=problem.centre, iterations=10
    ).record
    assert the(conditions(SMD(pair, 0.3), problem, record=record), "⟨U_k").answer == "holds"


def test_methods_without_a_theorem_are_said_to_have_none():
    setting = Setting(None, Exact(), 1, None, None, POINTS)
    for method, words in (
        (Adam(0.1), "No theorem is known for Adam"),
        (Averaged(SMD(Euclidean(), 0.1)), "about the SMD inside"),
        (
            Averaged(Equipped(SMD(Euclidean(), 0.1), Smoothed(0.1)), weights=1.0),
            "about the SMD inside",
        ),
    ):
        (verdict,) = method_verdicts(method, setting)
        assert verdict.answer == "not known"
        assert words in verdict.reason


def test_a_subclass_with_other_steps_inherits_no_theorem():
    class Backwards(MD):
        def update(self, state, grad):
            return super().update(state, -grad)

    class Renamed(MD):
        pass

    assert (theorem_of(Backwards(Euclidean(), 0.1)), theorem_of(Renamed(Euclidean(), 0.1))) == (
        None,
        "descent",
    )
    assert theorem_of(Equipped(Renamed(Euclidean(), 0.1), Smoothed(0.1))) == "descent"


def test_a_subclass_with_another_gradient_inherits_no_proof():
    class Wild(Euclidean):
        def _to_dual(self, x):
            return x + x.sin() / 2

        def _to_primal(self, y):
            return y

    class Stated(Wild):
        proven = True

        def _to_dual(self, x):
            return 2 * x

    assert the(judged(Wild()), "gradient of").answer == "not known"
    assert the(judged(Wild()), "continuous").answer == "not known"
    assert the(judged(Stated()), "gradient of").answer == "holds"


@pytest.mark.parametrize(
    "mirror", [Multipliers(torch.tensor([0, 1, 1])), Spline(torch.tensor([0, 1, 1]), knots=2)]
)
def test_what_is_proven_of_tied_maps_and_of_maps_made_of_them(mirror):
    mirror = mirror.double()
    tree = [{"w": x} for x in POINTS]
    for verdicts in (judged(mirror), judged(Layerwise({"w": mirror}), points=tree)):
        assert {v.answer for v in verdicts.values()} == {"holds"}
    kinked = DenseICNN(3, activation="leaky_relu").double()
    mixed = Layerwise({"w": LearnedPair(kinked, kinked)})
    assert (mixed.continuous, mixed.certified, Layerwise({"w": mirror}).certified) == (
        False,
        True,
        False,
    )


def test_an_exact_map_is_exact_at_the_origin_too():
    """At the origin the error of an inversion cannot be compared with ‖x‖ = 0."""
    mirror = Conjugate(DenseICNN(3).double())
    points = [torch.zeros(2, 3, dtype=torch.float64), POINTS[0]]
    assert the(judged(mirror, points=points), "is the inverse of").answer == "holds"


def test_recommendations_satisfy_the_assumptions():
    problem = Quadratic(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64), random(3))
    mirror = Diagonal(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    advice = recommend(mirror, problem, "AMD")
    assert (advice.gamma, advice.t, advice.extension, advice.certain) == (2.0, 0.125, "min", True)
    steps = Prefix(torch.full((3,), advice.t, dtype=torch.float64), advice.extension, monotone=True)
    verdicts = conditions(AMD(mirror, steps, gamma=advice.gamma), problem)
    assert {verdict.answer for verdict in verdicts.values()} == {"holds"}
    assert recommend(mirror, problem, MD(mirror, 1.0)).t == 0.125
    assert recommend(mirror, problem, "ASMD").t == pytest.approx(0.125 / 8**0.5)


def test_recommended_steps_descend():
    """t = α/L_f lowers f in every step, in every geometry; four times as long a step does not."""
    problem = Quadratic(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64), random(3))
    mirror = Diagonal(torch.tensor([0.5, 0.5, 0.5], dtype=torch.float64))
    t = recommend(mirror, problem, "SMD").t

    def gaps(t):
        return observe(
            problem, SMD(mirror, t), POINTS[0], minimiser=problem.centre, iterations=20
        ).record["gap"]

    assert (gaps(t).diff(dim=0) <= 0).all()
    assert (gaps(4 * t).diff(dim=0) > 0).any()


def test_recommended_extensions():
    problem = Quadratic(torch.ones(3, dtype=torch.float64), random(3))
    images = random(1, 1, 4, 4)
    tv = TVDenoising(images)
    assert recommend(Euclidean(), tv, "AMD").t is None
    assert recommend(Euclidean(), tv, "SMD").extension == "root_reciprocal"
    assert recommend(Euclidean(), problem, "SMD").extension == "min"
    assert recommend(Euclidean(), problem, "SMD", oracle=Noisy(1.0)).extension == "root_reciprocal"
    pair = LearnedPair(
        DenseICNN(3).double(), DenseICNN(3, generator=torch.Generator().manual_seed(1)).double()
    )
    assert "U = e/t grows" in str(recommend(pair, problem, "MD"))
    assert recommend(pair, problem, "MD", oracle=Noisy(1.0)).extension == "min"
    assert recommend(pair, problem, "SMD", oracle=Noisy(1.0)).extension == "root_reciprocal"
    assert not recommend(pair, problem, "SMD").certain


def test_a_map_that_is_only_locally_strongly_convex_gets_local_advice():
    problem = Quadratic(torch.ones(3, dtype=torch.float64), random(3))
    advice = recommend(
        HyperbolicEntropy(1.0), problem, "SMD", points=[torch.zeros(1, 3, dtype=torch.float64)]
    )
    assert advice.t == pytest.approx(0.8)  # the curvature at 0 is 1, times 0.8 for safety
    assert not advice.certain


def test_unknown_methods_are_refused():
    problem = Quadratic(torch.ones(2), torch.zeros(2))
    with pytest.raises(ValueError, match="the methods with one are md, lmd, smd"):
        recommend(Euclidean(), problem, "Adam")
    with pytest.raises(ValueError, match="unknown method 'mdd'; did you mean"):
        recommend(Euclidean(), problem, "MDD")
    with pytest.raises(TypeError, match="no theorem is known for Adam"):
        recommend(Euclidean(), problem, Adam(0.1))


def test_advice_for_a_method_with_an_oracle_of_its_own():
    problem = Quadratic(torch.ones(3, dtype=torch.float64), random(3))
    noisy = Equipped(SMD(Euclidean(), 0.1), Noisy(1.0))
    assert recommend(Euclidean(), problem, noisy).extension == "root_reciprocal"
    assert recommend(Euclidean(), problem, noisy.method).extension == "min"
