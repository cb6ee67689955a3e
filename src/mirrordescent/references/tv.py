"""Certified minimisers of total-variation problems."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent.kernels import ready
from mirrordescent.methods.base import Method
from mirrordescent.methods.fused import Fused
from mirrordescent.methods.primal_dual import PDHG, DualFISTA
from mirrordescent.problems.tv import TVInpainting
from mirrordescent.solve.loop import solve
from mirrordescent.solve.stopping import Look, Rule

ITERATIONS = 40_000
RATIO = 0.25  # on images in [0, 1], fastest to a relative gap of 1e-6 among 0.1 … 1
RATIO_WITH_OPERATOR = 1.5


def solve_tv(problem: TVInpainting, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the best iterate and the best lower bound of a primal-dual method."""
    solution = solve(
        problem, _method(problem), iterations=ITERATIONS, stop=_small_gap(problem, tolerance), check_every=50
    )
    assert solution.lower is not None
    return cast(Tensor, solution.best_x), solution.lower


def _method(problem: TVInpainting) -> Method[Any]:
    if problem.F_convexity > 0:
        return DualFISTA()
    if problem.operator is not None:
        return PDHG(RATIO_WITH_OPERATOR)
    return Fused(PDHG(RATIO)) if ready() else PDHG(RATIO)  # nobody asked for a kernel to be compiled


def _small_gap(problem: TVInpainting, tolerance: float) -> Rule:
    """Stop at best − lower ≤ tolerance · min(f(y) − lower, f(a constant image)).

    For a large λ, f(y) is so large that a gap relative to it alone would say little.
    """
    start = problem.start()
    flat = problem.value(start.mean((-2, -1), keepdim=True).expand_as(start))

    def test(look: Look) -> Tensor:
        if look.lower is None:
            return torch.zeros_like(look.running)
        rounding = torch.finfo(flat.dtype).eps * (1 + look.start_value.abs())
        allowed = tolerance * torch.minimum(look.start_value - look.lower, flat)
        return look.best_value - look.lower <= torch.maximum(allowed, rounding)

    return Rule(test)
