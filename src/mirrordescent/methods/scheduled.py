"""A primal-dual method with a schedule for every number it has: what to learn where f has kinks."""

from typing import NamedTuple, cast

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
    """Steps taken, the primal iterate, the dual one, and the last move of the primal one."""

    k: int
    x: Tree
    u: Tree
    move: Tree


class ScheduledPrimalDual(PrimalDual[ScheduledState]):
    """The method of Condat and Vũ with momentum, every number of which may change from step to
    step:

    .. code-block:: none

        v  =  m_k (x − x_old) − τ_k ∇ψ*(∇F(x) + Kᵀu)
        x⁺ =  P(x + v)                                 u⁺ = prox_{σG*}(u + σ_k K(x⁺ + a_k (x⁺ − x)))
        σ_k = 1/(ratio_k ‖K‖),                         τ_k = s_k /(L/2 + σ_k ‖K‖²)

    or, if it is ``implicit``, with the prox of F in place of its gradient:

    .. code-block:: none

        x⁺ =  prox_{τF}(x + m_k (x − x_old) − τ_k Kᵀu),   τ_k = s_k ratio_k/‖K‖

    With s = a = 1, no momentum and no map this is :class:`~mirrordescent.methods.CondatVu`, or
    :class:`~mirrordescent.methods.PDHG`, which converge for any ratio. Others are for learning: in
    a given number of steps longer ones pay, with which it need not converge; so let another method
    end what is not finished then (:class:`~mirrordescent.methods.Relay`). Kinks are dealt with
    exactly, where methods that are told gradients have to round them.

    Args:
        ratio: balances σ and τ.
        stretch: s; up to 1 is admissible, or up to α with a map that is α-strongly convex in ℓ₂.
        ahead: a, how far the dual step looks ahead.
        momentum: m; None for none.
        mirror: a linear map, or None for ψ(x) = ½‖x‖².
        implicit: use the prox of F; without a map.
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
            raise TypeError(
                f"ScheduledPrimalDual needs a linear map, which {type(mirror).__name__} is not"
            )
        if mirror is not None and implicit:
            raise TypeError("the prox of F is that of ½‖x‖²: leave out the map, or implicit=True")
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
        """σ of the first step."""
        return 1 / (self.ratio(1) * self.saddle(problem).K_norm)

    def step(
        self,
        problem: Problem,
        state: ScheduledState,
        oracle: Oracle,
        generator: Generator | None = None,
    ) -> ScheduledState:
        saddle = self.saddle(problem)
        x = cast(Tensor, state.x)
        count = state.k + 1
        norm = saddle.K_norm
        sigma = 1 / (self.ratio(count) * norm)
        curvature = sigma * norm**2 if self.implicit else saddle.F_smoothness / 2 + sigma * norm**2
        tau = self.stretch(count) / curvature
        moved = (
            x
            if self.momentum is None
            else descend(x, cast(Tensor, state.move), -self.momentum(count))
        )
        slope = saddle.K_adjoint(state.u)
        if self.implicit:
            x_new = saddle.prox_F(descend(moved, slope, tau), tau)
        else:
            slope = slope + saddle.grad_F(x)
            slope = slope if self.mirror is None else cast(Tensor, self.mirror.to_primal(slope))
            x_new = saddle.project(descend(moved, slope, tau))
        move = x_new - x
        Kx = saddle.K(descend(x_new, move, -self.ahead(count)))
        ascended = tree_map(lambda u, Kx: descend(u, Kx, -sigma), state.u, Kx)
        return ScheduledState(count, x_new, saddle.prox_G_conjugate(ascended, sigma), move)

    def _start(self, x: Tensor, u: Tree) -> ScheduledState:
        return ScheduledState(0, x, u, torch.zeros_like(x))
