"""Fast runs of the methods that solve signals at once."""

from collections.abc import Callable

from torch import Tensor

from mirrordescent.execution.registry import runner
from mirrordescent.kernels import supports
from mirrordescent.kernels.series_steps import taut_strings, trend_filters
from mirrordescent.methods.signals import SignalMethod, SignalState, series_radius, signal_state
from mirrordescent.methods.taut_string import TautString
from mirrordescent.methods.trend_interior_point import (
    NEWTON_STEPS,
    TOLERANCE,
    TrendInteriorPoint,
)
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.problems.grid_denoising import GridDenoising


@runner(TautString)
def taut_string_run(method: TautString, problem: Problem, oracle: Oracle) -> "SignalRun | None":
    """Return a run of the taut string."""
    return _run(method, problem, taut_strings)


@runner(TrendInteriorPoint)
def trend_run(method: TrendInteriorPoint, problem: Problem, oracle: Oracle) -> "SignalRun | None":
    """Return a run of the interior-point method."""

    def denoise(y: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        return trend_filters(y, radius, TOLERANCE, NEWTON_STEPS)

    return _run(method, problem, denoise)


def _run(
    method: SignalMethod,
    problem: Problem,
    denoise: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> "SignalRun | None":
    grid = method.require(problem)
    return SignalRun(grid, denoise) if supports(grid.y) else None


class SignalRun:
    """Any number of steps in one call of a C kernel, because the first one solves the signals."""

    def __init__(
        self, problem: GridDenoising, denoise: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> None:
        self.problem = problem
        self.denoise = denoise

    def __call__(self, state: SignalState, steps: int) -> SignalState:
        problem = self.problem
        x, v = self.denoise(problem.y.flatten(0, 1), series_radius(problem))
        return signal_state(problem, state.k + steps, x, v)
