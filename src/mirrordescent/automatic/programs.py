"""Solvers and candidates for linear and quadratic programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mirrordescent.methods import ADMM, PDHG, CondatVu, Method
from mirrordescent.methods.program_starts import fitted_start
from mirrordescent.problems.base import Problem
from mirrordescent.problems.programs import QP
from mirrordescent.problems.reduced_programs import ReducedProgram
from mirrordescent.racing import TunableSolver
from mirrordescent.schedules import PowerLaws

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Penalties of ADMM that are tried, relative to the scale of the problem."""

RATIOS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Ratios of the step sizes of primal-dual methods that are tried."""

POLISH = 10
"""Steps between predictions of the active set."""


def program_solvers(problem: QP) -> list[TunableSolver]:
    """Return the classical solvers of a program."""
    solvers = [TunableSolver("ADMM", lambda rho: ADMM(rho, polish=0), PENALTIES)]
    if not problem.cones:
        polished = partial(_polished, problem)
        solvers.append(TunableSolver("ADMM with active sets", polished, PENALTIES))
    if problem.P is None:
        solvers.append(TunableSolver("PDHG", PDHG, RATIOS))
    else:
        solvers.append(TunableSolver("Condat–Vũ", CondatVu, RATIOS))
    return solvers


def _polished(problem: QP, rho: float) -> ADMM:
    return ADMM(rho, polish=POLISH, precision="problem" if problem.sparse else "single")


def program_method(
    problem: Problem, rho: float, law: Callable[..., PowerLaws], polish: int, start: bool = False
) -> Method[Any]:
    """Return ADMM with a learned penalty for every row or cone, and a learned over-relaxation.

    Args:
        problem: Programs of the class.
        rho: First penalty of all inequalities.
        law: Makes a schedule from its values.
        polish: Number of steps between predictions of the active set; 0 for none.
        start: Whether to learn a start too. It first fits the solutions of the given programs.
    """
    assert isinstance(problem, QP)
    program = problem.reduced
    dtype = problem.q.dtype
    predicted = None
    if start:
        assert isinstance(program, ReducedProgram)
        predicted = fitted_start(program, dtype)
    count = program.cones.first + len(program.cones.sizes)
    penalties = torch.full((count,), rho, dtype=dtype)
    single = not problem.sparse and polish > 0
    return ADMM(
        penalties,
        law(1.6),
        polish=polish,
        start=predicted,
        precision="single" if single else "problem",
    ).to(dtype)
