"""Where nothing can be proven: the least values that long runs of classical solvers find."""

from __future__ import annotations

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
from mirrordescent.solving import solve
from mirrordescent.trees import Tree, leaves, where

ITERATIONS = 500
MARGIN = 1e-6  # of what was gained: an estimate is put that much lower
RATES = (1.0, 0.1, 0.01, 1e-3)


@torch.no_grad()
def estimate(
    problem: Problem, x0: Tree, iterations: int = ITERATIONS
) -> tuple[Tree, Tensor, Tensor]:
    """Return the best points found from x0, their values, and values a millionth of the gain below:
    not bounds.

    FISTA and, where there are no constraints, L-BFGS and Adam with several falling steps; then the
    best of them once more from where it has got to, since a fresh start often helps, as long as it
    does.
    """
    best = x0
    value = problem.value(x0)
    start = value
    solvers = _solvers(problem, x0, iterations)
    gains = []
    for method in solvers:
        found = solve(problem, method, x0, iterations=iterations, progress=False)
        gains.append(float((start - found.best_value).sum()))
        better = found.best_value < value
        best = where(better, found.best_x, best)
        value = torch.where(better, found.best_value, value)
    winner = solvers[max(range(len(gains)), key=gains.__getitem__)]
    for _ in range(4):
        found = solve(problem, winner, best, iterations=iterations, progress=False)
        gained = (value - found.best_value).clamp(min=0)
        best = where(gained > 0, found.best_x, best)
        value = value - gained
        if bool((gained <= 1e-3 * MARGIN * (start - value)).all()):
            break
    rounding = torch.finfo(value.dtype).eps * (1 + value.abs())
    return best, value, value - torch.maximum(MARGIN * (start - value), rounding)


def _solvers(problem: Problem, x0: Tree, iterations: int) -> list[Method[Any]]:
    found: list[Method[Any]] = [FISTA()]
    if isinstance(problem.domain, WholeSpace):
        size = max(float(leaf.square().mean().sqrt()) for leaf in leaves(x0)) or 1.0
        fall = OverRun(iterations, warmup=0.0)
        found += [
            LBFGS(),
            *(
                Adam(lambda k, rate=rate: rate * size * float(fall(k)))  # type: ignore[misc]
                for rate in RATES
            ),
        ]
    return found
