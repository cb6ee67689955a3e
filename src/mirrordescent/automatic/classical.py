"""The classical solvers that fit a class of problems, and what there is to tune about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mirrordescent.automatic.outcome import Contestant
from mirrordescent.automatic.race import Race
from mirrordescent.domains import DomainError, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.learn.families import Draw
from mirrordescent.methods import (
    GD,
    MD,
    PDHG,
    Adam,
    CondatVu,
    DualFISTA,
    Method,
    ProjectedGradient,
    ProjectedNesterov,
)
from mirrordescent.methods.baselines import Nesterov
from mirrordescent.methods.fista import FISTA, FISTAState, ProximalNesterov
from mirrordescent.methods.lbfgs import LBFGS
from mirrordescent.mirrors import NegativeEntropy, OrthantEntropy, SimplexEntropy
from mirrordescent.problems.base import Problem
from mirrordescent.solving import solve

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
BEYOND_KINKS = (
    0.25,
    1.0,
    4.0,
    16.0,
    64.0,
)  # where a search for steps, as the typical one is of, makes them too short
RATIOS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


@dataclass(frozen=True)
class Solver:
    """A method up to one number, and the numbers to try; with one of them there is nothing
    to tune.
    """

    name: str
    make: Callable[[float], Method[Any]]
    settings: Sequence[float] = (1.0,)


def typical_step(draw: Draw, iterations: int = 30) -> float:
    """Return a step length that suits a class of problems: the median of what backtracking ends
    with.
    """
    state = solve(draw.problem, FISTA(), draw.x0, iterations=iterations, progress=False).state
    assert isinstance(state, FISTAState)
    return float(state.t.median())


def fitting(problem: Problem, step: float) -> list[Solver]:
    """Return the solvers that fit what a problem declares: constraints, kinks, a
    saddle-point form.
    """
    domain = problem.domain
    kinked = problem.smoothness() == math.inf
    steps = [step * factor for factor in (BEYOND_KINKS if kinked else FACTORS)]
    found = [Solver("FISTA with restarts", lambda t: FISTA(t=t), (step,))]
    if isinstance(domain, WholeSpace):
        found += [
            Solver("gradient descent", GD, steps),
            Solver("Nesterov", Nesterov, steps),
            Solver("L-BFGS", _lbfgs),
        ]
        if kinked:
            found.append(Solver("Adam", Adam, [10.0**-i for i in range(5)]))
    else:
        found += [
            Solver("projected gradient", lambda t: ProjectedGradient(domain, t), steps),
            Solver("projected Nesterov", lambda t: ProjectedNesterov(domain, t), steps),
        ]
    if problem.proximal() is not None:
        found.append(Solver("proximal Nesterov", ProximalNesterov, steps))
    entropic = [10.0**i * step for i in range(-1, 4)]
    if isinstance(domain, Simplex):
        found.append(Solver("exponentiated gradient", lambda t: MD(SimplexEntropy(), t), entropic))
    if isinstance(domain, PositiveOrthant):
        found.append(Solver("exponentiated gradient", lambda t: MD(NegativeEntropy(), t), entropic))
        found.append(Solver("hyperbolic entropy", lambda t: MD(OrthantEntropy(), t), steps))
    saddle = problem.saddle_point()
    if saddle is not None:
        if saddle.proximable:
            found.append(Solver("PDHG", PDHG, RATIOS))
        if 0 < saddle.explicit().F_smoothness < math.inf:
            found.append(Solver("Condat–Vũ", CondatVu, RATIOS))
        if saddle.F_convexity > 0:
            found.append(Solver("dual FISTA", lambda _: DualFISTA()))
    return found


def tuned(solver: Solver, race: Race) -> float:
    """Return the setting that needs the fewest iterations, those that fail counted as the
    budget.
    """
    if len(solver.settings) == 1:
        return solver.settings[0]

    def cost(setting: float) -> float:
        taken = race.run(solver.make(setting), clock=False).iterations
        return float(torch.where(taken < 0, 4 * race.most, taken).double().mean())

    return min(solver.settings, key=cost)


def named(solver: Solver, setting: float) -> str:
    """Return the name of a solver with its setting, if there was a choice."""
    return solver.name if len(solver.settings) == 1 else f"{solver.name} ({setting:.3g})"


def entered(race: Race, step: float, say: Callable[[str], object]) -> list[Contestant]:
    """Tune all solvers that fit, and let them run; those that cannot begin where these problems do
    are left out.
    """
    found = []
    for solver in fitting(race.draw.problem, step):
        try:
            setting = tuned(solver, race)
            result = race.run(solver.make(setting))
        except DomainError as error:
            say(f"{solver.name} cannot begin: {error}")
            continue
        say(f"{named(solver, setting)}: {result}")
        found.append(Contestant(named(solver, setting), solver.make(setting), "classical", result))
    return found


def _lbfgs(_: float) -> Method[Any]:
    return LBFGS()
