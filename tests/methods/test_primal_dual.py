"""Primal-dual methods: PDHG, and the learned scheme that contains it."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent import (
    LPD,
    PDHG,
    CondatVu,
    TVDenoising,
    TVInpainting,
    certify,
    relative_gap,
    solve,
)
from mirrordescent.mirrors import Stencil
from mirrordescent.oracles import Exact


def problem():
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(2, 1, 10, 9, generator=generator, dtype=torch.float64)
    return TVInpainting(y, torch.rand(10, 9, generator=generator) > 0.3)


def test_lpd_without_relaxation_is_pdhg():
    """The order differs: LPD updates u first, so its x after k steps is PDHG's with u one step
    ahead.
    """
    task = problem()
    learned = LPD().double()
    with torch.no_grad():
        learned.theta[2:] = torch.tensor([50.0, 0.4])  # στ = 1/‖K‖²
    x = x_old = task.start()
    u = {name: torch.zeros_like(block) for name, block in task.K(x).items()}
    sigma = torch.exp(torch.tensor(0.4)).double() / task.K_norm
    tau = torch.exp(torch.tensor(-0.4)).double() / task.K_norm
    state = learned.init(x, task)
    with torch.no_grad():
        for _ in range(30):
            ahead = task.K(2 * x - x_old)
            u = task.prox_G_conjugate({name: u[name] + sigma * ahead[name] for name in u}, sigma)
            x, x_old = task.prox_F(x - tau * task.K_adjoint(u), tau), x
            state = learned.step(task, state, Exact())
    torch.testing.assert_close(state.x, x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_lpd_converges_for_all_parameters(seed):
    task = problem()
    method = LPD().double()
    with torch.no_grad():
        method.theta.copy_(torch.randn(4, generator=torch.Generator().manual_seed(seed)))
        method.theta[2] = 6.0  # as long as the steps may be
    reference = certify(task, 1e-8)
    solution = solve(task, method, iterations=3000)
    assert (relative_gap(solution.value, reference.lower, reference.start_value) <= 1e-3).all()


def relaxed(c, a):
    """LPD with these relaxations, and steps as long as they may be."""
    method = LPD().double()
    with torch.no_grad():
        method.theta[:2] = torch.logit(torch.tensor([c, a], dtype=torch.float64) / 2)
        method.theta[2] = 50.0
    return method


@pytest.mark.parametrize(
    ("c", "a", "longest"),
    [(1.0, 1.0, 1), (1.5, 1.5, 1), (1.5, 0.5, 9 / 25), (0.25, 1.75, 49 / 625), (0.5, 1.0, 3 / 4)],
)
def test_the_longest_steps_of_lpd(c, a, longest):
    """στ = ca(2−c)(2−a)/(c+a−ca)², worked out by hand, whichever of the two relaxations is the
    larger one.
    """
    for method in (relaxed(c, a), relaxed(a, c)):
        found = [float(number) for number in method.requires_grad_(False).scalars()]
        assert found[2] * found[3] == pytest.approx(longest, rel=1e-6)
        assert sorted(found[:2]) == pytest.approx(sorted([c, a]))
    assert float(relaxed(c, a).requires_grad_(False).scalars()[0]) == pytest.approx(c)


@pytest.mark.parametrize(
    ("c", "a"), [(0.3, 1.7), (1.7, 0.3), (0.6, 1.6), (1.6, 0.6), (1.9, 1.0), (1.0, 1.9)]
)
def test_lpd_converges_however_different_its_relaxations_are(c, a):
    task = problem()
    reference = certify(task, 1e-8)
    solution = solve(task, relaxed(c, a), iterations=4000)
    assert (relative_gap(solution.value, reference.lower, reference.start_value) <= 1e-4).all()


def test_lpd_can_be_learned():
    task = TVDenoising(problem().y)
    method = LPD().double()
    optimiser = torch.optim.Adam(method.parameters(), lr=0.05)
    losses = []
    for _ in range(40):
        state = method.init(task.start(), task)
        for _ in range(8):
            state = method.step(task, state, Exact())
        loss = task.value(state.x).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    lowest = certify(task).value.sum().item()
    assert losses[-1] - lowest < 0.5 * (losses[0] - lowest)


def test_pdhg_reaches_the_optimum_for_any_ratio():
    reference = certify(problem(), 1e-8)
    for ratio in (0.1, 1.0, 10.0):
        solution = solve(problem(), PDHG(ratio), iterations=4000)
        assert (relative_gap(solution.value, reference.lower, reference.start_value) <= 1e-4).all()


@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_condat_vu_reaches_the_optimum(ratio):
    task = problem()
    reference = certify(task, 1e-8)
    solution = solve(task, CondatVu(ratio), iterations=4000)
    assert (relative_gap(solution.value, reference.lower, reference.start_value) <= 1e-5).all()
    assert (solution.lower <= reference.value + 1e-12).all()


@pytest.mark.parametrize("q", [0.2, 0.5, 0.8])
def test_the_norm_of_differences_in_the_geometry_of_a_stencil(q):
    problem = TVDenoising(torch.zeros(1, 1, 40, 40, dtype=torch.float64))
    stencil = Stencil(q).double()
    x = torch.rand(1, 1, 40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for _ in range(300):  # power iteration
            x = problem.K_adjoint(problem.K(stencil.to_primal(x / x.norm())))
    assert 0.99 < float(x.norm()) / problem.K_norm_in(stencil) ** 2 <= 1


def test_a_stencil_halves_the_steps_of_condat_and_vu():
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(2, 1, 20, 17, generator=generator, dtype=torch.float64)
    problem = TVInpainting(y, torch.rand(20, 17, generator=generator) > 0.3, weight=0.2)
    with torch.no_grad():
        plain, mirrored = (
            md.solve(problem, method.double(), iterations=3000, stop=md.gap(1e-6), check_every=10)
            for method in (md.CondatVu(0.3), md.CondatVu(0.3, Stencil(0.6)))
        )
    assert mirrored.ok
    assert bool((mirrored.steps < 0.65 * plain.steps).all())
    torch.testing.assert_close(
        mirrored.value, plain.value, atol=0, rtol=1e-5
    )  # minimisers are not unique in holes
    assert bool((mirrored.lower <= plain.value).all())


def test_condat_and_vu_take_linear_maps_that_know_how_convex_they_are():
    with pytest.raises(TypeError, match="linear map, got NegativeEntropy"):
        md.CondatVu(1.0, md.mirrors.NegativeEntropy())


def test_steps_are_balanced_unless_a_ratio_is_given():
    task = problem()
    default, balanced, other = (
        solve(task, method, iterations=5).x for method in (CondatVu(), CondatVu(1.0), CondatVu(2.0))
    )
    assert torch.equal(default, balanced)
    assert not torch.equal(default, other)
