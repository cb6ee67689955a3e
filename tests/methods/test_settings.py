"""What methods say of themselves, the numbers of their steps, and where they begin."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import mirrordescent as md
from mirrordescent import AMD, ASMD, GD, LPD, MD, PDHG, SMD, CondatVu, DualFISTA, TVDenoising
from mirrordescent.domains import Box
from mirrordescent.execution import fast_run
from mirrordescent.execution.foreach import asmd_step, asmd_step_sizes, diagonal_steps
from mirrordescent.execution.matrices import SHARED_STEPS, PreconditionedSteps
from mirrordescent.methods import Averaged, Certified, Equipped, Preconditioned, Safeguarded
from mirrordescent.methods.accelerated import AMDState, ASMDState, DualWeight, Mixing, area
from mirrordescent.methods.descent import MDState, SMDState
from mirrordescent.methods.equipped import overrides_step
from mirrordescent.methods.means import Means
from mirrordescent.mirrors import Burg, Diagonal, Euclidean, Logit, SoftSign, Stencil
from mirrordescent.oracles import Default, Exact, Noisy, Rounded, Smoothed
from mirrordescent.schedules import Prefix, as_schedule

DOUBLE = torch.float64


def double(*rows):
    return torch.tensor(rows, dtype=DOUBLE)


def image(seed=0, weight=0.2, scale=0.7):
    y = torch.rand(2, 1, 6, 5, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    return TVDenoising(y, weight, scale)


# Acceleration


def test_the_weights_of_amd_and_where_they_stop():
    """λ_k = r/(r + k) and (k + offset)/r, with k held at the cap; schedules count from 1."""
    for k in range(9):
        assert Mixing(4.0)(k + 1) == pytest.approx(4 / (4 + k))
        assert Mixing(4.0, 5)(k + 1) == pytest.approx(4 / (4 + min(k, 5)))
        assert DualWeight(4.0)(k + 1) == pytest.approx(k / 4)
        assert DualWeight(4.0, 1)(k + 1) == pytest.approx((k + 1) / 4)
        assert DualWeight(4.0, 1, 5)(k + 1) == pytest.approx((min(k, 5) + 1) / 4)
    assert [area(k) for k in range(5)] == [0.5, 1, 3, 6, 10]


@pytest.mark.parametrize("momentum", [0.6, 0.75])
def test_a_momentum_can_be_changed_where_there_is_a_cap(momentum):
    """1 − λ = cap/(r + cap) from the cap on."""
    method = AMD(Euclidean(), 0.1, r=4.0, cap=6)
    assert method.adjustable_momentum == pytest.approx(0.6)
    method.set_momentum(momentum)
    assert method.adjustable_momentum == pytest.approx(momentum)
    far = 100
    assert 1 - method.mixing(far) == pytest.approx(momentum)
    assert method.dual_weight(far) == pytest.approx(momentum / (1 - momentum))
    for without in ({}, {"cap": 6, "mixing": 0.5}, {"cap": 6, "dual_weight": 0.5}):
        assert AMD(Euclidean(), 0.1, **without).adjustable_momentum is None
    heavy = Preconditioned(Euclidean(), 0.1, momentum=0.5)
    heavy.set_momentum(momentum)
    assert heavy.adjustable_momentum == heavy.momentum == momentum
    assert GD(0.1).adjustable_momentum is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"r": 2.99}, "r ≥ 3"),
        ({"r": math.nan}, "r ≥ 3"),
        ({"cap": 0}, "cap ≥ 1"),
        ({"storage": "both"}, "storage must be one of 'primal', 'dual', got 'both'"),
        ({"returns": "z"}, "returns must be one of"),
        ({"weight_offset": 2}, "weight_offset must be one of 0, 1"),
    ],
)
def test_the_edges_of_the_settings_of_amd(wrong, words):
    AMD(Euclidean(), 0.1, r=3.0, cap=1, weight_offset=1)
    with pytest.raises(ValueError, match=words):
        AMD(Euclidean(), 0.1, **wrong)


class Off(Euclidean):
    """An inverse that is too long."""

    exact = False

    def _to_primal(self, y):
        return 1.5 * y


@pytest.mark.parametrize("kind", [AMD, ASMD])
def test_the_first_query_is_a_mixture_of_the_start_and_what_the_map_makes_of_it(kind):
    x0 = double([1.0, -2.0])
    state = kind(Off(), 0.1, mixing=lambda k: 0.25 * k).init(x0)
    torch.testing.assert_close(state.x, 0.25 * 1.5 * x0 + 0.75 * x0)
    assert state.k == 0
    if kind is AMD:
        primal = AMD(Off(), 0.1, mixing=lambda k: 0.25 * k, storage="primal").init(x0)
        assert all(part is x0 for part in (primal.x, primal.z, primal.x_tilde))


def test_where_states_are_inside():
    """Points on the edge are, dual ones outside the dual domain are not; sample by sample."""
    box = Euclidean(Box(0.0, 1.0))
    edge = [0.0, 1.0]
    out = [0.5, 1.1]
    ok = double(edge, edge)
    bad = double(edge, out)
    primal = AMD(box, 0.1, storage="primal")
    for z, x, answer in (
        (ok, ok, [True, True]),
        (bad, ok, [True, False]),
        (ok, bad, [True, False]),
    ):
        assert primal.inside(AMDState(0, z, x, ok)).tolist() == answer
    assert MD(box, 0.1).inside(MDState(0, ok)).tolist() == [True, True]
    assert MD(box, 0.1).inside(MDState(0, bad)).tolist() == [True, False]
    # ∇ψ = −1/x is negative
    y = double([-1.0, -2.0], [-1.0, -2.0])
    beyond = double([-1.0, -2.0], [-1.0, 2.0])
    x = double([1.0, 2.0], [0.0, 2.0])
    outside = double([1.0, 2.0], [-1.0, 2.0])
    for kind, state in (
        (AMD, lambda y, x: AMDState(0, y, x, x)),
        (ASMD, lambda y, x: ASMDState(0, y, x)),
    ):
        method = kind(Burg(), 0.1)
        assert method.inside(state(y, x)).tolist() == [True, True]
        assert method.inside(state(beyond, x)).tolist() == [True, False]
        assert method.inside(state(y, outside)).tolist() == [True, False]
    assert SMD(Burg(), 0.1).inside(SMDState(0, beyond, x)).tolist() == [True, False]


def test_which_steps_are_taken_in_place():
    mirror = Diagonal(2.0)
    assert diagonal_steps(AMD(mirror, 0.1)) is not None
    assert diagonal_steps(AMD(mirror, 0.1, regulariser=mirror)) is not None
    assert diagonal_steps(AMD(mirror, 0.1, storage="primal")) is None
    assert diagonal_steps(AMD(mirror, 0.1, regulariser=Diagonal(2.0))) is None
    assert diagonal_steps(AMD(mirror, 0.1, regulariser=Euclidean(Box(0.0, 1.0)))) is None
    assert diagonal_steps(MD(mirror, 0.1)) is not None
    assert diagonal_steps(SMD(mirror, 0.1)) is None
    assert Preconditioned in SHARED_STEPS
    assert MD not in SHARED_STEPS

    class Other(MD):
        def update(self, state, grad):
            return super().update(state, 2 * grad)

    assert diagonal_steps(Other(mirror, 0.1)) is None


@pytest.mark.parametrize("scaled", [False, True])
def test_asmd_in_place_takes_the_same_steps(scaled):
    d = double([0.5, 2.0, 4.0])[0]
    mirror = Diagonal(d) if scaled else Euclidean()
    method = ASMD(mirror, lambda k: 0.3 / k)
    x0 = double([1.0, -2.0, 0.5])
    state = method.init(x0)
    x = [state.x[0].clone()]
    y = [state.y[0].clone()]
    for k in range(1, 8):
        g = double([1.0, 0.3, -0.7]) * k
        state = method.update(state, g)
        sizes = asmd_step_sizes(method, k)
        asmd_step(method, sizes, x, y, [g[0]], [d] if scaled else None)
        torch.testing.assert_close(x[0], state.x[0])
        torch.testing.assert_close(y[0], state.y[0])
        length, mixing = sizes
        assert length == pytest.approx(0.3 / k * (area(k) - area(k - 1)) / k**1.5)
        assert mixing == pytest.approx(1 - area(k) / area(k + 1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.8},
        {"momentum": 0.8, "lookahead": False},
        {"decay": 0.7},
        {"normalised": True},
    ],
)
def test_preconditioned_steps_taken_together_are_the_same(options):
    maps = [Diagonal(double(0.5, 2.0, 4.0)), SoftSign(0.1)]
    alone = [Preconditioned(mirror, lambda k: 0.3 / k, **options) for mirror in maps]
    states = [method.init(torch.ones(1, 3, dtype=DOUBLE)) for method in alone]
    x, m = ([torch.full((3,), start, dtype=DOUBLE) for _ in maps] for start in (1.0, 0.0))
    for k in range(1, 5):
        g = double(1.0, 0.3, -0.7) * k
        states = [
            method.update(state, g[None]) for method, state in zip(alone, states, strict=True)
        ]
        PreconditionedSteps(alone[0], maps)(k, x, m, [g.clone(), g.clone()])
        for i, state in enumerate(states):
            torch.testing.assert_close(x[i], state.x[0])
            torch.testing.assert_close(m[i], state.m[0])


@pytest.mark.usefixtures("compiled")
def test_which_runs_of_amd_are_compiled():
    task = image()
    stencil = Stencil(0.5).double()
    plain = Euclidean()

    def kernel(mirror=stencil, oracle=None, problem=task, **options):
        options = {"regulariser": mirror, "storage": "primal", **options}
        return fast_run(AMD(mirror, 0.1, **options), problem, oracle or Rounded(1.0))

    assert kernel() is not None
    assert kernel(plain) is not None
    bowl = md.Quadratic(torch.ones(2), torch.zeros(2))
    for without in (
        {"oracle": Smoothed(1.0)},
        {"oracle": Exact()},
        {"problem": bowl},
        {"mirror": Diagonal(2.0)},
        {"mirror": Euclidean(Box(0.0, 1.0))},
        {"regulariser": Euclidean()},
        {"storage": "dual"},
        {"returns": "x_tilde"},
    ):
        assert kernel(**without) is None, without
    method = AMD(plain, 0.1, regulariser=plain, storage="primal")
    state = method.init(task.start())
    fused = fast_run(method, task, Rounded(2.0))(state, 5)
    for _ in range(5):
        state = method.step(task, state, Rounded(2.0))
    assert fused.k == state.k == 5
    torch.testing.assert_close(fused.x, state.x)
    torch.testing.assert_close(fused.z, state.z)


# Primal-dual methods


def test_the_steps_of_pdhg():
    """τ = ratio/‖K‖ and σ = 1/(ratio ‖K‖); a ratio that is a schedule counts with its first
    value.
    """
    task = image()
    for method, ratio in (
        (PDHG(), 1.0),
        (PDHG(0.3), 0.3),
        (PDHG(Prefix([0.3, 5.0]).requires_grad_(False)), 0.3),
    ):
        tau, sigma = (float(step) for step in method.step_sizes(task))
        assert (tau, sigma) == pytest.approx((ratio / task.K_norm, 1 / (ratio * task.K_norm)))
        assert float(method.dual_step(task)) == pytest.approx(sigma)
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="ratio"):
            PDHG(bad)


def test_the_steps_of_condat_and_vu():
    """σ = 1/(ratio ‖K‖), 1/τ = L/2 + σ‖K‖²; with a map both norms are those of its geometry."""
    task = image()
    stencil = Stencil(0.6).double()
    L = 2 * 0.7
    K = task.K_norm
    sigma = 1 / (0.3 * K)
    assert CondatVu(0.3).step_sizes(task) == pytest.approx((1 / (L / 2 + sigma * K**2), sigma))
    mirrored = 1 / (L / stencil.convexity_in_l2() / 2 + sigma * task.K_norm_in(stencil) ** 2)
    found = [float(each) for each in CondatVu(0.3, stencil).step_sizes(task)]
    assert found == pytest.approx([float(mirrored), sigma])
    assert float(mirrored) > 2 / (L / 2 + sigma * K**2)
    assert CondatVu().step_sizes(task) == pytest.approx(CondatVu(1.0).step_sizes(task))


def test_the_dual_steps_of_the_others():
    task = image()
    assert DualFISTA().dual_step(task) == pytest.approx(2 * 0.7 / task.K_norm**2)
    learned = LPD()
    c, a, sigma, tau = (float(each) for each in learned.requires_grad_(False).scalars())
    assert (c, a) == (1.0, 1.0)
    assert sigma == tau == pytest.approx((1 / (1 + math.exp(-3.0))) ** 0.5)
    assert learned.dual_step(task) == pytest.approx(sigma / task.K_norm)
    with torch.no_grad():
        learned.theta[3] = 0.4
    _, _, sigma, tau = (float(each) for each in learned.scalars())
    assert sigma / tau == pytest.approx(math.exp(0.8))


@pytest.mark.parametrize(
    "method", [PDHG(0.3), CondatVu(0.3), DualFISTA(), LPD()], ids=lambda m: type(m).__name__
)
def test_the_dual_variable_begins_with_that_of_the_start(method):
    """u⁰ = prox(aKx⁰) is aKx⁰ clipped to ±sλ; 0 for a = 0; with a curvature for every
    sample, too.
    """
    task = image()
    x = task.start()
    assert not any(bool(block.any()) for block in method.init(x, task).u.values())
    for a in (0.4, torch.tensor([0.1, 2.0], dtype=DOUBLE)):
        state = method.init(x, task, a)
        factor = a if isinstance(a, float) else a[:, None, None, None]
        for name, block in task.K(x).items():
            torch.testing.assert_close(state.u[name], (factor * block).clamp(-0.14, 0.14))
        assert state.k == 0
        assert state.x is x


def test_a_warm_start_makes_the_dual_variable_feasible():
    task = image(weight=1.0)
    lighter = image(weight=0.1)
    method = PDHG(0.3)
    solved = md.solve(task, method, iterations=30)
    state = method.warm_start(solved.state, lighter)
    for name, block in solved.state.u.items():
        torch.testing.assert_close(state.u[name], block.clamp(-0.07, 0.07))
    assert float(max(block.abs().max() for block in solved.state.u.values())) > 0.07
    torch.testing.assert_close(state.x, solved.state.x)
    assert state.k == 0


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", [PDHG, CondatVu])
def test_kernels_take_a_ratio_for_every_sample(kind):
    task = image()
    ratios = double(0.3, 2.0)
    method = kind(as_schedule(lambda k: ratios, "ratio"))
    state = plain = method.init(task.start(), task)
    state = fast_run(method, task, Default())(state, 4)
    for _ in range(4):
        plain = method.step(task, plain, Default())
    torch.testing.assert_close(state.x, plain.x)
    torch.testing.assert_close(state.u, plain.u)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("method", [PDHG(0.3), CondatVu(0.3)], ids=lambda m: type(m).__name__)
def test_kernels_clip_where_the_method_does(method):
    """From a start far outside the range of the data PDHG returns at once, by its prox; Condat and
    Vũ's does not.
    """
    task = image()
    state = method.init(task.start() + 3.0, task)
    fused = fast_run(method, task, Default())(state, 1)
    plain = method.step(task, state, Default())
    torch.testing.assert_close(fused.x, plain.x)
    assert bool((plain.x <= task.high).all()) == (type(method) is PDHG)
    assert fused.k == 1
    assert type(fast_run(CondatVu(0.3, Stencil(0.5)), task, Default())) is type(
        fast_run(method, task, Default())
    )
    assert fast_run(CondatVu(0.3, Diagonal(2.0)), task, Default()) is None


def test_primal_dual_methods_need_a_problem_with_a_saddle():
    with pytest.raises(TypeError, match="PDHG needs the problem from the start"):
        PDHG().init(torch.zeros(1, 1, 4, 4))
    with pytest.raises(TypeError, match="CondatVu needs proximal operators, which Quadratic"):
        CondatVu().init(torch.zeros(1, 2), md.Quadratic(torch.ones(2), torch.zeros(2)))


# The interface


def test_which_methods_prove_bounds():
    assert [PDHG().certifies, LPD().certifies, GD(0.1).certifies] == [True, True, False]
    wrapped = (
        Averaged(PDHG(), weights=1.0),
        Averaged(GD(0.1)),
        Certified(GD(0.1)),
        Safeguarded(Certified(GD(0.1))),
    )
    assert [method.certifies for method in wrapped] == [True, False, True, True]


def test_wrappers_prove_what_the_method_inside_proves():
    task = image()
    method = PDHG(0.3)
    around = Averaged(method, weights=1.0)
    state = around.init(task.start(), task)
    for _ in range(20):
        state = around.step(task, state, Default())
    assert state.k == state.inner.k == 20
    assert state.x is state.inner.x
    for bound in ("lower_bound", "tight_bound"):
        torch.testing.assert_close(
            getattr(around, bound)(task, state), getattr(method, bound)(task, state.inner)
        )
    assert around.inside(state) is None
    assert GD(0.1).lower_bound(task, None) is None
    assert Safeguarded(MD(Logit(), 0.1)).inside(
        Safeguarded(MD(Logit(), 0.1)).init(double([0.5]), md.Function(lambda x: x.sum(1)))
    )


def test_a_method_goes_on_at_another_point_with_its_steps_counted():
    """On the edge, where the map is not defined, √eps of the way inside; elsewhere the point
    itself.
    """
    eps = torch.finfo(DOUBLE).eps ** 0.5
    method = MD(Logit(0.0, 1.0), 0.1)
    state = method.resume(double([0.0, 0.25]), None, 7)
    assert state.k == 7
    torch.testing.assert_close(state.x, double([0.5 * eps, 0.25 + 0.25 * eps]), rtol=1e-12, atol=0)
    x = double([0.1, 0.25])
    assert method.resume(x, None, 2).x is x
    edge = double([0.0, 0.25])
    assert MD(Euclidean(Box(0.0, 1.0)), 0.1).resume(edge, None, 2).x is edge
    assert md.Adam(0.1).resume(edge, None, 2).x is edge
    around = Averaged(method)
    state = around.resume(x, None, 3)
    assert (state.k, state.inner.k) == (3, 3)
    assert state.own.mean is x
    assert Equipped(GD(0.1), Smoothed(0.1)).resume(x, None, 5).k == 5


def test_a_fresh_start_is_at_the_answer():
    problem = md.Quadratic(double([1.0, 2.0])[0], double([1.0, 1.0]))
    method = md.Nesterov(0.2)
    state = method.init(double([3.0, 4.0]))
    for _ in range(3):
        state = method.step(problem, state, Exact())
    warm = method.warm_start(state, problem)
    assert (warm.k, warm.x is state.iterate) == (0, True)


def test_oracles_are_taken_by_methods_that_ask():
    noisy = Noisy(0.1)
    exact = Exact()
    assert GD(0.1).resolve_oracle(noisy) is noisy
    assert PDHG().resolve_oracle(exact) is exact
    with pytest.raises(TypeError, match="PDHG uses no gradients"):
        PDHG().resolve_oracle(noisy)
    own = Smoothed(0.1)
    assert Equipped(GD(0.1), own).resolve_oracle(Default()) is own
    assert (Equipped(GD(0.1), own).oracle, GD(0.1).oracle) == (own, None)
    assert Averaged(Equipped(GD(0.1), own), weights=1.0).oracle is own
    with pytest.raises(TypeError, match="needs a GradientMethod"):
        Equipped(PDHG(), own)
    assert not overrides_step(Equipped(GD(0.1), own))


def test_means_weigh_by_the_squares_of_the_counts():
    """wᵢ = i²/Σ j²: of the next one (n+1)²/Σ_{j ≤ n+1} j²."""
    points, gradients = (
        torch.randn(5, 1, 3, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1)
    )
    means = Means.empty(points[0])
    for n, (x, g) in enumerate(zip(points, gradients, strict=True), 1):
        assert means.next_weight == pytest.approx(n**2 / sum(j**2 for j in range(1, n + 1)))
        means = means.add(x, g)
        assert means.n == n
    weights = torch.tensor([i**2 / 55 for i in range(1, 6)], dtype=DOUBLE)[:, None, None]
    torch.testing.assert_close(means.point, (weights * points).sum(0))
    torch.testing.assert_close(means.gradient, (weights * gradients).sum(0))
    expected = [(6 + i) ** 2 / sum(j**2 for j in range(1, 7 + i)) for i in range(3)]
    assert means.next_weights(3).tolist() == pytest.approx(expected)
    same = copy.copy(means).add(means.point, means.gradient)
    assert same.point is means.point, "the mean of a point with itself is that point"
    assert Means.empty(points[0]).n == 0
