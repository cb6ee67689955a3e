"""What the methods that solve a signal at once have in common."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from torch import Generator, Tensor

from mirrordescent.methods.primal_dual import PrimalDual
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.problems.grid_denoising import GridDenoising
from mirrordescent.trees import Tree

P = TypeVar("P", bound=GridDenoising)

SIGNAL = "horizontal"
"""Name of the block of a signal in a dual point."""


class SignalState(NamedTuple):
    """Steps taken, the answer, and its dual point."""

    k: int
    x: Tensor
    u: Tree


class SignalMethod(PrimalDual[SignalState]):
    """A method whose first step solves a batch of signals; later steps change nothing.

    Signals are (batch, channels, length). Each channel is a series of its own. A subclass writes
    ``require`` and ``denoise``. In the form of one series, with r the ``radius``,

    .. code-block:: none

        min_x ½‖x − y‖² + r‖Dx‖₁,   x = y − Dᵀv,   |v| ≤ r,   u = 2s·v/w
    """

    def require(self, problem: Problem | None) -> GridDenoising:
        """Return the problem, or raise a TypeError if the method does not apply."""
        raise NotImplementedError

    def denoise(self, y: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and v of series (count, length), in double precision.

        Args:
            y: Series in double precision.
            radius: Radius r of every series, (count,).
        """
        raise NotImplementedError

    def dual_step(self, problem: Problem) -> float:
        """Return 1: the dual start does not matter."""
        return 1.0

    def step(
        self,
        problem: Problem,
        state: SignalState,
        oracle: Oracle,
        generator: Generator | None = None,
    ) -> SignalState:
        grid = self.require(problem)
        x, v = self.denoise(grid.y.detach().double().flatten(0, 1).cpu(), series_radius(grid))
        return signal_state(grid, state.k + 1, x, v)

    def _start(self, x: Tensor, u: Tree) -> SignalState:
        return SignalState(0, x, u)


def series_radius(problem: GridDenoising) -> Tensor:
    """Return r = sλw/(2s) of every channel of every signal: (batch · channels,)."""
    (weight,) = problem.term.weights_of_axes
    radius = problem.radius().detach().cpu() * (weight / (2 * problem.scale))
    return radius.repeat_interleave(problem.y.shape[1])


def signal_state(problem: GridDenoising, k: int, x: Tensor, v: Tensor) -> SignalState:
    """Return the state of answers x and dual points v of the series."""
    (weight,) = problem.term.weights_of_axes
    y = problem.y
    u = v.reshape(*y.shape[:2], -1) * (2 * problem.scale / weight)
    return SignalState(k, x.reshape(y.shape).to(y), {SIGNAL: u.to(y)})


def require_signals(name: str, problem: Problem | None, kind: type[P]) -> P:
    """Return a problem of exactly this class on signals, or raise a TypeError."""
    if type(problem) is not kind or len(problem.term.weights_of_axes) != 1:
        given = type(problem).__name__
        if isinstance(problem, GridDenoising):
            given += f" on points of shape {tuple(problem.sample_shape)}"
        raise TypeError(
            f"{name} needs a {kind.__name__} on signals (batch, channels, length), got {given}; "
            "use PDHG"
        )
    return problem
