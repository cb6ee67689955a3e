"""Estimated optima: the least values of long runs of classical solvers, without a proof."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mirrordescent.domains import WholeSpace
from mirrordescent.methods.base import Method
from mirrordescent.methods.baselines import Adam
from mirrordescent.methods.fista import FISTA
from mirrordescent.methods.lbfgs import LBFGS
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import OverRun
from mirrordescent.solving import Rule, Snapshot, Status, rounding_of, solve
from mirrordescent.trees import Tree, leaves, where

ITERATIONS = 500
"""Steps of each run."""

MARGIN = 1e-6
"""Distance of the estimate below the least value found, relative to the decrease of f."""

RESTARTS = 4
"""Largest number of restarts of the best solver."""

LEAST_ITERATIONS = 100
"""Steps of the first run that are taken even if there is no time for them."""

RATES = (1.0, 0.1, 0.01, 1e-3)
"""Step sizes of Adam, relative to the size of the start."""


@torch.no_grad()
def estimate(
    problem: Problem, x0: Tree, iterations: int = ITERATIONS, *, deadline: float = math.inf
) -> tuple[Tree, Tensor, Tensor]:
    """Estimate the minimum of each problem of a batch; the results are not bounds.

    FISTA and, without constraints, L-BFGS and Adam with several decaying steps are run from the
    start. The solver with the largest decrease is then restarted from the best points, because a
    restart often helps, until a restart gains next to nothing.

    Args:
        problem: Batch of problems.
        x0: Start.
        iterations: Number of steps of each run.
        deadline: Value of ``time.perf_counter`` after which no run is started or continued. The
            first run takes at least 100 steps, because an estimate near the value at the start
            would make every point look optimal.

    Returns:
        The best points, their values, and estimates of the minimum. The estimates lie below the
        values by a millionth of the decrease of f, or by rounding.
    """
    best = x0
    start_value = problem.value(x0)
    value = start_value
    solvers = _solvers(problem, x0, iterations)
    decreases: list[float] = []
    errors: list[Exception] = []
    for method in solvers:
        if decreases and perf_counter() > deadline:
            break
        try:
            run = solve(
                problem,
                method,
                x0,
                iterations=iterations,
                stop=until(deadline, 0 if decreases else LEAST_ITERATIONS),
                progress=False,
            )
        except Exception as error:  # f may raise an error far from a solution
            errors.append(error)
            decreases.append(-math.inf)
            continue
        decreases.append(float((start_value - run.best_value).sum()))
        better = run.best_value < value
        best = where(better, run.best_x, best)
        value = torch.where(better, run.best_value, value)
    if len(errors) == len(decreases):
        raise errors[0]
    best_solver = solvers[decreases.index(max(decreases))]
    for _ in range(RESTARTS):
        if perf_counter() > deadline:
            break
        run = solve(
            problem,
            best_solver,
            best,
            iterations=iterations,
            stop=until(deadline),
            progress=False,
        )
        gain = (value - run.best_value).clamp(min=0)
        best = where(gain > 0, run.best_x, best)
        value = value - gain
        if bool((gain <= 1e-3 * MARGIN * (start_value - value)).all()):
            break
    margin = torch.maximum(MARGIN * (start_value - value), rounding_of(value))
    return best, value, value - margin


def until(deadline: float, least: int = 0) -> Rule:
    """Return a rule that stops all samples at the first check after a time.

    Unlike :func:`~mirrordescent.wall_clock` it also counts the time for bounds and checks.

    Args:
        deadline: Value of ``time.perf_counter``.
        least: Number of iterations that are taken in any case.
    """

    def test(snapshot: Snapshot) -> Tensor:
        stopped = snapshot.k >= least and perf_counter() > deadline
        return torch.full_like(snapshot.running, stopped)

    return Rule(test, Status.BUDGET)


def _solvers(problem: Problem, x0: Tree, iterations: int) -> list[Method[Any]]:
    """Return the solvers to try: FISTA and, without constraints, L-BFGS and Adam."""
    solvers: list[Method[Any]] = [FISTA()]
    if not isinstance(problem.domain, WholeSpace):
        return solvers
    solvers.append(LBFGS())
    size = max(float(leaf.square().mean().sqrt()) for leaf in leaves(x0)) or 1.0
    decay = OverRun(iterations, warmup=0.0)

    def adam(rate: float) -> Adam:
        return Adam(lambda k: rate * size * float(decay(k)))

    solvers.extend(adam(rate) for rate in RATES)
    return solvers
