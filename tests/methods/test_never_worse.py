"""A method that diverges is given up, and the next one begins at its best point."""

import torch

import mirrordescent as md
from mirrordescent.execution import fast_run
from mirrordescent.execution.plain import plain_run
from mirrordescent.methods import NeverWorse, ScheduledPrimalDual, Switch
from mirrordescent.oracles import Default

STEEP = md.Quadratic(
    torch.stack([torch.diag(torch.tensor([1.0, s])) for s in (1.0, 1e3)]), torch.ones(2, 2)
)


def test_a_switch_after_a_method_that_diverges_solves_all_problems():
    """The second problem is so steep that GD(1.0) overflows; L-BFGS then starts afresh."""
    bare = Switch(md.GD(1.0), 40, md.LBFGS(), certified=False)
    assert not md.solve(STEEP, bare, iterations=100, check_every=10).ok
    safe = Switch(NeverWorse(md.GD(1.0)), 40, md.LBFGS(), certified=False)
    solution = md.solve(STEEP, safe, iterations=100, check_every=10)
    assert solution.ok
    assert float(solution.value.max()) < 1e-6


def test_answers_are_the_best_points_of_the_checks():
    method = NeverWorse(md.GD(1e-3), every=3)
    plain = md.GD(1e-3)
    state = method.init(STEEP.start(), STEEP)
    same = plain.init(STEEP.start(), STEEP)
    for k in range(1, 8):
        state = method.step(STEEP, state, Default())
        same = plain.step(STEEP, same, Default())
        if k % 3 == 0:
            checked = same.x
        if k >= 3:
            torch.testing.assert_close(method.answer(state), checked)
    wild = NeverWorse(md.GD(1.0), every=3)
    state = wild.init(STEEP.start(), STEEP)
    for _ in range(9):
        state = wild.step(STEEP, state, Default())
    assert bool((STEEP.value(wild.answer(state)) <= STEEP.value(STEEP.start())).all())


def test_primal_dual_methods_are_watched_too():
    problem = md.TVDenoising(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    wild = ScheduledPrimalDual(1.0, stretch=30.0)
    solution = md.solve(problem, NeverWorse(wild), iterations=200)
    assert solution.ok
    assert bool((solution.value <= problem.value(problem.start())).all())
    if fast_run(NeverWorse(md.PDHG(0.3)), problem, Default()) is not None:
        method = NeverWorse(md.PDHG(0.3), every=4)
        state = method.init(problem.start(), problem)
        fast = fast_run(method, problem, Default())(state, 10)
        slow = plain_run(method, problem, Default())(state, 10)
        torch.testing.assert_close(fast.x, slow.x)
        torch.testing.assert_close(fast.own.value, slow.own.value)
