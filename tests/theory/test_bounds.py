"""The theorems on random convex problems, with exact maps and admissible constants, in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from hypothesis import given, settings, strategies as st

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
    """Steps up to three times the longest descending step, or up to 1 if f has kinks."""
    smoothness = problem_constants(case.problem, [case.x0]).smoothness.value
    return t * (case.mirror.strong_convexity.alpha / smoothness if smoothness < torch.inf else 1.0)


def observed_amd(case, storage, power, r, gamma_factor):
    gamma = gamma_factor / case.mirror.strong_convexity.alpha
    t = 1 / (problem_constants(case.problem, [case.x0]).smoothness.value * gamma)
    method = AMD(
        case.mirror, Polynomial(t, power), r=r, gamma=gamma, storage=storage, returns="x_tilde"
    )
    return observe(case.problem, method, case.x0, minimiser=case.u, iterations=K).record


@many
@given(
    case=smooth,
    storage=storages,
    power=powers,
    r=st.sampled_from([3.0, 4.5]),
    factor=st.sampled_from([1.0, 2.0]),
)
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
        case.problem,
        method,
        case.x0,
        minimiser=case.u,
        iterations=K,
        oracle=oracle,
        generator=generator,
    ).record
    slack = bounds.smd_slack(record, case.mirror.strong_convexity.alpha)
    alive = ~slack.isnan()
    assert alive[0].all()
    assert (record["noise"][0] > 0).all()
    longest = float(record.steps[0])
    terms = (record["divergence"], record["displacement"] * longest**2, record["gap"] * longest)
    assert (slack >= -K * rounding(*(s.nan_to_num() for s in terms)))[alive].all()


def test_the_inequalities_can_fail():
    """Inadmissible steps or constants violate them, so that the tests above are not vacuous."""
    u = torch.ones(1, 1, dtype=torch.float64)
    problem = Quadratic(torch.ones(1, dtype=torch.float64), u)
    x0 = torch.zeros_like(u)
    too_long = observe(
        problem, AMD(Euclidean(), 2.5, returns="x_tilde"), x0, minimiser=u, iterations=K
    ).record
    assert (bounds.amd_slack(too_long, 3.0) < -0.1).any()
    descent = observe(problem, SMD(Euclidean(), 1.9), x0, minimiser=u, iterations=K).record
    assert (bounds.smd_slack(descent, 1.0) >= -1e-12).all()
    assert (bounds.smd_slack(descent, 3.0) < -0.1).any()


def test_the_realised_bound_is_the_bound_of_mirror_descent_without_noise():
    u = torch.ones(1, 2, dtype=torch.float64)
    problem = Quadratic(torch.tensor([1.0, 2.0], dtype=torch.float64), u)
    record = observe(
        problem, MD(Euclidean(), 0.3), torch.zeros_like(u), minimiser=u, iterations=K
    ).record
    bound = bounds.md_bound(record["divergence"][0], record.steps, record["displacement"], 1.0)
    torch.testing.assert_close(bounds.smd_realised_bound(record, 1.0), bound)


def test_theorem_1_is_met_with_equality_where_lemma_1_is():
    """The worst case of Lemma 1: energies grow by r·M in every step, all of it in the gap."""
    r = 3.0
    M = 0.7
    first = 2.5
    K = 9
    t = torch.tensor([0.4 / (k + 1) ** 0.5 for k in range(K)], dtype=torch.float64)
    k = torch.arange(K, dtype=torch.float64)
    energy = first + r * M * k  # Ẽ_1, …, Ẽ_K
    gap = energy * r / ((k + 1) ** 2 * t)  # since Ẽ_{k+1} = ((k+1)² t_k/r)·gap + r·0
    torch.testing.assert_close(bounds.amd_bound(first, t, r, M)[:, 0], gap)
    running = torch.linspace(0.1, 1.0, K, dtype=torch.float64)[:, None]
    torch.testing.assert_close(
        bounds.amd_bound(first, t, r, running)[:, 0],
        r / ((k + 1) ** 2 * t) * (first + k * r * running[:, 0]),
    )


def test_theorem_3_in_numbers():
    """By hand, with A_k = 1, 3, 6 and K = 0.1.

    E_0 = 7, M_ψ = 2, α = 0.4, L_f = 3, σ² = 1, ‖∇f(x*)‖² = 4, t = ¼. With α = ½ both 1/α² and 2/α
    would be 4.
    """
    bound = bounds.asmd_bound(
        3, torch.tensor([7.0]).double(), 2.0, 0.4, 3.0, 1.0, 4.0, 0.1, t=0.25
    )[:, 0]
    c = 244.25  # 2/¼ + ¼(8·9·2 + 2·0.4·1 + 4·0.4·4)/0.16 = 8 + ¼·151.2/0.16
    by_hand = [0.1 + 7 + 2**1.5 * c, 0.1 + 7 / 3 + 3**1.5 / 3 * c, 0.1 + 7 / 6 + 8 / 6 * c]
    torch.testing.assert_close(bound, torch.tensor(by_hand, dtype=torch.float64))


def test_theorem_3_follows_from_the_second_moments_it_allows():
    """The bound by moments is smaller by a factor of at most 8.

    E‖G‖² ≤ (8L²M_ψ + 2ασ² + 4α‖∇f(x*)‖²)/α on the run, and Σ √(j+1) ≤ 2(k+1)^{3/2}.
    """
    L = 1.3
    M = 0.8
    alpha = 0.6
    t = 0.5
    K = 400
    moments = torch.full((K, 1), 8 * L**2 * M / alpha, dtype=torch.float64)
    steps = torch.full((K,), t, dtype=torch.float64)
    by_moments = bounds.asmd_bound_by_moments(torch.zeros(1).double(), steps, 0.0, moments, alpha)
    share = bounds.asmd_bound(K, torch.zeros(1).double(), M, alpha, L, t=t) - bounds.asmd_bound(
        K, torch.zeros(1).double(), M, alpha, 0.0, t=t
    )
    assert (by_moments <= share).all()
    assert (share <= 8 * by_moments)[50:].all()


def test_bounds_in_single_precision_are_rounded_up_and_slacks_down():
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.rand(*shape, generator=generator)

    K = 300
    t = drawn(K).sort(descending=True).values
    start = drawn(5)
    sizes = drawn(K, 5)
    M = drawn(5)
    pairs = [
        (
            bounds.md_bound(start, t, sizes, 0.3),
            bounds.md_bound(start.double(), t.double(), sizes.double(), 0.3),
        ),
        (
            bounds.smd_bound_strongly_convex(start, t, M, 0.3, M, 0.7),
            bounds.smd_bound_strongly_convex(
                start.double(), t.double(), M.double(), 0.3, M.double(), 0.7
            ),
        ),
        (
            bounds.amd_first_energy(start, M, 0.3, 3.0, M),
            bounds.amd_first_energy(start.double(), M.double(), 0.3, 3.0, M.double()),
        ),
        (
            bounds.amd_bound(start, t, 3.0, M),
            bounds.amd_bound(start.double(), t.double(), 3.0, M.double()),
        ),
        (
            bounds.asmd_bound_by_moments(start, t, M, sizes, 0.3),
            bounds.asmd_bound_by_moments(
                start.double(), t.double(), M.double(), sizes.double(), 0.3
            ),
        ),
        (
            bounds.asmd_bound(K, start, M, 0.3, 2.0),
            bounds.asmd_bound(K, start.double(), M.double(), 0.3, 2.0),
        ),
    ]
    for single, double in pairs:
        assert single.dtype is torch.float32
        assert (single.double() >= double * (1 - 1e-12)).all()
        torch.testing.assert_close(single.double(), double, rtol=3e-7, atol=0)
