"""Classical solvers for a class of problems, with the settings to tune them over."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from mirrordescent.automatic.attempts import in_brief, limited, tolerant
from mirrordescent.automatic.programs import program_solvers
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
from mirrordescent.problems.programs import QP
from mirrordescent.racing import (
    UNSOLVED,
    Contestant,
    Race,
    TunablePrimalDual,
    TunableSolver,
    iterations_needed,
)
from mirrordescent.solving import solve
from mirrordescent.trees import dot, norm, per_sample, tree_map

SMOOTH_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # multiples of the typical step size
# For a non-smooth f, backtracking returns steps that are too short.
NON_SMOOTH_FACTORS = (0.25, 1.0, 4.0, 16.0, 64.0)
RATIOS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # of primal and dual step sizes


def typical_step(draw: Draw, iterations: int = 30) -> float:
    """Return a step size for a class of problems: the median after backtracking by FISTA.

    If f raises an error on the way, return the step size ‖d‖²/⟨d, ∇f(x₀ + d) − ∇f(x₀)⟩ along a
    short step d against the gradient.
    """
    try:
        state = solve(draw.problem, FISTA(), draw.x0, iterations=iterations, progress=False).state
    except Exception:
        return _secant_step(draw)
    assert isinstance(state, FISTAState)
    return float(state.t.median())


def _secant_step(draw: Draw) -> float:
    """Return the median of the inverse curvatures of f along its gradient at the start."""
    problem = draw.problem
    gradient = problem.grad(draw.x0)
    length = 1e-3 * norm(draw.x0).clamp(min=1e-3) / norm(gradient).clamp(min=1e-30)
    moved = tree_map(lambda x, g: x - per_sample(length, g) * g, draw.x0, gradient)
    moved = problem.domain.project(moved)
    way = tree_map(torch.sub, moved, draw.x0)
    change = tree_map(torch.sub, problem.grad(moved), gradient)
    steps = dot(way, way) / dot(way, change).clamp(min=1e-30)
    return float(steps[steps.isfinite()].median())


def classical_solvers(problem: Problem, step: float) -> list[TunableSolver]:
    """Return the solvers for a problem with its constraints, smoothness and saddle-point form.

    Args:
        problem: A problem of the class.
        step: Step size around which step sizes are tuned.
    """
    if isinstance(problem, QP):
        return program_solvers(problem)
    domain = problem.domain
    non_smooth = problem.smoothness() == math.inf
    factors = NON_SMOOTH_FACTORS if non_smooth else SMOOTH_FACTORS
    steps = [step * factor for factor in factors]
    solvers = [TunableSolver("FISTA with restarts", lambda t: FISTA(t=t), (step,))]
    if isinstance(domain, WholeSpace):
        solvers.append(TunableSolver("gradient descent", GD, steps))
        solvers.append(TunableSolver("Nesterov", Nesterov, steps))
        solvers.append(TunableSolver("L-BFGS", _lbfgs))
        if non_smooth:
            solvers.append(TunableSolver("Adam", Adam, [10.0**-i for i in range(5)]))
    else:
        solvers.append(
            TunableSolver("projected gradient", lambda t: ProjectedGradient(domain, t), steps)
        )
        solvers.append(
            TunableSolver("projected Nesterov", lambda t: ProjectedNesterov(domain, t), steps)
        )
    if problem.proximal() is not None:
        solvers.append(TunableSolver("proximal Nesterov", ProximalNesterov, steps))
    return solvers + _entropic_solvers(problem, step, steps) + _primal_dual_solvers(problem)


def _entropic_solvers(problem: Problem, step: float, steps: list[float]) -> list[TunableSolver]:
    entropic_steps = [10.0**i * step for i in range(-1, 4)]
    name = "exponentiated gradient"
    if isinstance(problem.domain, Simplex):
        return [TunableSolver(name, lambda t: MD(SimplexEntropy(), t), entropic_steps)]
    if isinstance(problem.domain, PositiveOrthant):
        return [
            TunableSolver(name, lambda t: MD(NegativeEntropy(), t), entropic_steps),
            TunableSolver("hyperbolic entropy", lambda t: MD(OrthantEntropy(), t), steps),
        ]
    return []


def _primal_dual_solvers(problem: Problem) -> list[TunableSolver]:
    saddle = problem.saddle_point()
    if saddle is None:
        return []
    solvers: list[TunableSolver] = []
    if saddle.proximable:
        solvers.append(TunablePrimalDual("PDHG", PDHG, RATIOS))
    if 0 < saddle.explicit().F_smoothness < math.inf:
        solvers.append(TunablePrimalDual("Condat–Vũ", CondatVu, RATIOS))
    if saddle.F_convexity > 0:
        solvers.append(TunableSolver("dual FISTA", lambda _: DualFISTA()))
    return solvers


def race_classical_solvers(
    race: Race, step: float, say: Callable[[str], object], seconds: float = math.inf
) -> list[Contestant]:
    """Tune all classical solvers of a problem and run them.

    Solvers that cannot start at these points are skipped. When the time is over and one solver
    reaches the accuracy, the others are skipped too.

    Args:
        race: The problems and the accuracy.
        step: Step size around which step sizes are tuned.
        say: Function that is called with a message about every solver.
        seconds: Time limit.
    """
    end = perf_counter() + seconds
    contestants: list[Contestant] = []
    for solver in classical_solvers(race.problem, step):
        able = any(math.isfinite(each.rehearsal.seconds) for each in contestants)
        if able and perf_counter() > end:
            say(f"there is no time for {solver.name}")
            continue
        cost = limited(iterations_needed(race), end, UNSOLVED * race.iterations)
        try:
            setting = solver.tune(tolerant(cost, say))
            result = race.run(solver.make(setting))
        except DomainError as error:
            say(f"{solver.name} cannot start: {error}")
            continue
        except Exception as error:
            say(f"{solver.name} is disqualified: {in_brief(error)}")
            continue
        name = solver.label(setting)
        say(f"{name}: {result}")
        contestants.append(Contestant(name, solver.make(setting), "classical", result))
    return contestants


def _lbfgs(_: float) -> Method[Any]:
    return LBFGS()
