"""Certified minimisers of Poisson tomography."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from mirrordescent.methods.primal_dual import PDHG
from mirrordescent.problems.tomography import PoissonTomography
from mirrordescent.solve.loop import solve
from mirrordescent.solve.stopping import gap

ITERATIONS = 20_000
RATIO = 0.15  # slower at first than 1, and faster to a small gap


def solve_tomography(problem: PoissonTomography, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the best iterate and the best lower bound of PDHG."""
    solution = solve(problem, PDHG(RATIO), iterations=ITERATIONS, stop=gap(tolerance), check_every=50, progress=False)
    assert solution.lower is not None
    return cast(Tensor, solution.best_x), solution.lower
