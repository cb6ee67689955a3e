"""The theorems on random convex problems, with exact maps and admissible constants, in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrordescent import AMD, MD, SMD, Quadratic
from mirrordescent.mirrors import Euclidean
from mirrordescent.oracles import Minibatch, Noisy
from mirrordescent.schedules import Polynomial
from mirrordescent.theory import bounds, observe, problem_constants

sys.path.insert(0, str(Path(__file__).parent))
from convex_cases import any_convex, seeds, smooth

many = settings(max_examples=70)  # of three problems each
storages = st.sampled_from(["primal", "dual"])
powers = st.sampled_from([0.0, 0.5, 0.9])
K = 16


def rounding(*series):
    """What differences of these numbers may be off by."""
    return 1e-11 * (1 + max(float(s.abs().max()) for s in series))


def scaled(case, t):
    """Steps up to three times as long as those that descend, or of the size of 1 where f has kinks."""
    smoothness = problem_constants(case.problem, [case.x0]).smoothness.value
    return t * (case.mirror.strong_convexity.alpha / smoothness if smoothness < torch.inf else 1.0)


def observed_amd(case, storage, power, r, gamma_factor):
    gamma = gamma_factor / case.mirror.strong_convexity.alpha
    t = 1 / (problem_constants(case.problem, [case.x0]).smoothness.value * gamma)
    method = AMD(case.mirror, Polynomial(t, power), r=r, gamma=gamma, storage=storage, returns="x_tilde")
    return observe(case.problem, method, case.x0, minimiser=case.u, iterations=K).record


@many
@given(case=smooth, storage=storages, power=powers, r=st.sampled_from([3.0, 4.5]), factor=st.sampled_from([1.0, 2.0]))
def test_lemma_1_proposition_1_and_theorem_1(case, storage, power, r, factor):
    record = observed_amd(case, storage, power, r, factor)
    assert not record["energy"].isnan().any()
    slack = bounds.amd_slack(record, r)
    assert (slack >= -rounding(record["energy"])).all()
    t = float(record.steps[0])
    first = bounds.amd_first_energy(record["divergence"][0], record["gap"][0], t, r)
    assert (record["energy"][1] <= first + rounding(record["energy"])).all()
    bound = bounds.amd_bound(first, record.steps, r)
    assert (record["gap"][1:] <= bound + rounding(record["gap"])).all()


@many
@given(case=any_convex, storage=storages, power=powers, t=st.floats(0.01, 3.0))
def test_the_bound_of_mirror_descent(case, storage, power, t):
    method = (MD if storage == "primal" else SMD)(case.mirror, Polynomial(scaled(case, t), power))
    record = observe(case.problem, method, case.x0, minimiser=case.u, iterations=K).record
    alpha = case.mirror.strong_convexity.alpha
    bound = bounds.md_bound(record["divergence"][0], record.steps, record["displacement"], alpha)
    alive = ~record["gap"][1:].isnan()
    best = record["gap"][:-1].cummin(0).values
    assert (best <= bound + rounding(bound.nan_to_num()))[alive].all()


@many
@given(case=any_convex, storage=storages, power=powers, t=st.floats(0.01, 3.0), seed=seeds)
def test_the_pathwise_inequality_of_stochastic_mirror_descent(case, storage, power, t, seed):
    method = (MD if storage == "primal" else SMD)(case.mirror, Polynomial(scaled(case, t), power))
    oracle = Minibatch(2) if case.problem.terms and seed % 2 else Noisy(1.0)
    generator = torch.Generator().manual_seed(seed)
    record = observe(
        case.problem, method, case.x0, minimiser=case.u, iterations=K, oracle=oracle, generator=generator
    ).record
    slack = bounds.smd_slack(record, case.mirror.strong_convexity.alpha)
    alive = ~slack.isnan()
    assert alive[0].all()
    assert (record["noise"][0] > 0).all()
    longest = float(record.steps[0])
    terms = (record["divergence"], record["displacement"] * longest**2, record["gap"] * longest)
    assert (slack >= -K * rounding(*(s.nan_to_num() for s in terms)))[alive].all()


def test_the_inequalities_can_fail():
    """With steps or constants that are not admissible: else the tests above would prove nothing."""
    u = torch.ones(1, 1, dtype=torch.float64)
    problem, x0 = Quadratic(torch.ones(1, dtype=torch.float64), u), torch.zeros_like(u)
    too_long = observe(problem, AMD(Euclidean(), 2.5, returns="x_tilde"), x0, minimiser=u, iterations=K).record
    assert (bounds.amd_slack(too_long, 3.0) < -0.1).any()
    descent = observe(problem, SMD(Euclidean(), 1.9), x0, minimiser=u, iterations=K).record
    assert (bounds.smd_slack(descent, 1.0) >= -1e-12).all()
    assert (bounds.smd_slack(descent, 3.0) < -0.1).any()


def test_the_realised_bound_is_the_bound_of_mirror_descent_without_noise():
    u = torch.ones(1, 2, dtype=torch.float64)
    problem = Quadratic(torch.tensor([1.0, 2.0], dtype=torch.float64), u)
    record = observe(problem, MD(Euclidean(), 0.3), torch.zeros_like(u), minimiser=u, iterations=K).record
    bound = bounds.md_bound(record["divergence"][0], record.steps, record["displacement"], 1.0)
    torch.testing.assert_close(bounds.smd_realised_bound(record, 1.0), bound)
