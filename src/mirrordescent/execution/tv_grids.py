"""Fast runs of PDHG on signals, images and volumes with total variation."""

import torch
from torch import Tensor

from mirrordescent.execution.registry import runner
from mirrordescent.kernels import supports
from mirrordescent.kernels.grid_steps import MOST_AXES, grid_primal_dual
from mirrordescent.methods.primal_dual import PDHG, PDHGState, Relaxed
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.problems.grid_tv import GridTV, WindowTV
from mirrordescent.schedules import Number, Schedule
from mirrordescent.trees import Tree

GRID_CLASSES = (GridTV, WindowTV)
"""Exact classes whose objective is the one that the kernels are written for."""


@runner(PDHG)
def grid_run(method: PDHG, problem: Problem, oracle: Oracle) -> "GridRun | None":
    """Return a run of PDHG with constant relaxation on up to three axes."""
    if type(problem) not in GRID_CLASSES or isinstance(method.relaxation, Schedule):
        return None
    assert isinstance(problem, GridTV)
    if problem.y.ndim > 2 + MOST_AXES or not supports(problem.y):
        return None
    return GridRun(method, problem, method.relaxation)


class GridRun:
    """Steps of PDHG in one call of a C kernel."""

    def __init__(self, method: PDHG, problem: GridTV, relaxation: float) -> None:
        self.problem = problem
        self.relaxed = method.relaxes
        tau, sigma = method.step_sizes(method.saddle(problem))
        fidelity = 2 * problem.scale
        pull = fidelity * tau
        kink = problem.kink
        columns = (
            tau,
            pull / (1 + pull),
            sigma,
            kink,
            1 / (1 + sigma * problem.huber / kink),
            relaxation,
        )
        batch = len(problem.y)
        self.numbers = torch.stack([_column(number).expand(batch) for number in columns], 1)

    def __call__(self, state: PDHGState, steps: int) -> PDHGState:
        problem = self.problem
        names = problem.variation.blocks
        x, u = state.iterate
        result = grid_primal_dual(
            x,
            [_block(u, name) for name in names],
            problem.y,
            problem.grid_shape,
            self.numbers,
            steps,
            relaxed=self.relaxed,
        )
        dual = dict(zip(names, result.dual_point, strict=True))
        relaxed = None
        if self.relaxed:
            relaxed = Relaxed(result.x, dict(zip(names, result.u, strict=True)))
        return PDHGState(state.k + steps, result.point, dual, relaxed)


def _column(number: Number) -> Tensor:
    """Return a number for every sample: (1,) or (batch,)."""
    return torch.as_tensor(number, dtype=torch.float64).detach().reshape(-1)


def _block(u: Tree, name: str) -> Tensor:
    assert isinstance(u, dict)
    return u[name]
