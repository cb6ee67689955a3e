"""Steps of classical methods against plain transcriptions in NumPy, and what they do where values
tell nothing.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import mirrordescent as md
from mirrordescent.domains import Box, WholeSpace
from mirrordescent.methods import FISTA, LBFGS, LPD, PDHG, CondatVu, DualFISTA
from mirrordescent.methods.fista import ProximalNesterov
from mirrordescent.oracles import Default, Exact
from mirrordescent.problems import Problem

DOUBLE = torch.float64
EPS = float(np.finfo(float).eps)
CURVATURE = np.array([0.5, 3.0, 40.0])
CENTRE = np.array([1.0, -2.0, 0.5])


def value(x):
    """Convex, and not quadratic."""
    return 0.5 * (CURVATURE * (x - CENTRE) ** 2).sum() + 0.25 * (x**4).sum()


def slope(x):
    return CURVATURE * (x - CENTRE) + x**3


def function(domain=None):
    curvature = torch.tensor(CURVATURE)
    centre = torch.tensor(CENTRE)
    problem = md.Function(
        lambda x: 0.5 * (curvature * (x - centre) ** 2).sum(1) + 0.25 * (x**4).sum(1)
    )
    if domain is not None:
        problem.domain = domain
    return problem


def states(method, problem, x0, steps):
    state = method.init(torch.tensor(x0)[None], problem)
    for _ in range(steps):
        state = method.step(problem, state, Exact())
        yield state


@pytest.mark.parametrize(("box", "t"), [(None, 1.0), (None, 0.01), ((-0.3, 0.9), 1.0)])
def test_fista(box, t):
    """u⁺ = P(x − tg) with t halved to sufficient descent and then grown; momentum (θ − 1)/θ⁺,
    restarted uphill.
    """
    project = (lambda x: x) if box is None else lambda x: np.clip(x, *box)
    x = u = project(np.array([3.0, 3.0, 3.0]))
    theta = 1.0
    restarts = 0
    domain = WholeSpace() if box is None else Box(*box)
    for state in states(FISTA(t=t), function(domain), x, 40):
        g = slope(x)
        while True:
            new = project(x - t * g)
            move = new - x
            rounding = EPS * (abs(value(x)) + np.linalg.norm(g) * np.linalg.norm(x))
            if value(new) <= value(x) + g @ move + move @ move / (2 * t) + 8 * rounding:
                break
            t /= 2
        t *= 1.1 if g @ (x - new) > 800 * rounding else 1.0
        grown = (1 + np.sqrt(1 + 4 * theta**2)) / 2
        change = new - u
        against = (x - new) @ change > 0
        restarts += against
        x = project(new if against else new + (theta - 1) / grown * change)
        u = new
        theta = 1.0 if against else grown
        np.testing.assert_allclose(state.iterate[0], u, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(state.x[0], x, rtol=1e-9, atol=1e-9)
        assert (state.theta.item(), state.t.item()) == (pytest.approx(theta), pytest.approx(t))
    assert restarts > 0
    assert state.k == 40


@pytest.mark.parametrize("memory", [2, 5])
def test_lbfgs(memory):
    """x⁺ = x − aHg with the dense H = (I − ρsyᵀ)H(I − ρysᵀ) + ρssᵀ of the last pairs, from the
    scale ⟨s, y⟩/⟨y, y⟩.
    """
    x = np.array([3.0, 3.0, 3.0])
    pairs = []
    for k, state in enumerate(states(LBFGS(memory), function(), x, 12), 1):
        g = slope(x)
        H = np.eye(3)
        if pairs:
            s, y = pairs[-1]
            H = np.eye(3) * (s @ y) / (y @ y)
        for s, y in pairs[-memory:]:
            rho = 1 / (s @ y)
            eye = np.eye(3)
            H = (eye - rho * np.outer(s, y)) @ H @ (eye - rho * np.outer(y, s)) + rho * np.outer(
                s, s
            )
        a = 1.0
        direction = H @ g
        while value(x - a * direction) > value(x) - 1e-4 * a * g @ direction + 4 * EPS * abs(
            value(x)
        ):
            a /= 2 if k > 1 else 8
        new = x - a * direction
        pairs.append((new - x, slope(new) - g))
        x = new
        np.testing.assert_allclose(state.x[0], x, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(state.g[0], slope(x), rtol=1e-6, atol=1e-6)
        assert state.value.item() == pytest.approx(value(x))
        assert (state.k, len(state.pairs)) == (k, memory)
        assert sum(pair.rho.item() > 0 for pair in state.pairs) == min(k, memory)


class Rough(Problem):
    """½x² on top of a level; at x ≤ 0 values are off by some machine epsilons of f. Gradients
    are exact.
    """

    def __init__(self, level, off=0.0):
        super().__init__(None, (1,))
        self.level = level
        self.off = off

    def value(self, x):
        return self.level + x.square().sum(1) / 2 + self.off * EPS * self.level * (x[:, 0] <= 0)

    def grad(self, x):
        return x


def stepped(method, problem, x):
    return method.step(problem, method.init(torch.full((1, 1), x, dtype=DOUBLE), problem), Exact())


@pytest.mark.parametrize(("off", "halved"), [(7.5, False), (8.5, True)])
@pytest.mark.parametrize("level", [1e-6, 1e6])
def test_fista_halves_no_step_for_errors_of_rounding(level, off, halved):
    """A step of t = 1 leads from a tiny x to 0; up to 8 epsilons of f are rounding."""
    x = 1e-9 * level**0.5
    state = stepped(FISTA(t=1.0), Rough(level, off), x)
    assert state.t.item() == (0.5 if halved else 1.0)
    assert state.iterate.item() == (x / 2 if halved else 0.0)


@pytest.mark.parametrize(("share", "grows"), [(0.7, False), (1.4, True)])
@pytest.mark.parametrize("level", [1e-6, 1e6])
def test_steps_of_fista_grow_where_f_falls_by_more_than_rounding(level, share, grows):
    """⟨g, x − u⟩ = x² for t = 1, which has to be 800 epsilons of f."""
    x = (share * 800 * EPS * level) ** 0.5
    assert stepped(FISTA(t=1.0), Rough(level), x).t.item() == pytest.approx(1.1 if grows else 1.0)


def test_a_sample_that_cannot_fall_stays_and_a_pair_without_curvature_is_left_out():
    line = md.Function(lambda x: 2 * x.sum(1))  # no curvature at all
    method = LBFGS()
    start = torch.zeros(1, 4, dtype=DOUBLE)
    states = [method.init(start, line)]
    for _ in range(3):
        states.append(method.step(line, states[-1], Exact()))
    assert all(pair.rho.item() == 0 for pair in states[-1].pairs)
    moved = [float((b.x - a.x).norm()) for a, b in pairwise(states)]
    assert moved == pytest.approx([4.0] * 3), "the gradient"
    short = md.Function(lambda x: 0.1 * x.sum(1))
    state = method.step(short, method.init(start, short), Exact())
    torch.testing.assert_close(state.x, torch.full_like(start, -0.1))
    uphill = Rough(1.0)
    uphill.value = lambda x: torch.where(x[:, 0] == 1.0, 0.0, 1.0).double()  # wherever a step leads
    assert stepped(method, uphill, 1.0).x.item() == 1.0


@pytest.mark.parametrize(("off", "taken"), [(3.5, True), (4.5, False)])
@pytest.mark.parametrize("level", [1e6, -1e6])
def test_lbfgs_takes_steps_whose_values_rise_by_rounding(level, off, taken):
    """By 4 epsilons of |f| at most; near a minimum values tell nothing, and gradients lead on."""
    problem = Rough(level)
    problem.value = lambda x: level + off * EPS * abs(level) * (x[:, 0] < 1e-9).double()
    assert (stepped(LBFGS(), problem, 1e-9).x.item() < 1e-9) == taken


def test_nesterov_s_method_with_a_prox():
    """½‖x − c‖² + λ‖x‖₁ by u⁺ = S_{tλ}(x − t(x − c)), x⁺ = u⁺ + k/(k+3)(u⁺ − u), with steps that
    fall.
    """
    c = np.array([[2.0, -0.3, 0.7]])
    weight = 0.5
    problem = md.Composite(md.SquaredError(torch.tensor(c), curvature=1.0), [md.L1(weight)])
    method = ProximalNesterov(lambda k: 0.4 / k**0.5)
    x = u = np.zeros((1, 3))
    state = method.init(torch.tensor(x), problem)
    for k in range(15):
        t = 0.4 / (k + 1) ** 0.5
        z = x - t * (x - c)
        new = np.sign(z) * np.maximum(np.abs(z) - t * weight, 0)
        x = new + k / (k + 3) * (new - u)
        u = new
        state = method.step(problem, state, Default())
        np.testing.assert_allclose(method.answer(state), u, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(state.x, x, rtol=1e-12, atol=1e-14)
    assert state.k == 15
    with pytest.raises(TypeError, match="needs a problem that offers proximal"):
        method.step(function(), state, Default())


class Counting(Exact):
    """For which k it is asked."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, problem, x, k, generator=None):
        self.asked.append(k)
        return super().forward(problem, x, k, generator)


@pytest.mark.parametrize(
    ("method", "asked"),
    [(FISTA(), [0, 1, 2]), (LBFGS(), [1, 2, 3]), (ProximalNesterov(0.1), [0, 1, 2])],
)
def test_oracles_are_told_which_gradient_is_wanted(method, asked):
    """L-BFGS asks for the gradient after its step; it has that of the start from the problem."""
    problem = md.Composite(md.SquaredError(torch.zeros(1, 3, dtype=DOUBLE)), [md.L1(0.1)])
    oracle = Counting()
    state = method.init(torch.ones(1, 3, dtype=DOUBLE), problem)
    for _ in range(3):
        state = method.step(problem, state, oracle)
    assert oracle.asked == asked


# Total variation of a row of pixels: f = s(‖x − y‖² + λ‖Dx‖₁), with F = s‖x − y‖² on the range of
# y, and |u| ≤ sλ

ROW = np.array([0.1, 0.9, 0.3, 0.35, 0.8, 0.2])
WEIGHT = 0.3
SCALE = 0.7


def D(x):
    return np.diff(x)


def D_adjoint(u):
    return -np.diff(np.concatenate([[0.0], u, [0.0]]))


def clipped(x):
    return np.clip(x, ROW.min(), ROW.max())


def prox_F(x, tau):
    return clipped((x + 2 * SCALE * tau * ROW) / (1 + 2 * SCALE * tau))


def bounded(u):
    return np.clip(u, -SCALE * WEIGHT, SCALE * WEIGHT)


def row_by_row(method, steps=30):
    """Its states on this row, from u = 0."""
    problem = md.TVDenoising(torch.tensor(ROW).reshape(1, 1, 1, 6), WEIGHT, SCALE)
    state = method.init(problem.start(), problem)
    for k in range(1, steps + 1):
        with torch.no_grad():
            state = method.step(problem, state, Default())
        assert state.k == k
        yield problem.K_norm, state


def assert_is(tensor, numbers):
    np.testing.assert_allclose(tensor.flatten().numpy(), numbers, rtol=1e-6, atol=1e-9)


def test_dual_fista():
    """u⁺ = P(v + σDx(v)), θ⁺ = (1 + √(1 + 4θ²))/2, v⁺ = u⁺ + (θ − 1)/θ⁺(u⁺ − u), restarted; σ =
    2s/‖D‖².
    """
    u = v = np.zeros(5)
    theta = 1.0
    restarts = 0

    def least(w):
        return clipped(ROW - w / (2 * SCALE))

    for norm, state in row_by_row(DualFISTA(), 60):
        new = bounded(v + 2 * SCALE / norm**2 * D(least(D_adjoint(v))))
        grown = (1 + np.sqrt(1 + 4 * theta**2)) / 2
        against = (v - new) @ (new - u) > 0
        restarts += against
        v = new if against else new + (theta - 1) / grown * (new - u)
        u = new
        theta = 1.0 if against else grown
        assert_is(state.u["horizontal"], u)
        assert_is(state.v["horizontal"], v)
        assert_is(state.x, least(D_adjoint(u)))
        assert state.theta.item() == pytest.approx(theta)
    assert restarts > 0


@pytest.mark.parametrize("ratio", [0.3, 2.0])
def test_pdhg(ratio):
    """x⁺ = prox_{τF}(x − τDᵀu), u⁺ = P(u + σD(2x⁺ − x)), τ = ratio/‖D‖, σ = 1/(ratio ‖D‖)."""
    x = ROW
    u = np.zeros(5)
    for norm, state in row_by_row(PDHG(ratio)):
        tau = ratio / norm
        sigma = 1 / (ratio * norm)
        new = prox_F(x - tau * D_adjoint(u), tau)
        u = bounded(u + sigma * D(2 * new - x))
        x = new
        assert_is(state.x, x)
        assert_is(state.u["horizontal"], u)


@pytest.mark.parametrize("ratio", [0.3, 2.0])
def test_condat_and_vu(ratio):
    """x⁺ = x − τ(∇F(x) + Dᵀu), with 1/τ = L/2 + σ‖D‖² and L = 2s."""
    x = ROW
    u = np.zeros(5)
    for norm, state in row_by_row(CondatVu(ratio)):
        sigma = 1 / (ratio * norm)
        tau = 1 / (SCALE + sigma * norm**2)
        new = x - tau * (2 * SCALE * (x - ROW) + D_adjoint(u))
        u = bounded(u + sigma * D(2 * new - x))
        x = new
        assert_is(state.x, x)
        assert_is(state.u["horizontal"], u)


@pytest.mark.parametrize(
    "theta", [[0.0, 0.0, 3.0, 0.0], [0.5, -0.7, 1.0, 0.3], [-0.8, 0.4, 2.0, -0.5]]
)
def test_lpd(theta):
    """The four steps of its docstring, with all four numbers different from 1."""
    method = LPD().double()
    with torch.no_grad():
        method.theta.copy_(torch.tensor(theta))
    squashed = 1 / (1 + np.exp(-np.array(theta)))
    c = 2 * squashed[0]
    a = 2 * squashed[1]
    product = c * a * (2 - c) * (2 - a) / (c + a - c * a) ** 2 * squashed[2]
    x = x_old = p = ROW
    u = np.zeros(5)
    for norm, state in row_by_row(method):
        sigma = np.sqrt(product) * np.exp(theta[3]) / norm
        tau = np.sqrt(product) / np.exp(theta[3]) / norm
        q = bounded(u + sigma * D(x_old + (1 + a / c) * (p - x_old)))
        u = u + c * (q - u)
        p = prox_F(x - tau * D_adjoint(u), tau)
        x, x_old = x + a * (p - x), x
        for ours, numbers in (
            (state.x, x),
            (state.p, p),
            (state.x_old, x_old),
            (state.u["horizontal"], u),
        ):
            assert_is(ours, numbers)
