"""Races to a gap whose answers are known, and the choice of settings."""

from __future__ import annotations

import math

import pytest
import torch

import mirrordescent as md
from mirrordescent.learn import Draw
from mirrordescent.methods import GD
from mirrordescent.racing import (
    Race,
    TunablePrimalDual,
    TunableSolver,
    best_setting,
    first_below,
    iterations_needed,
    mean_log_gap,
)


def race(iterations=40, **options):
    """On ½x², gradient descent with step t has the relative gap (1 − t)^2k after k iterations."""
    problem = md.Quadratic(torch.ones(1), torch.zeros(2, 1))
    draw = Draw(problem, torch.tensor([[1.0], [3.0]]), torch.zeros(2))
    return Race(draw, 1e-2, iterations, **options)


def test_a_curve_has_the_gaps_at_the_recorded_iterations():
    curve = race(recorded=[0, 1, 4, 8, 99]).curve(GD(0.5))
    assert curve.iterations == [0, 1, 4, 8]
    expected = torch.tensor([1.0, 0.5**2, 0.5**8, 0.5**16], dtype=torch.float64)
    torch.testing.assert_close(curve.gaps, expected[:, None].expand(-1, 2))
    torch.testing.assert_close(curve.mean().gaps, expected[:, None])
    assert curve.iterations_to(0.3).tolist() == [1, 1]
    assert curve.iterations_to(1e-9).tolist() == [-1, -1]


def test_a_path_of_another_solver_gives_the_same_curve_and_stops_in_time():
    run = race()
    followed = run.follow(run.path(GD(0.5), range(1, 41)), until=1e-2)
    assert followed.iterations == [1, 2, 3, 4]
    torch.testing.assert_close(followed.gaps, run.curve(GD(0.5)).gaps[1:5])
    assert run.follow(iter([])).iterations_to(1.0).tolist() == [-1, -1]
    assert run.follow(run.path(GD(0.5), range(1, 41)), patience=0.0).iterations == []


def test_values_that_are_not_numbers_are_infinite_gaps():
    assert race().relative_gaps(torch.tensor([torch.nan, 0.0])).tolist() == [torch.inf, 0.0]


def test_too_few_solved_problems_have_no_time():
    problem = md.Quadratic(torch.tensor([[[1.0]], [[1e-6]]]), torch.zeros(2, 1))
    draw = Draw(problem, torch.ones(2, 1), torch.zeros(2))
    found = Race(draw, 1e-2, 20).run(GD(0.5))
    assert found.iterations.tolist() == [4, -1]
    assert (found.solved, found.count, found.most) == (1, 2, 4)
    assert found.seconds == torch.inf
    assert found.pace == 0
    half = Race(draw, 1e-2, 20, share=0.5).run(GD(0.5))
    assert 0 < half.pace < half.seconds < torch.inf
    assert len(race().times(GD(0.5), 3, repeats=2)) == 2


@pytest.mark.parametrize(
    "cost", [iterations_needed(race()), mean_log_gap(race(), floor=1e-6)], ids=["count", "area"]
)
def test_the_best_step_size_is_found(cost):
    solver = TunableSolver("gradient descent", GD, (0.01, 0.9, 2.5))
    assert solver.tune(cost) == 0.9
    assert solver.label(0.9) == "gradient descent (0.9)"


def test_a_single_setting_is_not_tried():
    def fail(setting):
        raise AssertionError

    assert best_setting([0.3], fail) == 0.3
    assert TunableSolver("gradient descent", GD, (0.3,)).label(0.3) == "gradient descent"


def test_the_first_of_equal_settings_is_chosen():
    assert best_setting([3.0, 1.0, 2.0], lambda _: 0.0) == 3.0


def test_gaps_may_be_asked_for_problem_by_problem():
    gaps = torch.tensor([[1.0, 1.0], [0.5, 0.9], [0.6, 0.8]])
    assert first_below(gaps, [0, 5, 9], torch.tensor([0.1, 0.8])).tolist() == [-1, 9]


@pytest.mark.parametrize("best", [(0.3, 1.8), (0.1, 1.0), (3.0, 1.9), (1.0, 1.5)])
def test_the_best_ratio_and_relaxation_are_found(best):
    """The cost has its minimum at a pair, and its valley is not quite along the grid."""
    tried = []

    def cost(method):
        tried.append((method.ratio, method.relaxation))
        across = math.log(method.ratio / best[0])
        along = method.relaxation - best[1]
        return across**2 + 4 * along**2 + 0.5 * across * along

    solver = TunablePrimalDual("PDHG", md.PDHG, (0.1, 0.3, 1.0, 3.0))
    assert solver.tune(cost) == best
    assert len(tried) == len(set(tried)) <= 4 + 9
    assert solver.label(best) == f"PDHG ({best[0]:g}, ρ = {best[1]:g})"
    assert len(solver.settings) == 16
    made = solver.make([0.3, 1.5])  # a stored pair is a list
    assert (made.ratio, made.relaxation) == (0.3, 1.5)
