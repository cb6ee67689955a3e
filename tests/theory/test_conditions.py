"""Verdicts on schedules and runs at the limits of the theorems, with invented constants."""

from __future__ import annotations

import math

import pytest
import torch

from mirrordescent import AMD, ASMD, MD, LeastSquares, LogisticRegression, Quadratic
from mirrordescent.domains import Simplex
from mirrordescent.methods import Averaged
from mirrordescent.mirrors import Diagonal, Euclidean
from mirrordescent.oracles import Exact, Noisy, Oracle
from mirrordescent.problems import Problem
from mirrordescent.schedules import Polynomial, Prefix
from mirrordescent.theory import KnownConstant, MapConstants, ProblemConstants, Record
from mirrordescent.theory.conditions import Setting, decay_exponent, method_verdicts

POINTS = [
    torch.tensor([[1.0, 2.0]], dtype=torch.float64),
    torch.tensor([[-0.5, 0.1]], dtype=torch.float64),
]
BOWL = Quadratic(torch.tensor([1.0, 4.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64))


def formula(value):
    return KnownConstant(value, "formula")


def sampled(value, safety=1.25):
    return KnownConstant(value, "sampled", safety)


def judged(
    method,
    words,
    problem=BOWL,
    oracle=None,
    *,
    alpha=None,
    smoothness=None,
    L=None,
    record=None,
    iterations=6,
):
    """Return the only verdict whose assumption contains these words."""
    of_map = MapConstants(alpha or formula(0.5), smoothness or formula(2.0))
    of_problem = ProblemConstants(L or formula(4.0), formula(1.0))
    setting = Setting(problem, oracle or Exact(), iterations, of_map, of_problem, POINTS, record)
    (found,) = [v for v in method_verdicts(method, setting) if words in v.assumption]
    return found


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0, 2.5])
def test_the_decay_of_a_power_is_its_exponent(power):
    assert decay_exponent(Polynomial(0.7, power)) == pytest.approx(power, abs=1e-9)
    assert decay_exponent(Polynomial(0.7, power), far=3) == pytest.approx(power, abs=1e-9)


@pytest.mark.parametrize(
    ("power", "answer", "words"),
    [
        (0.0, "does not hold", "tends to a constant, but t ≤ α/L_f = 0.125,"),
        (0.0005, "does not hold", "tends to a constant, but t ≤ α/L_f"),
        (0.0015, "does not hold", "falls like k^−0.0015: the term with"),
        (0.4985, "does not hold", "the term with Σ t_k²/Σ t_k does not vanish"),
        (0.4995, "does not hold", "Σ t² grows like log k"),
        (0.5005, "does not hold", "Σ t² grows like log k"),
        (0.5015, "holds", "falls like k^−0.5."),
        (0.9985, "holds", "falls like k^−1."),
        (0.9995, "holds", "The bound falls only like 1/log k."),
        (1.0005, "holds", "The bound falls only like 1/log k."),
        (1.0015, "does not hold", "finite length"),
    ],
)
def test_summable_squares(power, answer, words):
    """Σ t = ∞ and Σ t² < ∞ for ½ < c ≤ 1; exponents are compared to a thousandth."""
    verdict = judged(MD(Euclidean(), Polynomial(0.1, power)), "Σ t_k")
    assert (verdict.answer, words in verdict.reason) == (answer, True), verdict.reason
    assert ("1/log k" in verdict.reason) == ("1/log k" in words)


@pytest.mark.parametrize(
    ("t", "oracle", "words"),
    [
        (0.125, Exact(), "need no decay"),  # t = α/L_f itself is allowed
        (0.1251, Exact(), "does not vanish"),
        (Prefix([0.2, 0.1, 0.1], "last"), Exact(), "does not vanish"),  # the longest step counts
        (0.125, Noisy(1.0), "does not vanish"),
    ],
)
def test_constant_steps_need_no_decay_with_exact_gradients_if_they_are_short(t, oracle, words):
    assert words in judged(MD(Euclidean(), t), "Σ t_k", oracle=oracle).reason


@pytest.mark.parametrize(
    ("power", "answer"), [(0.9985, "holds"), (0.9995, "does not hold"), (0.25, "holds")]
)
def test_theorem_1_leaves_out_steps_that_fall_like_1_over_k(power, answer):
    verdict = judged(AMD(Diagonal(0.5), Polynomial(0.01, power), gamma=2.0), "c < 1")
    assert verdict.answer == answer
    assert ("falls like k^-0.75" in verdict.reason) == (power == 0.25)
    assert f"c = {power:.2f}" in verdict.reason


@pytest.mark.parametrize(
    ("gamma", "alpha", "smoothness", "answer"),
    [
        (4.0, formula(0.5), formula(2.0), "holds"),  # γ = L_R L_ψ* itself
        (
            4.0 * (1 - 1e-10),
            formula(0.5),
            formula(2.0),
            "not known",
        ),  # to rounding, so that nothing is refuted
        (4.0 * (1 - 1e-8), formula(0.5), formula(2.0), "does not hold"),
        (100.0, sampled(0.5, 0.8), formula(2.0), "not known"),
        (100.0, formula(0.5), sampled(2.0), "holds"),  # enough for the factor of safety, too
        (4.5, formula(0.5), sampled(2.0), "not known"),
        (3.9, formula(0.5), sampled(2.0), "does not hold"),
    ],
)
def test_gamma_is_compared_with_the_smoothness_of_both_maps(gamma, alpha, smoothness, answer):
    """With the map for its regulariser, L_R and L_ψ* = 1/α are those of one map."""
    mirror = Diagonal(0.5)
    method = AMD(
        mirror, 0.01, gamma=Prefix([2 * gamma, gamma], "last").double(), regulariser=mirror
    )
    method.gamma.values.data = torch.tensor([2 * gamma, gamma], dtype=torch.float64)
    verdict = judged(method, "γ ≥", alpha=alpha, smoothness=smoothness)
    assert verdict.answer == answer
    assert f"smallest γ is {gamma:.4g}" in verdict.reason
    assert ("from samples" in verdict.reason) == (answer == "not known")
    assert f"L_R L_ψ* = {smoothness.value / alpha.value:.4g}" in verdict.reason


@pytest.mark.parametrize(
    ("longest", "L", "answer"),
    [
        (0.125, formula(4.0), "holds"),  # ℓ_R/L_f itself, with ℓ_R = ½
        (0.125 * (1 + 1e-10), formula(4.0), "holds"),
        (0.125 * (1 + 1.7e-9), formula(4.0), "does not hold"),
        (0.1, sampled(4.0), "not known"),
        (0.2, sampled(4.0), "does not hold"),
        (1e-9, formula(math.inf), "does not hold"),
    ],
)
def test_steps_are_compared_with_the_largest_product_of_gamma_and_t(longest, L, answer):
    """γ_k t_k is largest at the second step, where neither γ nor t is."""
    mirror = Diagonal(0.5)
    gammas = [1.0, 2.0, 8.0]
    steps = [0.5, 0.5, 0.01]
    steps = [longest * each for each in steps]
    method = AMD(
        mirror,
        lambda k: steps[min(k, 3) - 1],
        gamma=lambda k: gammas[min(k, 3) - 1],
        regulariser=mirror,
    )
    verdict = judged(method, "t_k ≤", L=L)
    assert verdict.answer == answer
    if math.isfinite(L.value):
        assert f"largest γt is {longest:.4g}" in verdict.reason
        assert f"ℓ_R/L_f = {0.5 / L.value:.4g}" in verdict.reason
        assert ("from samples" in verdict.reason) == (answer == "not known")


@pytest.mark.parametrize("own", [True, False])
def test_the_regulariser_is_judged_by_its_own_constants(own):
    """The regulariser is another map with L_R = ℓ_R = 3, or the map itself with its constants."""
    mirror = Diagonal(0.5)
    method = AMD(mirror, 0.1, gamma=5.0, regulariser=mirror if own else Diagonal(3.0))
    assert f"L_R L_ψ* = {4 if own else 6}" in judged(method, "γ ≥").reason
    assert f"ℓ_R/L_f = {0.125 if own else 0.75}" in judged(method, "t_k ≤").reason


@pytest.mark.parametrize(
    ("steps", "answer", "words"),
    [
        ([0.5, 0.25, 0.25], "holds", "From 0.5 to 0.25 in 3 steps."),
        ([0.5, 0.5 * (1 + 5e-7), 0.5], "holds", "From 0.5 to 0.5 in 3 steps."),
        ([0.5, 0.25, 0.25 * (1 + 3e-6)], "does not hold", "Step 3 is 1 times step 2"),
        ([0.5, 0.75, 0.25], "does not hold", "Step 2 is 1.5 times step 1"),
    ],
)
def test_steps_that_increase_are_named(steps, answer, words):
    verdict = judged(
        MD(Euclidean(), lambda k: steps[k - 1] if k <= 3 else 0.1),
        "does not increase",
        iterations=3,
    )
    assert (verdict.answer, words in verdict.reason) == (answer, True), verdict.reason
    assert "monotone=True" not in verdict.reason
    learned = judged(MD(Euclidean(), Prefix([0.1, 0.2], "last")), "does not increase")
    assert "monotone=True of Prefix prevents that" in learned.reason


@pytest.mark.parametrize(
    ("steps", "answer", "words"),
    [
        ([0.5, 0.5, 0.5], "holds", "t = 0.5: the method runs on t·f"),
        ([0.5, 0.5 * (1 - 5e-10), 0.5], "holds", "t = 0.5:"),
        ([0.5, 0.5, 0.5 * (1 - 1.7e-9)], "does not hold", "t falls from 0.5 to 0.5;"),
        ([0.5, 0.3, 0.2], "does not hold", "t falls from 0.5 to 0.2; the bound has s_k/t_k"),
        ([0.3, 0.6, 0.2], "does not hold", "t lies between 0.2 and 0.6 and increases at times"),
    ],
)
def test_a_constant_step_is_one_that_does_not_change(steps, answer, words):
    verdict = judged(ASMD(Euclidean(), lambda k: steps[min(k, 3) - 1]), "is constant", iterations=3)
    assert (verdict.answer, words in verdict.reason) == (answer, True), verdict.reason


@pytest.mark.parametrize("off", [0.0, 5e-7, 1.4e-6, -1.4e-6])
@pytest.mark.parametrize("which", ["mixing", "dual_weight"])
@pytest.mark.parametrize("kind", [AMD, ASMD])
def test_the_weights_are_those_of_the_theorem_to_a_millionth(kind, which, off):
    """λ_k = r/(r+k) and k/r for AMD, as printed.

    (A_{k+1} − A_k)/A_{k+1} and (A_{k+1} − A_k)/(k+1)^{3/2} for ASMD.
    """
    areas = [0.5, 1, 3, 6, 10, 15, 21]
    printed = {
        (AMD, "mixing"): lambda k: 3 / (3 + k),
        (AMD, "dual_weight"): lambda k: k / 3,
        (ASMD, "mixing"): lambda k: (areas[k + 1] - areas[k]) / areas[k + 1],
        (ASMD, "dual_weight"): lambda k: (areas[k + 1] - areas[k]) / (k + 1) ** 1.5,
    }[kind, which]

    def used(count):
        size = 1 + printed(min(count - 1, 5))
        return printed(min(count - 1, 5)) + (off * size if count == 3 else 0.0)

    verdict = judged(kind(Euclidean(), 0.1, **{which: used}), "weights are those")
    assert verdict.answer == ("holds" if abs(off) < 1e-6 else "does not hold")
    assert ("at k = 2 is" in verdict.reason) == (abs(off) > 1e-6)


def test_r_is_at_least_3():
    method = AMD(Euclidean(), 0.1)
    assert judged(method, "r ≥ 3").answer == "holds"
    method.r = 2.9
    assert judged(method, "r ≥ 3").answer == "does not hold"


class Steep(Problem):
    """Gradients of 1 near the origin and of a given size far away."""

    def __init__(self, far):
        super().__init__(None, (2,))
        self.far = far

    def grad(self, x):
        size = torch.where(x.norm(dim=1, keepdim=True) > 100, self.far, 1.0)
        return size * torch.nn.functional.normalize(x, dim=1)


@pytest.mark.parametrize(("far", "answer"), [(9.9, "not known"), (10.1, "does not hold")])
def test_gradients_that_grow_tenfold_far_out_are_called_unbounded(far, answer):
    verdict = judged(MD(Euclidean(), 0.1), "E‖G‖", Steep(far))
    assert verdict.answer == answer


def test_gradients_are_bounded_on_a_bounded_domain_or_by_themselves():
    simplex = LeastSquares(
        torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), Simplex()
    )
    assert "The domain is bounded." in judged(MD(Euclidean(), 0.1), "E‖G‖", simplex).reason
    logistic = LogisticRegression(
        torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    )
    assert "The gradients are bounded." in judged(MD(Euclidean(), 0.1), "E‖G‖", logistic).reason


def test_a_bounded_divergence_takes_a_bounded_domain_and_a_lipschitz_map():
    simplex = LeastSquares(
        torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), Simplex()
    )
    for problem, smoothness, answer in (
        (simplex, formula(2.0), "holds"),
        (simplex, formula(math.inf), "does not hold"),
        (BOWL, formula(2.0), "does not hold"),
    ):
        assert (
            judged(ASMD(Euclidean(), 0.1), "M_ψ", problem, smoothness=smoothness).answer == answer
        )


def record_of(name, series, **others):
    return Record(
        torch.ones(len(series)), others, {name: torch.tensor(series, dtype=torch.float64)}
    )


@pytest.mark.parametrize(
    ("series", "words"),
    [
        (
            [-1.0, -2.0, -2.0, -3.9],
            "first half of the run is 2, over the second 3.9. It does not grow",
        ),
        ([-1.0, -2.0, -2.0, -4.1], "first half of the run is 2, over the second 4.1. It grows"),
        ([-2.0, 0.0, -4.1, 0.0], "first half of the run is 2, over the second 4.1. It grows"),
        (
            [-1.0, -5.0, -4.1],
            "first half of the run is 1, over the second 5. It grows",
        ),  # the middle is in the second
        (
            [7.0, 7.0, 1.0, 2.0],
            "first half of the run is 0, over the second 0. It does not grow",
        ),  # errors that help
    ],
)
def test_an_error_grows_if_it_doubles_from_the_first_half_to_the_second(series, words):
    """−⟨U, x − x*⟩ counts, and of several samples the largest."""
    record = record_of(
        "error_pairing",
        [[each, math.nan] for each in series],
        displacement=torch.tensor([[3.0, 5.0], [math.nan, 1.0]]),
    )
    verdict = judged(MD(Euclidean(), 0.1), "⟨U_k", record=record)
    assert (verdict.answer, words in verdict.reason) == ("not known", True), verdict.reason
    assert "Along the run σ² = 5." in judged(MD(Euclidean(), 0.1), "E‖G‖", record=record).reason


def test_without_errors_a_run_is_exact():
    record = record_of(
        "error", [[0.0], [0.0]], displacement=torch.ones(2, 1), divergence=torch.full((3, 1), 0.75)
    )
    verdict = judged(ASMD(Euclidean(), 0.1), "U_k⟩", record=record)
    assert (verdict.answer, "exact mirror descent" in verdict.reason) == ("holds", True)
    assert (
        "Along the run M_ψ = 0.75." in judged(ASMD(Euclidean(), 0.1), "M_ψ", record=record).reason
    )
    grown = record_of("error", [[1.0], [3.0]])
    words = "first half of the run is 1, over the second 3. It grows"
    assert words in judged(AMD(Euclidean(), 0.1), "error terms", record=grown).reason


def test_without_a_run_there_is_nothing_to_say_about_errors():
    setting = Setting(
        BOWL,
        Exact(),
        3,
        MapConstants(formula(1.0), formula(1.0)),
        ProblemConstants(formula(4.0), formula(1.0)),
        POINTS,
    )
    assert not any("U_k" in v.assumption for v in method_verdicts(MD(Euclidean(), 0.1), setting))
    assert not any(
        "Along the run" in v.reason for v in method_verdicts(ASMD(Euclidean(), 0.1), setting)
    )


class Claims(Exact):
    """Says that it is exact and draws numbers."""

    stochastic = True


class Other(Oracle):
    """Not random, and not exact."""


@pytest.mark.parametrize(
    ("oracle", "answer", "words"),
    [
        (Exact(), "holds", "The oracle is exact"),
        (Claims(), "does not hold", "stochastic"),
        (Other(), "does not hold", "Other returns the gradient of another"),
    ],
)
def test_acceleration_takes_exact_gradients(oracle, answer, words):
    verdict = judged(AMD(Euclidean(), 0.1), "gradients are exact", oracle=oracle)
    assert (verdict.answer, words in verdict.reason) == (answer, True)


def test_a_wrapper_around_a_method_with_a_theorem_says_where_it_is():
    verdict = judged(Averaged(MD(Euclidean(), 0.1)), "a theorem")
    assert verdict.reason.startswith("No theorem is known for Averaged")
    assert verdict.reason.endswith(
        "There is one about the MD inside: examine that (method.method)."
    )
    assert (
        "inside"
        not in judged(Averaged(Averaged(MD(Euclidean(), 0.1)), weights=1.0), "a theorem").reason
    )


def test_what_is_learned_for_the_first_steps_says_nothing_about_the_decay():
    growing = Prefix([0.01 * k for k in range(1, 100)], "root_reciprocal")
    assert decay_exponent(growing) == pytest.approx(0.5, abs=1e-6)
