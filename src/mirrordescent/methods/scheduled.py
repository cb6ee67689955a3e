"""A primal-dual method with a schedule for each of its numbers, for learning on non-smooth f."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method
from mirrordescent.methods.primal_dual import (
    PrimalDual,
    Relaxed,
    as_relaxation,
    least_slack,
    relax,
    require_admissible,
    require_no_constraint,
)
from mirrordescent.mirrors import MirrorMap
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.schedules import Number, Schedule, ScheduleLike, as_schedule
from mirrordescent.trees import Tree, descend, tree_map


class ScheduledState(NamedTuple):
    """Steps taken, the primal and dual point of the last step, and the last change of the iterate.

    ``relaxed`` is the pair from which the next step begins; None if that is x and u.
    """

    k: int
    x: Tensor
    u: Tree
    move: Tensor
    relaxed: Relaxed | None = None

    @property
    def iterate(self) -> Relaxed:
        """The pair from which the next step begins."""
        return Relaxed(self.x, self.u) if self.relaxed is None else self.relaxed


class ScheduledSizes(NamedTuple):
    """τ, σ, a, m and ρ of a step or of several: numbers or tensors."""

    tau: Number
    sigma: Number
    ahead: Number
    momentum: Number
    relaxation: Number


class ScheduledPrimalDual(PrimalDual[ScheduledState]):
    """The method of Condat and Vũ with momentum and a schedule for each of its numbers:

    .. code-block:: none

        v = m_k (z − z_old) − τ_k ∇ψ*(∇F(z) + Kᵀw)
        x = P(z + v)                                   u = prox_{σG*}(w + σ_k K(x + a_k (x − z)))
        (z, w) ← (z, w) + ρ_k ((x, u) − (z, w))
        σ_k = 1/(ratio_k ‖K‖),                         τ_k = s_k /(c_k + σ_k ‖K‖²)

    or, if it is ``implicit``, with the prox of F in place of its gradient:

    .. code-block:: none

        x =  prox_{τF}(z + m_k (z − z_old) − τ_k Kᵀw),   τ_k = s_k ratio_k/‖K‖

    c_k = L/2 for ρ ≤ 1, and as in :class:`~mirrordescent.methods.CondatVu` for ρ > 1. With
    s = a = 1, no momentum, no map and a constant ρ this is CondatVu, or
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
        relaxation: ρ in (0, 2); None for 1.
    """

    def __init__(
        self,
        ratio: ScheduleLike = 1.0,
        stretch: ScheduleLike = 1.0,
        ahead: ScheduleLike = 1.0,
        momentum: ScheduleLike | None = None,
        mirror: MirrorMap | None = None,
        implicit: bool = False,
        relaxation: ScheduleLike | None = None,
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
        self.relaxation = None if relaxation is None else as_relaxation(relaxation)

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
        z, w = state.iterate
        count = state.k + 1
        tau, sigma, ahead, momentum, rho = self._sizes(saddle, _value_at(count))
        moved = z
        if self.momentum is not None:
            moved = descend(z, state.move, -momentum)
        slope = saddle.K_adjoint(w)
        if self.implicit:
            x = saddle.prox_F(descend(moved, slope, tau), tau)
        else:
            slope = slope + saddle.grad_F(z)
            if self.mirror is not None:
                slope = self.mirror.to_primal(slope)
            x = saddle.project(descend(moved, slope, tau))
        move = x - z
        Kx = saddle.K(descend(x, move, -ahead))
        ascended = tree_map(lambda w, Kx: descend(w, Kx, -sigma), w, Kx)
        u = saddle.prox_G_conjugate(ascended, sigma)
        if self.relaxation is None:
            return ScheduledState(count, x, u, move)
        relaxed = relax(rho, x, u, state.iterate)
        return ScheduledState(count, x, u, relaxed.x - z, relaxed)

    def step_sequences(self, saddle: SaddlePoint, first: int, count: int) -> ScheduledSizes:
        """Return the numbers of consecutive steps, each (count, 1) or (count, batch)."""
        return self._sizes(saddle, lambda schedule: schedule.sequence(first, count))

    def _sizes(self, saddle: SaddlePoint, evaluate: Callable[[Schedule], Number]) -> ScheduledSizes:
        """Return the numbers of a step or of several, given how to evaluate a schedule."""
        norm = saddle.K_norm
        rho: Number = 1.0
        if isinstance(self.relaxation, Schedule):
            rho = evaluate(self.relaxation)
            require_admissible(self, rho, 2.0)
        elif self.relaxation is not None:
            rho = self.relaxation
        sigma = 1 / (evaluate(self.ratio) * norm)
        curvature = sigma * norm**2
        if not self.implicit:
            curvature = curvature + least_slack(saddle.F_smoothness, rho, saddle.F_quadratic)
        tau = evaluate(self.stretch) / curvature
        momentum = 0.0 if self.momentum is None else evaluate(self.momentum)
        return ScheduledSizes(tau, sigma, evaluate(self.ahead), momentum, rho)

    def _start(self, x: Tensor, u: Tree) -> ScheduledState:
        relaxed = None if self.relaxation is None else Relaxed(x, u)
        return ScheduledState(0, x, u, torch.zeros_like(x), relaxed)


def _value_at(k: int) -> Callable[[Schedule], Number]:
    return lambda schedule: schedule(k)
