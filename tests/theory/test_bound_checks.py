"""Comparison of runs with bounds: the constants of each bound, and runs above a bound."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from mirrordescent import AMD, MD, Quadratic
from mirrordescent.mirrors import Diagonal, Euclidean
from mirrordescent.oracles import Exact, Oracle
from mirrordescent.schedules import Reciprocal
from mirrordescent.solving import Status
from mirrordescent.theory import KnownConstant, ProblemConstants, Record, bounds
from mirrordescent.theory.bound_checks import (
    check_below_bound,
    check_energy_decrease,
    evaluate_bounds,
)
from mirrordescent.theory.constants import SAFETY
from mirrordescent.theory.diagnosis_results import BoundCheck
from mirrordescent.theory.geometry import Coupling, NewtonInverse
from mirrordescent.theory.prior_bounds import PriorConstants, sample_prior_constants

K = 4
BATCH = 2
ALPHA = 0.7
R = 3.5
EPS = torch.finfo(torch.float64).eps


def drawn(seed, *shape):
    return 0.1 + torch.rand(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


STEPS = drawn(0, K).sort(descending=True).values
RECORD = Record(
    STEPS,
    {
        name: drawn(seed, K + 1, BATCH)
        for seed, name in enumerate(("gap", "divergence", "energy"), 1)
    },
    {
        name: drawn(seed, K, BATCH)
        for seed, name in enumerate(
            ("displacement", "error", "noise_pairing", "error_pairing", "distance"), 4
        )
    },
)
KNOWN = PriorConstants(*(drawn(20 + i, BATCH) for i in range(7)))


def bounded(theorem, alpha=ALPHA, smoothness=1.7, mu=0.3, record=RECORD, known=KNOWN):
    of_problem = ProblemConstants(
        KnownConstant(smoothness, "formula"), KnownConstant(mu, "formula")
    )
    return evaluate_bounds(theorem, SimpleNamespace(r=R), record, alpha, known, of_problem)


def with_series(**series):
    states, steps = (
        {name: series.get(name, old) for name, old in group.items()}
        for group in (RECORD.at_states, RECORD.at_steps)
    )
    return Record(STEPS, states, steps)


def test_descent_is_judged_by_both_cases_of_theorem_2():
    found = bounded("descent")
    start = RECORD["divergence"][0]
    torch.testing.assert_close(
        found.bound,
        bounds.smd_bound(start, STEPS, KNOWN.second_moment, ALPHA, error_pairing=KNOWN.pairing),
    )
    torch.testing.assert_close(found.measured, bounds.weighted_mean_gap(RECORD))
    torch.testing.assert_close(found.pathwise, bounds.smd_realised_bound(RECORD, ALPHA))
    torch.testing.assert_close(found.slack, bounds.smd_slack(RECORD, ALPHA))
    (strongly,) = found.other_bounds.values()
    expected = (
        bounds.smd_bound(start, STEPS, KNOWN.second_moment, ALPHA) + KNOWN.squared_error / 0.6
    )
    torch.testing.assert_close(strongly, expected)
    (none,) = bounded("descent", mu=0.0).other_bounds.values()
    assert "not strongly convex" in none


def test_acceleration_is_judged_by_theorem_1():
    found = bounded("accelerated")
    start = RECORD["divergence"][0]
    gap = RECORD["gap"][0]
    t = float(STEPS[0])

    def expected(first_error, error):
        return bounds.amd_bound(R * start + t / R * gap + R * first_error, STEPS, R, error)

    torch.testing.assert_close(found.bound, expected(KNOWN.energy_error, KNOWN.energy_error))
    running = RECORD["error"].cummax(0).values
    torch.testing.assert_close(found.pathwise, expected(RECORD["error"][0], running))
    torch.testing.assert_close(found.measured, RECORD["gap"][1:])
    torch.testing.assert_close(found.slack, bounds.amd_slack(RECORD, R))


@pytest.mark.parametrize(
    "far", [True, False], ids=["points farther than the start", "the start is farthest"]
)
def test_stochastic_acceleration_is_judged_by_theorem_3(far):
    """M_ψ is the larger of B(x*, x_0) and (α/2)‖x − x*‖² at the points, or along the run."""
    first = RECORD["energy"][0]
    size = 10.0 if far else 0.01
    known = PriorConstants(
        **{**vars(KNOWN), "squared_distance": size * torch.ones(BATCH, dtype=torch.float64)}
    )
    record = with_series(distance=size * RECORD["distance"])
    found = bounded("accelerated stochastic", record=record, known=known)
    M = ALPHA / 2 * known.squared_distance if far else RECORD["divergence"][0]
    moments = KNOWN.second_moment.expand(K, -1)
    torch.testing.assert_close(
        found.bound, bounds.asmd_bound_by_moments(first, STEPS, M, moments, ALPHA)
    )
    met = ALPHA / 2 * record["distance"].square().amax(0) if far else RECORD["divergence"].amax(0)
    worst = RECORD["error"].amax(0)
    torch.testing.assert_close(
        found.pathwise,
        bounds.asmd_bound_by_moments(first, STEPS, met, RECORD["displacement"], ALPHA, worst),
    )
    torch.testing.assert_close(found.measured, RECORD["gap"][1:])
    (printed,) = found.other_bounds.values()
    expected = bounds.asmd_bound(
        K, first, M, ALPHA, 1.7, KNOWN.variance, KNOWN.squared_gradient, t=float(STEPS.max())
    )
    torch.testing.assert_close(printed, expected)
    (none,) = bounded("accelerated stochastic", smoothness=math.inf).other_bounds.values()
    assert "f has kinks" in none


def test_errors_that_help_count_as_none():
    found = bounded("accelerated stochastic", record=with_series(error=-RECORD["error"]))
    torch.testing.assert_close(
        found.pathwise,
        bounded("accelerated stochastic", record=with_series(error=0 * RECORD["error"])).pathwise,
    )


@pytest.mark.parametrize("alpha", [0.0, -1.0])
def test_without_strong_convexity_there_is_no_bound(alpha):
    assert bounded("descent", alpha=alpha).bound.isnan().all()
    assert bounded("accelerated stochastic", alpha=alpha).bound.isnan().all()


def below(measured, bound, stochastic=False, statuses=None, pathwise=None, value=0.0):
    measured, bound, pathwise = (
        torch.tensor(series, dtype=torch.float64) for series in (measured, bound, pathwise or bound)
    )
    found = BoundCheck("f", "Theorem", measured, bound, pathwise)
    solution = SimpleNamespace(
        statuses=statuses or [Status.BUDGET] * measured.shape[1],
        value=torch.full((measured.shape[1],), value, dtype=torch.float64),
    )
    return check_below_bound(found, solution, stochastic)


@pytest.mark.parametrize(
    ("bound", "value", "allowed"),
    [
        (0.0, 1.0, 1e3 * EPS),
        (7.0, 0.0, 7e3 * EPS),
        (-7.0, 1.0, 7e3 * EPS),
        (1.0, 7.0, 7e3 * EPS),
    ],
)
@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_rounding_is_not_above_a_bound(bound, value, allowed, unit):
    """10³ machine epsilons of the bound or of f are rounding in every unit, more are not."""
    for excess, answer in ((0.8 * allowed, "holds"), (1.4 * allowed, "does not hold")):
        verdict = below([[unit * (bound + excess)]], [[unit * bound]], value=unit * value)
        assert verdict.answer == answer


def test_the_numbers_of_a_verdict_are_those_at_the_end():
    verdict = below(
        [[9.0, 9.0], [1.0, 2.0]], [[8.0, 8.0], [3.0, 4.0]], pathwise=[[0.0, 0.0], [5.0, 6.0]]
    )
    assert verdict.answer == "does not hold"
    assert "first after 1 steps" in verdict.reason
    for words in ("f is 1.5,", "Theorem 3.5,", "is 5.5."):
        assert words in verdict.reason
    assert "first after" not in below([[1.0]], [[2.0]]).reason


@pytest.mark.parametrize("sample", [0, 1, 2])
def test_one_sample_above_its_bound_is_enough(sample):
    measured = [[1.0] * 3, [1.0] * 3, [1.0] * 3]
    measured[1][sample] = 3.0
    verdict = below(measured, [[2.0] * 3] * 3)
    assert verdict.answer == "does not hold"
    assert "first after 2 steps" in verdict.reason


def test_failed_runs_and_missing_bounds():
    verdict = below([[1.0, 1.0]], [[2.0, 2.0]], statuses=[Status.DIVERGED, Status.BUDGET])
    assert (verdict.answer, "1 of 2 problems failed" in verdict.reason) == ("does not hold", True)
    nan = torch.nan
    verdict = below([[1.0, 1.0]], [[nan, nan]])
    assert (verdict.answer, "no α > 0" in verdict.reason) == ("not known", True)
    assert below([[1.0, 1.0]], [[2.0, nan]]).answer == "holds", (
        "a sample without a bound does not make the rest unknown"
    )


def test_with_noise_the_mean_over_samples_is_judged_step_by_step():
    measured = [[1.0, 5.0], [9.0, 1.0]]
    bound = [[4.0, 4.0], [4.0, 4.0]]
    verdict = below(measured, bound, stochastic=True)
    assert (verdict.answer, "first after 2 steps" in verdict.reason) == ("does not hold", True)


def lemma(slack, energy):
    series = torch.tensor(slack, dtype=torch.float64)
    found = BoundCheck("f", "Theorem 1", series, series, series, series)
    record = Record(
        torch.ones(len(slack)), {"energy": torch.tensor(energy, dtype=torch.float64)}, {}
    )
    (verdict,) = check_energy_decrease("accelerated", found, record)
    return verdict


@pytest.mark.parametrize("energies", [(7.0, 0.0), (0.0, 7.0), (0.0, -7.0)])
def test_lemma_1_holds_to_the_rounding_of_the_energies_on_both_sides(energies):
    for unit in (1e-12, 1.0, 1e12):
        allowed = 1e3 * EPS * 7 * unit
        energy = [[unit * each] for each in energies]
        assert lemma([[-0.8 * allowed]], energy).answer == "holds"
        assert lemma([[-1.4 * allowed]], energy).answer == "does not hold"
    assert lemma([[-EPS]], [[0.0], [0.0]]).answer == "does not hold"


@pytest.mark.parametrize("sample", [0, 1, 2])
def test_one_sample_that_violates_lemma_1_is_enough(sample):
    slack = [[1.0] * 3, [1.0] * 3]
    slack[1][sample] = -1.0
    verdict = lemma(slack, [[0.0] * 3] * 3)
    assert verdict.answer == "does not hold"
    assert "1 of 2 steps violate" in verdict.reason


def test_steps_that_violate_lemma_1_are_counted_once():
    verdict = lemma([[-1.0, -2.0], [1.0, 1.0], [-1.0, torch.nan]], [[0.0, 0.0]] * 4)
    assert "smallest slack is -2; 2 of 3 steps violate" in verdict.reason
    nothing = BoundCheck("f", "Theorem 1", *[torch.zeros(1, 1)] * 3)
    assert check_energy_decrease("accelerated", nothing, RECORD) == []
    assert check_energy_decrease("accelerated stochastic", bounded("descent"), RECORD) == []


class Stretched(Diagonal):
    """∇ψ(x) = 2x with an inverse that is too long, x = (1 + e)y/2."""

    exact = False
    e = 0.1

    def __init__(self):
        super().__init__(2.0)

    def _to_primal(self, y):
        return (1 + self.e) * y / 2


class ByTurns(Oracle):
    """The gradient with s added to every entry, then subtracted, and so on.

    The mean and the variance of this noise are known.
    """

    stochastic = True

    def __init__(self, s):
        super().__init__()
        self.s = s
        self.asked_before = False

    def forward(self, problem, x, k, generator=None):
        self.asked_before = not self.asked_before
        return problem.grad(x) + (self.s if self.asked_before else -self.s)


@pytest.mark.parametrize(("kind", "t"), [(MD, 1.5), (AMD, 6.0)])
def test_what_is_known_before_a_noisy_run_with_an_inexact_inverse(kind, t):
    """x⁺ = (1+e)(x − tG/2), so that G + U = (1+e)G − 2ex/t, and U = e(Ḡ − 2x/t) in the mean.

    The same holds for z with the weights of AMD.
    """
    e = Stretched.e
    s = 0.3
    iterations = 4
    u = drawn(30, 3, 2)
    points = [drawn(31, 3, 2) - 0.5, 2 * drawn(32, 3, 2)]
    centre = drawn(33, 3, 2)
    curvature = torch.tensor([1.0, 2.0], dtype=torch.float64)
    problem = Quadratic(curvature, centre)
    mirror = Stretched()
    steps = [t / k for k in range(1, iterations + 1)]
    weights = steps if kind is MD else [k / 3 * step for k, step in enumerate(steps)]

    def sums(v):
        return v.sum(1)

    seen = {name: [] for name in vars(KNOWN)}
    for x in points:
        g = curvature * (x - centre)
        seen["variance"].append(torch.full((3,), 2 * s**2, dtype=torch.float64))
        seen["squared_distance"].append(sums((x - u) ** 2))
        seen["second_moment"].append(sums(g**2) + 2 * s**2)
        for step in (steps[0], steps[-1]):
            U = e * (g - 2 * x / step)
            total = (1 + e) * g - 2 * e * x / step
            seen["squared_error"].append(sums(U**2))
            seen["pairing"].append(-sums(U * (x - u)))
            seen["second_moment"].append(sums(total**2) + 2 * ((1 + e) * s) ** 2)
        for weight in (min(weights), max(weights)):
            aimed = 2 * x - weight * (g + s)  # of the first gradient that was told
            seen["energy_error"].append(sums(e * aimed * ((1 + e) * aimed / 2 - u)))
    light, heavy = (torch.stack(seen["energy_error"][i::2]).amax(0) for i in (0, 1))
    assert (light > heavy).any(), "for some the lightest weight is the worst"
    assert (light < heavy).any(), "and for others the heaviest"
    del seen["squared_gradient"]
    found = sample_prior_constants(
        kind(mirror, Reciprocal(t)),
        problem,
        Coupling(NewtonInverse(mirror), u),
        points,
        ByTurns(s),
        torch.Generator(),
        iterations,
        exact=False,
    )
    for name, each in seen.items():
        wanted = SAFETY * torch.stack(each).amax(0).clamp(min=0)
        torch.testing.assert_close(
            getattr(found, name), wanted, msg=lambda m, name=name: f"{name}: {m}"
        )
    torch.testing.assert_close(found.squared_gradient, sums((curvature * (u - centre)) ** 2))


def test_exact_runs_are_known_to_make_no_errors_and_exact_gradients_to_have_no_noise():
    u = drawn(30, 3, 2)
    x = drawn(31, 3, 2)
    problem = Quadratic(torch.ones(2, dtype=torch.float64), u)
    method = MD(Euclidean(), 0.1)
    known = sample_prior_constants(
        method, problem, Coupling(Euclidean(), u), [x], Exact(), torch.Generator(), 3, exact=True
    )
    for name in ("pairing", "squared_error", "energy_error", "variance", "squared_gradient"):
        assert not getattr(known, name).any(), name
    torch.testing.assert_close(known.second_moment, SAFETY * (x - u).square().sum(1))
