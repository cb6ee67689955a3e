"""Bounds from means of gradients, and the hand-over to PDHG."""

from __future__ import annotations

import copy

import pytest
import torch

import mirrordescent as md
from mirrordescent.mirrors import Diagonal, Euclidean, HyperbolicEntropy
from mirrordescent.oracles import Exact, Noisy, Smoothed
from mirrordescent.problems.differences import differences
from mirrordescent.problems.tv_bounds import dual_bound


def images(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inpainting(seed=0, scale=0.5):
    y = images(3, 2, 9, 7, seed=seed)
    return md.TVInpainting(y, images(9, 7, seed=seed + 50) > 0.3, weight=0.2, scale=scale)


METHODS = {
    "SMD": lambda: md.SMD(HyperbolicEntropy(1.0), 0.1),
    "AMD": lambda: md.AMD(Euclidean(), md.schedules.Reciprocal(0.2)),
    "Nesterov": lambda: md.Nesterov(0.05),
}


@pytest.mark.parametrize(
    "oracle", [Exact(), Smoothed(lambda k: 0.5 / k)], ids=["exact", "smoothed"]
)
@pytest.mark.parametrize("name", METHODS)
def test_the_bound_is_the_dual_value_of_the_mean_dual_point(name, oracle):
    problem = inpainting()
    steps = 12
    certified = md.Certified(METHODS[name]())
    state = certified.init(problem.start())
    plain = METHODS[name]()
    inner = plain.init(problem.start())
    total = {direction: 0.0 for direction in ("vertical", "horizontal")}
    for k in range(1, steps + 1):
        for direction, d in differences(inner.x).items():
            slope = d.sign() if isinstance(oracle, Exact) else (d / (0.5 / k)).clamp(-1, 1)
            total[direction] = total[direction] + k**2 * problem.scale * problem.weight * slope
        state = certified.step(problem, state, oracle)
        inner = plain.step(problem, inner, oracle)
    mean = {direction: u / sum(k**2 for k in range(1, steps + 1)) for direction, u in total.items()}
    torch.testing.assert_close(
        certified.lower_bound(problem, state), dual_bound(problem.pixels, mean)
    )
    assert torch.equal(certified.answer(state), plain.answer(inner))


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_the_bound_is_below_the_optimum_and_comes_close(scale):
    problem = inpainting(seed=3, scale=scale)
    reference = md.certify(problem, cache=False)
    method = md.Certified(md.AMD(Euclidean(), md.schedules.RootReciprocal(0.05 / scale)))
    solution = md.solve(problem, method, iterations=2000, oracle=Smoothed(lambda k: 0.3 / k))
    assert bool((solution.lower <= reference.value + 1e-12).all())
    gaps = md.relative_gap(solution.value, solution.lower, reference.start_value)
    assert float(gaps.max()) < 2e-2


def test_random_gradients_and_operators_prove_nothing():
    problem = inpainting()
    method = md.Certified(md.SMD(Euclidean(), 0.1))
    state = method.init(problem.start())
    state = method.step(problem, state, Noisy(0.1), torch.Generator().manual_seed(0))
    assert method.lower_bound(problem, state) is None
    with pytest.raises(ValueError, match="gives one"):
        md.solve(
            md.Quadratic(torch.ones(2), torch.zeros(1, 2)),
            md.Certified(md.GD(0.1)),
            torch.ones(1, 2),
            iterations=5,
            stop=md.gap(1e-3),
        )


def test_hand_over_ends_with_a_certificate():
    problem = inpainting(seed=5)
    reference = md.certify(problem, cache=False)
    method = md.Switch(METHODS["AMD"](), after=7)
    solution = md.solve(problem, method, iterations=5000, stop=md.gap(1e-6), check_every=20)
    assert solution.statuses == [md.Status.CONVERGED] * 3
    assert solution.lower is not None
    torch.testing.assert_close(solution.value, reference.value, rtol=1e-5, atol=0)
    assert bool((solution.lower <= reference.value + 1e-12).all())


def test_after_the_hand_over_it_is_pdhg_from_there():
    problem = inpainting()
    first = METHODS["AMD"]()
    then = md.PDHG(0.4)
    method = md.Switch(first, after=3, then=then)
    state = method.init(problem.start())
    inner = first.init(problem.start())
    for _ in range(3):
        state = method.step(problem, state, Exact())
        inner = first.step(problem, inner, Exact())
    assert torch.equal(method.answer(state), first.answer(inner))
    second = then.init(first.answer(inner), problem, then.dual_step(problem))
    for _ in range(4):
        state = method.step(problem, state, Exact())
        second = then.step(problem, second, Exact())
    assert torch.equal(method.answer(state), second.x)
    torch.testing.assert_close(method.lower_bound(problem, state), problem.lower_bound(second.u))


def test_hand_over_to_dual_fista():
    problem = md.TVDenoising(images(2, 1, 12, 10), weight=0.3)
    first = METHODS["AMD"]()
    reference = md.certify(problem, cache=False)
    method = md.Switch(first, after=5, then=md.DualFISTA())
    solution = md.solve(problem, method, iterations=2000, stop=md.gap(1e-7), check_every=10)
    assert solution.statuses == [md.Status.CONVERGED] * 2
    torch.testing.assert_close(solution.value, reference.value, rtol=1e-6, atol=0)
    a = 0.7
    begun = md.DualFISTA().init(reference.x, problem, a)
    for direction, d in differences(reference.x).items():
        assert torch.equal(begun.u[direction], (a * d).clamp(-0.15, 0.15))
        assert begun.v is begun.u


def test_a_sample_that_stopped_before_the_hand_over_keeps_its_numbers():
    flat = torch.full((1, 1, 6, 6), 0.5, dtype=torch.float64)
    both = md.TVDenoising(torch.cat([flat, images(1, 1, 6, 6)]))
    method = md.Switch(METHODS["AMD"](), after=20)
    solution = md.solve(both, method, iterations=3000, stop=md.gap(1e-5), check_every=10)
    assert solution.statuses == [md.Status.CONVERGED] * 2
    assert int(solution.steps[0]) < 20 < int(solution.steps[1])
    torch.testing.assert_close(solution.x[:1], flat)


def test_an_oracle_that_the_second_method_could_not_honour_is_refused():
    with pytest.raises(TypeError, match="PDHG uses no gradients, and cannot use Smoothed"):
        md.solve(
            inpainting(), md.Switch(METHODS["AMD"](), after=3), iterations=5, oracle=Smoothed(0.1)
        )


def test_hand_over_needs_a_first_step():
    with pytest.raises(ValueError, match="after ≥ 1"):
        md.Switch(md.GD(0.1), after=0)


@pytest.mark.parametrize("size", [1.0, 1e4])
@pytest.mark.parametrize("weight", [0.15, 1e-3])
@pytest.mark.parametrize("t", [0.05, 0.3])
def test_what_cancels_in_single_precision_proves_nothing(size, weight, t):
    """Every gradient is the difference of large numbers; of one pixel f = 0 at y."""
    one = torch.zeros(1, 1, 1, 5)
    one[..., 0] = 1.0
    near = torch.tensor([[[[1.0, 0.9999, 1.0001, 0.9998]]]])
    for y in (torch.ones(1, 1, 1, 1), near, one, images(2, 1, 9, 8).float()):
        problem = md.TVDenoising(size * y, weight)
        method = md.Certified(md.AMD(Diagonal(1.0), t))
        found = md.solve(
            problem, method, torch.zeros_like(y), iterations=30, check_every=1, fused=False
        )
        best = md.solve(
            copy.deepcopy(problem).double(), md.PDHG(), iterations=400, check_every=50
        ).best_value
        assert bool(
            (found.lower.double() <= best * (1 + 1e-12)).all()
        )  # above the optimum, but not by much


def test_means_that_are_no_dual_point_prove_nothing():
    """|Dᵀu| ≤ 4sλ: what is far from that was spoiled by rounding, or by an oracle of another
    problem.
    """
    problem = inpainting()
    x = problem.start()
    bound = problem.bound_from_means(problem.grad(x), x)
    assert bool((bound <= md.certify(problem, cache=False).value).all())
    assert bool((problem.bound_from_means(problem.grad(x) + 1.0, x) == -torch.inf).all())
