"""Fast runs are found by exact type: a subclass never gets the fast run of its parent."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent.execution import fast_run, runner, steps_for
from mirrordescent.execution.registry import RUNNERS
from mirrordescent.methods import Conditioned, Equipped, Safeguarded
from mirrordescent.mirrors import Stencil
from mirrordescent.oracles import Default, Rounded

pytestmark = pytest.mark.usefixtures("compiled")


class SubclassedAMD(md.AMD):
    pass


class SubclassedStencil(Stencil):
    pass


class SubclassedRounded(Rounded):
    pass


class SubclassedProblem(md.TVDenoising):
    pass


class SubclassedPDHG(md.PDHG):
    pass


class SubclassedCondatVu(md.CondatVu):
    pass


class SubclassedDualFISTA(md.DualFISTA):
    pass


class SubclassedEquipped(Equipped):
    pass


class SubclassedCertified(md.Certified):
    pass


class SubclassedConditioned(Conditioned):
    pass


class SubclassedSafeguarded(Safeguarded):
    pass


class SubclassedSwitch(md.Switch):
    pass


def picture(kind=md.TVDenoising):
    return kind(torch.rand(1, 1, 8, 9, generator=torch.Generator().manual_seed(0)))


def method(amd=md.AMD, stencil=Stencil, rounded=Rounded, equipped=Equipped):
    mirror = stencil(0.5).requires_grad_(False)
    inner = amd(mirror, 0.1, regulariser=mirror, storage="primal")
    return equipped(inner, rounded(2.0))


WRAPPERS = {
    "alone": lambda inner: inner,
    "certified": md.Certified,
    "conditioned": Conditioned,
    "safeguarded": Safeguarded,
    "conditioned and certified": lambda inner: Conditioned(md.Certified(inner)),
    "switch": lambda inner: md.Switch(inner, 3, md.LPD().requires_grad_(False)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize(
    "changed",
    [
        {"amd": SubclassedAMD},
        {"stencil": SubclassedStencil},
        {"rounded": SubclassedRounded},
        {"equipped": SubclassedEquipped},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_subclass_inside_any_wrapper_has_no_fast_run(wrap, changed):
    task = picture()
    assert fast_run(wrap(method()), task, Default()) is not None
    assert fast_run(wrap(method(**changed)), task, Default()) is None
    with pytest.raises(ValueError, match="has no kernel for TVDenoising"):
        steps_for(wrap(method(**changed)), task, Default(), fused=True)


@pytest.mark.parametrize(
    ("plain", "changed"),
    [
        (lambda: md.PDHG(0.3), lambda: SubclassedPDHG(0.3)),
        (lambda: md.CondatVu(0.3), lambda: SubclassedCondatVu(0.3)),
        (lambda: md.CondatVu(0.3, Stencil(0.6)), lambda: md.CondatVu(0.3, SubclassedStencil(0.6))),
        (md.DualFISTA, SubclassedDualFISTA),
        (lambda: md.Certified(method()), lambda: SubclassedCertified(method())),
        (lambda: Conditioned(method()), lambda: SubclassedConditioned(method())),
        (lambda: Safeguarded(method()), lambda: SubclassedSafeguarded(method())),
        (lambda: md.Switch(method(), 3), lambda: SubclassedSwitch(method(), 3)),
    ],
)
def test_a_subclass_has_no_fast_run(plain, changed):
    task = picture()
    assert fast_run(plain(), task, Default()) is not None
    assert fast_run(changed(), task, Default()) is None
    assert fast_run(plain(), picture(SubclassedProblem), Default()) is None


def test_a_switch_to_a_subclass_takes_the_steps_of_the_subclass():
    class Still(md.PDHG):
        def step(self, problem, state, oracle, generator=None):
            return state._replace(k=state.k + 1)

    task = picture()
    switch = md.Switch(method(), 3, Still(0.3))
    few, many = (md.solve(task, switch, iterations=count, fused=True).x for count in (3, 9))
    assert torch.equal(few, many)


def test_a_subclass_can_register_a_run(monkeypatch):
    class Registered(md.GD):
        pass

    taken = []

    def factory(method, problem, oracle):
        def run(state, steps):
            taken.append(steps)
            return state._replace(k=state.k + steps)

        return run

    monkeypatch.setitem(RUNNERS, Registered, [])  # so that the registry is restored
    runner(Registered)(factory)
    md.solve(picture(), Registered(0.1), iterations=6, check_every=3, fused=True)
    assert taken == [3, 3]
    assert fast_run(md.GD(0.1), picture(), Default()) is None


def test_without_kernels_steps_are_plain():
    task = picture()
    state = method().init(task.start(), task)
    run = steps_for(method(), task, Default(), fused=False)
    expected = state
    for _ in range(4):
        expected = method().step(task, expected, Default())
    torch.testing.assert_close(run(state, 4).x, expected.x)
    assert run(state, 0) is state
