"""The lower bound of strong convexity at the answer of a method."""

import pytest
import torch

import mirrordescent as md
from mirrordescent.methods import GD, TangentBound


def bowl():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    labels = torch.randn(30, generator=generator, dtype=torch.float64).sign()
    return md.LogisticRegression(features, labels, ridge=0.5)


def test_a_run_stops_with_a_proven_gap():
    problem = bowl()
    minimum = md.solve(problem, md.methods.LBFGS(), iterations=100).best_value
    method = TangentBound(GD(1 / problem.smoothness()), first=5, every=3)
    run = md.solve(problem, method, iterations=500, stop=md.gap(1e-4), check_every=1)
    assert run.statuses == [md.Status.CONVERGED]
    assert bool((run.lower <= minimum).all())
    assert bool(
        (run.value - run.lower <= 1e-4 * (problem.value(problem.start()) - run.lower)).all()
    )
    assert (int(run.steps[0]) - 5) % 3 == 0


def test_bounds_are_computed_only_when_they_are_due():
    problem = bowl()
    method = TangentBound(GD(0.1), first=4, every=2)
    state = method.init(problem.start(), problem)
    for k in range(8):
        bound = method.lower_bound(problem, state)
        assert bool(bound.isfinite().all()) == (k >= 4 and k % 2 == 0)
        state = method.step(problem, state, md.oracles.Exact())
    assert bool(method.tight_bound(problem, state).isfinite().all())


def test_a_run_without_a_bound_that_is_due_does_not_converge():
    problem = bowl()
    method = TangentBound(GD(0.1), first=100)
    run = md.solve(problem, method, iterations=10, stop=md.gap(0.5), check_every=1)
    assert run.statuses == [md.Status.BUDGET]


def test_problems_without_a_modulus_are_refused():
    problem = md.LogisticRegression(torch.eye(2), torch.ones(2))
    with pytest.raises(TypeError, match="strongly convex"):
        TangentBound(GD(0.1)).init(torch.zeros(1, 2), problem)
    with pytest.raises(TypeError, match="from the start"):
        TangentBound(GD(0.1)).init(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="every ≥ 1"):
        TangentBound(GD(0.1), every=0)


def test_with_a_tolerance_only_bounds_that_reach_it_are_computed():
    problem = bowl()
    method = TangentBound(GD(0.1), within=1e-3)
    run = md.solve(problem, method, iterations=300, stop=md.gap(1e-3), check_every=1)
    always = md.solve(
        problem, TangentBound(GD(0.1)), iterations=300, stop=md.gap(1e-3), check_every=1
    )
    assert run.statuses == [md.Status.CONVERGED]
    assert abs(int(run.steps[0]) - int(always.steps[0])) <= 1
    state = method.init(problem.start(), problem)
    assert bool(method.lower_bound(problem, state).isneginf().all())
    with pytest.raises(ValueError, match="within"):
        TangentBound(GD(0.1), within=0.0)
