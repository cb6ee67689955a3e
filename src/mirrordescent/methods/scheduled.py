"""A primal-dual method with a schedule for each of its numbers, for learning on non-smooth f."""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method
from mirrordescent.methods.primal_dual import PrimalDual, require_no_constraint
from mirrordescent.mirrors import MirrorMap
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.schedules import Number, ScheduleLike, as_schedule
from mirrordescent.trees import Tree, descend, tree_map


class ScheduledState(NamedTuple):
    """Steps taken, the primal and dual iterates, and the last change of the primal one."""

    k: int
    x: Tensor
    u: Tree
    move: Tensor


class ScheduledPrimalDual(PrimalDual[ScheduledState]):
    """The method of Condat and Vũ with momentum and a schedule for each of its numbers:

    .. code-block:: none

        v  =  m_k (x − x_old) − τ_k ∇ψ*(∇F(x) + Kᵀu)
        x⁺ =  P(x + v)                                 u⁺ = prox_{σG*}(u + σ_k K(x⁺ + a_k (x⁺ − x)))
        σ_k = 1/(ratio_k ‖K‖),                         τ_k = s_k /(L/2 + σ_k ‖K‖²)

    or, if it is ``implicit``, with the prox of F in place of its gradient:

    .. code-block:: none

        x⁺ =  prox_{τF}(x + m_k (x − x_old) − τ_k Kᵀu),   τ_k = s_k ratio_k/‖K‖

    With s = a = 1, no momentum and no map this is :class:`~mirrordescent.methods.CondatVu`, or
    :class:`~mirrordescent.methods.PDHG`, which converge for any ratio. Other numbers are learned:
    for a fixed number of steps, longer steps than those that guarantee convergence can be better.
    Let another method finish the problems that are not solved by then
    (:class:`~mirrordescent.methods.Switch`). Kinks are treated exactly, whereas gradient methods
    have to round them.

    Args:
        ratio: Ratio that balances σ and τ.
        stretch: s. Up to 1 is admissible, or up to α for a map that is α-strongly convex in ℓ₂.
        ahead: a, the extrapolation of the dual step.
        momentum: m; None for none.
        mirror: Linear map; None for ψ(x) = ½‖x‖².
        implicit: Whether to use the prox of F; only without a map.
    """

    def __init__(
        self,
        ratio: ScheduleLike = 1.0,
        stretch: ScheduleLike = 1.0,
        ahead: ScheduleLike = 1.0,
        momentum: ScheduleLike | None = None,
        mirror: MirrorMap | None = None,
        implicit: bool = False,
    ) -> None:
        Method.__init__(self, mirror)
        if mirror is not None and not mirror.linear:
            raise TypeError(f"ScheduledPrimalDual needs a linear map, got {type(mirror).__name__}")
        if mirror is not None and implicit:
            raise TypeError("implicit=True needs mirror=None, since the prox of F is Euclidean")
        self.implicit = implicit
        self.ratio = as_schedule(ratio, "ratio")
        self.stretch = as_schedule(stretch, "stretch")
        self.ahead = as_schedule(ahead, "ahead")
        self.momentum = None if momentum is None else as_schedule(momentum, "momentum")

    def saddle(self, problem: Problem | None) -> SaddlePoint:
        """Return the form whose F has a prox, or the one whose F has a gradient."""
        require_no_constraint(self, problem)
        saddle = super().saddle(problem)
        return saddle if self.implicit else saddle.explicit()

    def dual_step(self, problem: Problem) -> Number:
        """Return σ of the first step."""
        return 1 / (self.ratio(1) * self.saddle(problem).K_norm)

    def step(
        self,
        problem: Problem,
        state: ScheduledState,
        oracle: Oracle,
        generator: Generator | None = None,
    ) -> ScheduledState:
        saddle = self.saddle(problem)
        x = state.x
        count = state.k + 1
        norm = saddle.K_norm
        sigma = 1 / (self.ratio(count) * norm)
        curvature = sigma * norm**2
        if not self.implicit:
            curvature = curvature + saddle.F_smoothness / 2
        tau = self.stretch(count) / curvature
        moved = x
        if self.momentum is not None:
            moved = descend(x, state.move, -self.momentum(count))
        slope = saddle.K_adjoint(state.u)
        if self.implicit:
            x_new = saddle.prox_F(descend(moved, slope, tau), tau)
        else:
            slope = slope + saddle.grad_F(x)
            if self.mirror is not None:
                slope = self.mirror.to_primal(slope)
            x_new = saddle.project(descend(moved, slope, tau))
        move = x_new - x
        Kx = saddle.K(descend(x_new, move, -self.ahead(count)))
        ascended = tree_map(lambda u, Kx: descend(u, Kx, -sigma), state.u, Kx)
        return ScheduledState(count, x_new, saddle.prox_G_conjugate(ascended, sigma), move)

    def _start(self, x: Tensor, u: Tree) -> ScheduledState:
        return ScheduledState(0, x, u, torch.zeros_like(x))
