"""Methods one after the other and under guard: who is at work, what is handed over, when a run
falls back.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

import mirrordescent as md
from mirrordescent import (
    GD,
    LPD,
    PDHG,
    SGD,
    Adam,
    CondatVu,
    Function,
    Quadratic,
    Switch,
    TVDenoising,
)
from mirrordescent.domains import Box
from mirrordescent.execution import fast_run
from mirrordescent.methods import (
    LBFGS,
    Averaged,
    Certified,
    Conditioned,
    Equipped,
    GradientMethod,
    Preconditioned,
    ProjectedNesterov,
    Safeguarded,
)
from mirrordescent.methods.switch import first_part, proven
from mirrordescent.mirrors import Euclidean
from mirrordescent.oracles import Default, Noisy, Rounded
from mirrordescent.schedules import Schedule

DOUBLE = torch.float64


def double(*rows):
    return torch.tensor(rows, dtype=DOUBLE)


def image():
    return TVDenoising(
        torch.rand(2, 1, 6, 5, generator=torch.Generator().manual_seed(0), dtype=DOUBLE), 0.2, 0.7
    )


class Counted(Schedule):
    """0.1, and for which counts it was asked."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, k):
        self.asked.append(k)
        return 0.1


@pytest.mark.parametrize(
    "make",
    [
        lambda t: md.MD(Euclidean(), t),
        lambda t: md.SMD(Euclidean(), t),
        lambda t: md.AMD(Euclidean(), t),
        lambda t: md.AMD(Euclidean(), 0.1, gamma=t),
        lambda t: md.AMD(Euclidean(), 0.1, dual_weight=t),
        lambda t: md.ASMD(Euclidean(), t),
        lambda t: md.ASMD(Euclidean(), dual_weight=t),
        md.Nesterov,
        lambda t: ProjectedNesterov(Box(0.0, 1.0), t),
        SGD,
        lambda t: SGD(t, momentum=0.5),
        Adam,
        lambda t: Preconditioned(Euclidean(), t),
        GD,
    ],
)
def test_steps_are_counted_from_one_and_states_from_zero(make):
    t = Counted()
    method = make(t)
    state = method.init(double([0.5, 0.5]))
    assert (state.k, t.asked) == (0, [])
    for k in range(1, 4):
        state = method.update(state, double([0.1, 0.2]))
        assert state.k == k
    assert t.asked == [1, 2, 3]


@pytest.mark.parametrize("kind", [md.AMD, md.ASMD])
def test_the_mixing_of_a_point_is_that_of_the_step_after_it(kind):
    mixing = Counted()
    method = kind(Euclidean(), 0.1, mixing=mixing)
    state = method.init(double([0.5, 0.5]))
    for _ in range(2):
        state = method.update(state, double([0.1, 0.2]))
    assert mixing.asked == [1, 2, 3]


# Hand-over


def test_what_a_hand_over_is_made_of():
    first = GD(0.1)
    then = CondatVu(0.5)
    plain = Switch(first, 3)
    assert (plain.after, plain.first, plain.then.ratio, plain.certified) == (3, first, 0.3, True)
    assert isinstance(plain.method, Certified)
    other = Switch(first, 1, then, certified=False)
    assert (other.method, other.first, other.then) == (first, first, then)
    assert other.config() == {
        "first": first,
        "after": 1,
        "then": then,
        "certified": False,
        "dual_start": True,
    }
    assert Switch(**plain.config()).first is first


@pytest.mark.parametrize("rounded", [True, False])
def test_the_second_method_begins_with_the_curvature_that_the_first_has_reached(rounded):
    """u = prox(aKx), where a is that of the step at which it takes over, or σ."""
    task = image()
    first = Equipped(GD(0.05), Rounded(lambda k: 0.05 * k)) if rounded else GD(0.05)
    method = Switch(first, 4, PDHG(0.4))
    state = method.init(task.start(), task)
    for k in range(4):
        assert (state.k, state.own) == (k, False)
        assert method.active_method(state) is method.method
        state = method.step(task, state, Default())
    x = method.answer(state)
    a = 0.2 if rounded else 1 / (0.4 * task.K_norm)
    then = PDHG(0.4)
    expected = then.step(task, then.init(x, task, a), Default())
    state = method.step(task, state, Default())
    assert (state.k, state.own) == (5, True)
    assert method.active_method(state) is method.then
    torch.testing.assert_close(state.inner.x, expected.x)
    torch.testing.assert_close(state.inner.u, expected.u)


def test_what_can_be_handed_over():
    method = GD(0.1)
    for whole in (
        method,
        Conditioned(method),
        Switch(method, 3),
        Conditioned(Switch(method, 3, certified=False)),
    ):
        assert first_part(whole) is method
    assert first_part(PDHG()) is None
    assert first_part(Conditioned(PDHG())) is None
    with pytest.raises(TypeError, match="a method that uses gradients; PDHG does not"):
        proven(PDHG())


def test_a_method_that_proves_is_handed_over_to_condat_and_vu():
    """After 20 steps, in the geometry of a stencil; the ratio is 0.2, times (unit)⁻¹(λ/λ₀)^−½ where
    λ is known.
    """
    method = GD(0.1)
    plain = proven(method)
    assert (type(plain), plain.first, plain.after, plain.certified) == (Switch, method, 20, True)
    assert type(plain.then) is CondatVu
    assert (plain.then.ratio, plain.then.mirror.damping.item()) == (0.2, pytest.approx(0.6))
    assert plain.then.relaxation == 1.7
    conditioned = proven(Conditioned(method))
    assert type(conditioned) is Conditioned
    inner = conditioned.method
    assert (inner.first, inner.after, inner.then.mirror.damping.item()) == (
        method,
        20,
        pytest.approx(0.6),
    )
    law = inner.then.ratio
    assert not any(p.requires_grad for p in law.parameters())
    given = law.given({"unit": torch.tensor([2.0]).log(), "weight": torch.tensor([4.0]).log()})
    assert float(given(1)) == pytest.approx(0.2 / 2 / 4**0.5)
    then = PDHG(0.7)
    assert proven(method, 5, then).then is then
    assert proven(Conditioned(method), 5, then).method.then is then
    assert (proven(method, 5).after, proven(Conditioned(method), 5).method.after) == (5, 5)


def test_a_hand_over_without_kernels_has_none_and_takes_the_steps_of_both():
    task = image()
    assert fast_run(Switch(GD(0.1), 3, LPD().double()), task, Default()) is None
    noisy = Switch(Equipped(GD(0.1), Noisy(0.1)), 3)
    assert fast_run(noisy, task, Default()) is None


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
def test_a_kernel_stops_at_the_hand_over_and_at_the_end(steps):
    """GD has no kernel and is stepped, PDHG has one: the same as step by step, wherever the calls
    end.
    """
    task = image()
    method = Switch(GD(0.05), 3, PDHG(0.4))
    kernel = fast_run(method, task, Default())
    state = plain = method.init(task.start(), task)
    for _ in range(2):
        state = kernel(state, steps)
        for _ in range(steps):
            plain = method.step(task, plain, Default())
        assert (state.k, state.own) == (plain.k, plain.own)
        torch.testing.assert_close(method.answer(state), method.answer(plain))
    assert kernel(state, 0) is state


# Relay


def test_a_relay_counts_on_and_asks_the_second_without_noise():
    """The second one's schedule goes on at the count the first has reached; noise was asked for the
    first alone.
    """
    problem = Quadratic(double([1.0, 2.0])[0], double([1.0, 1.0]))
    t = Counted()
    relay = Switch(GD(0.2), 2, GD(t))
    assert relay.config() == {
        "first": relay.first,
        "after": 2,
        "then": relay.then,
        "certified": False,
        "dual_start": True,
    }
    state = relay.init(double([3.0, 4.0]))
    generator = torch.Generator().manual_seed(0)
    for k in range(2):
        assert (state.k, state.own, relay.active_method(state)) == (k, False, relay.method)
        state = relay.step(problem, state, Noisy(0.1), generator)
    x = relay.answer(state)
    state = relay.step(problem, state, Noisy(0.1), generator)
    assert (state.k, state.own, relay.active_method(state)) == (3, True, relay.then)
    torch.testing.assert_close(relay.answer(state), x - 0.1 * problem.grad(x))
    relay.step(problem, state, Noisy(0.1), generator)
    assert t.asked == [3, 4]
    for after in (0, -1):
        with pytest.raises(ValueError, match="after ≥ 1"):
            Switch(GD(0.1), after, LBFGS())


# Safeguard


class ScriptState(NamedTuple):
    k: int
    x: torch.Tensor


class Script(GradientMethod):
    """Goes through given points, from wherever it is started again."""

    def __init__(self, *points):
        super().__init__()
        self.points = points
        self.told = []

    def init(self, x0, problem=None):
        return ScriptState(0, x0)

    def update(self, state, grad):
        self.told.append(grad.item())
        return ScriptState(state.k + 1, torch.full_like(state.x, self.points[state.k]))


def test_a_guard_looks_every_few_steps_and_falls_back_by_the_slack():
    """f(x) = x from f₀ = 10 to a best of 4: a rise to 4 + 0.01·6 is let pass, a higher one
    is not.
    """
    line = Function(lambda x: x[:, 0])
    script = Script(99.0, 4.0, 99.0, 4.059, 99.0, 4.061, 99.0, 4.0, 99.0, 3.0)
    guard = Safeguarded(script, every=2)
    state = guard.init(double([10.0]), line)
    seen = []
    for _ in range(10):
        state = guard.step(line, state, Default())
        own = state.own
        seen.append(
            (
                own.best.item(),
                own.best_value.item(),
                own.factor.item(),
                own.fallbacks.item(),
                state.x.item(),
            )
        )
    assert state.own.start_value.item() == 10.0
    assert seen[0] == (10.0, 10.0, 1.0, 0, 99.0), "nothing is looked at between looks"
    assert seen[1] == (4.0, 4.0, 1.0, 0, 4.0)
    assert seen[3] == (4.0, 4.0, 1.0, 0, pytest.approx(4.059))
    assert seen[5] == (4.0, 4.0, 0.5, 1, 4.0), "back at the best point, with half the steps"
    assert seen[7] == (4.0, 4.0, 1.0, 1, 4.0), "and with twice that, up to the method's own"
    assert seen[9] == (3.0, 3.0, 1.0, 1, 3.0)
    assert guard.answer(state).item() == 3.0
    assert script.told == [1.0] * 6 + [0.5] * 2 + [1.0] * 2


def test_the_settings_of_a_guard():
    usual = Safeguarded(GD(0.1))
    assert (usual.every, usual.slack) == (10, 0.01)
    Safeguarded(GD(0.1), every=1, slack=0.0)
    for bad in ({"every": 0}, {"slack": -0.1}, {"slack": torch.nan}):
        with pytest.raises(ValueError, match="every ≥ 1 and slack ≥ 0"):
            Safeguarded(GD(0.1), **bad)
    assert fast_run(Safeguarded(GD(0.1)), image(), Default()) is None


@pytest.mark.usefixtures("compiled")
def test_a_compiled_guard_looks_at_the_same_steps():
    mirror = md.mirrors.Stencil(0.5).double().requires_grad_(False)
    inner = Equipped(md.AMD(mirror, 0.1, regulariser=mirror, storage="primal"), Rounded(2.0))
    task = image()
    guard = Safeguarded(inner, every=4)
    twin = Safeguarded(inner, every=4)
    state = plain = guard.init(task.start(), task)
    kernel = fast_run(guard, task, Default())
    guard.step = None  # which is for shortened steps alone
    for steps in (3, 1, 6, 9):
        state = kernel(state, steps)
        for _ in range(steps):
            plain = twin.step(task, plain, Default())
        assert state.k == plain.k
        torch.testing.assert_close(state.own.best_value, plain.own.best_value)
        torch.testing.assert_close(state.x, plain.x)


# Averages


def test_an_average_weighs_by_the_steps_or_as_it_is_told():
    problem = Quadratic(double([1.0, 2.0])[0], double([1.0, 1.0]))
    for weights, used in ((None, [0.2, 0.1, 0.2 / 3]), (lambda k: k**2, [1, 4, 9])):
        method = GD(lambda k: 0.2 / k)
        averaged = Averaged(method, weights)
        state = averaged.init(double([3.0, 4.0]))
        points = []
        for _ in range(3):
            points.append(state.x)
            last = state
            state = averaged.step(problem, state, Default())
        expected = sum(w * x for w, x in zip(used, points, strict=True)) / sum(used)
        torch.testing.assert_close(averaged.answer(last), expected)
