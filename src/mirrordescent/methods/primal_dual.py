"""Primal-dual methods, which use proximal operators and prove lower bounds.

They solve  min_x F(x) + G(Kx) = min_x max_u F(x) + ⟨Kx, u⟩ − G*(u).
"""

import math
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn

from mirrordescent._internal.checks import require_positive
from mirrordescent.domains import WholeSpace
from mirrordescent.methods.base import Method, S
from mirrordescent.mirrors import MirrorMap
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.schedules import Number, Schedule, ScheduleLike, as_schedule
from mirrordescent.trees import Tree, descend, dot, mix, per_sample, spread, tree_map


class PrimalDual(Method[S]):
    """A method with a dual variable u, which begins at u⁰ = prox_{aG*}(aKx⁰).

    By default a = 0 and u⁰ = 0. If x⁰ is close to a solution, a curvature a > 0 gives a better dual
    variable. The larger a is, the closer x⁰ must be. ``dual_step`` is a safe choice.

    To add a method, write ``step``, ``dual_step`` and ``_start``. States need a field ``u``.
    """

    def __init__(self) -> None:
        super().__init__()  # without a map

    def init(self, x0: Tree, problem: Problem | None = None, curvature: float | Tensor = 0.0) -> S:
        """Return the first state.

        Args:
            x0: Primal start.
            problem: Problem, which is required.
            curvature: a, one number for all samples, or one for each.
        """
        saddle = self.saddle(problem)
        a = torch.as_tensor(curvature, dtype=cast(Tensor, x0).dtype, device=cast(Tensor, x0).device)
        near = tree_map(lambda Kx: Kx * spread(a, Kx), saddle.K(cast(Tensor, x0)))
        return self._start(cast(Tensor, x0), saddle.prox_G_conjugate(near, curvature))

    def warm_start(self, state: S, problem: Problem) -> S:
        """Return a state with the same dual variable, made feasible for the new problem."""
        u = self.saddle(problem).prox_G_conjugate(cast(Any, state).u, 0.0)
        return self._start(cast(Tensor, self.answer(state)), u)

    def dual_step(self, problem: Problem) -> Number:
        """Return the dual step size σ: a number, or one for every sample, (batch,)."""
        raise NotImplementedError

    def lower_bound(self, problem: Problem, state: S) -> Tensor | None:
        return self.saddle(problem).bound_of_pair(
            cast(Tensor, self.answer(state)), cast(Any, state).u
        )

    def tight_bound(self, problem: Problem, state: S) -> Tensor | None:
        return self.saddle(problem).tight_bound(
            cast(Any, state).u, cast(Tensor, self.answer(state))
        )

    def saddle(self, problem: Problem | None) -> SaddlePoint:
        """Return the saddle-point form of a problem, or raise a TypeError if it has none."""
        if problem is None:
            raise TypeError(
                f"{type(self).__name__} needs the problem from the start: call init(x0, problem)"
            )
        saddle = problem.saddle_point()
        if saddle is None:
            name = type(problem).__name__
            raise TypeError(
                f"{type(self).__name__} needs proximal operators, which {name} does not offer"
            )
        return saddle

    def _start(self, x: Tensor, u: Tree) -> S:
        """Return the state before the first step, given both variables."""
        raise NotImplementedError


class Relaxed(NamedTuple):
    """The primal and dual iterate from which the next step of a relaxed method begins."""

    x: Tensor
    u: Tree


class PDHGState(NamedTuple):
    """Steps taken, the primal and dual point of the last step, and the relaxed iterates.

    ``relaxed`` is None if there is no relaxation. Then the next step begins at x and u.
    """

    k: int
    x: Tensor
    u: Tree
    relaxed: Relaxed | None = None

    @property
    def iterate(self) -> Relaxed:
        """The pair from which the next step begins."""
        return Relaxed(self.x, self.u) if self.relaxed is None else self.relaxed


class PDHG(PrimalDual[PDHGState]):
    """Primal-dual hybrid gradient from iterates (z, w), with over-relaxation by ρ:

    .. code-block:: none

        x = prox_{τF}(z − τKᵀw),   u = prox_{σG*}(w + σK(2x − z)),   τ = ratio/‖K‖
        (z, w) ← (z, w) + ρ_k((x, u) − (z, w)),                      σ = 1/(ratio·‖K‖)

    x and u are feasible for F and G*, also if ρ > 1 moves (z, w) beyond them. So x is the answer,
    and u proves the lower bounds. The method converges for every ratio and all ρ in [ε, 2 − ε],
    ε > 0. With ρ near 1.8 it often needs a third fewer steps than with ρ = 1.

    Args:
        ratio: Ratio that balances the two step sizes. The speed depends on it, so tune it. The
            first value of a schedule is used as the ratio; so it can depend on the problem
            (:class:`~mirrordescent.conditioning.ConditionalLaws`).
        relaxation: ρ in (0, 2), a number or a schedule; 1 for none.

    References: Chambolle and Pock, J. Math. Imaging Vis. 40 (2011), Algorithm 1; Condat, J. Optim.
        Theory Appl. 158 (2013), Theorem 3.3, with ρ.
    """

    cli_names: ClassVar[tuple[str, ...]] = ("pdhg",)

    ratio: float | Schedule
    relaxation: float | Schedule

    def __init__(self, ratio: float | Schedule = 1.0, relaxation: ScheduleLike = 1.0) -> None:
        super().__init__()
        self.relaxation = as_relaxation(relaxation)
        if isinstance(ratio, Schedule):
            self.ratio = ratio
            return
        require_positive(ratio=ratio)
        self.ratio = float(ratio)

    @property
    def relaxes(self) -> bool:
        """Whether ρ ≠ 1."""
        return isinstance(self.relaxation, Schedule) or self.relaxation != 1.0

    def step_sizes(self, saddle: SaddlePoint) -> tuple[Number, Number]:
        """Return τ and σ: numbers, or tensors (batch,)."""
        ratio = self._balance()
        return ratio / saddle.K_norm, 1 / (ratio * saddle.K_norm)

    def relaxation_at(self, saddle: SaddlePoint, k: int) -> Number:
        """Return ρ_k: a number, or a tensor (batch,).

        Raises:
            ValueError: If the method need not converge with this value.
        """
        if not isinstance(self.relaxation, Schedule):
            return self.relaxation  # checked by the constructor
        rho = self.relaxation(k)
        require_admissible(self, rho, self.largest_relaxation(saddle))
        return rho

    def relaxation_sequence(self, saddle: SaddlePoint, first: int, count: int) -> Number:
        """Return ρ at consecutive counts, (count, 1) or (count, batch), or one number for all."""
        if not isinstance(self.relaxation, Schedule):
            return self.relaxation
        rho = self.relaxation.sequence(first, count)
        require_admissible(self, rho, self.largest_relaxation(saddle))
        return rho

    def largest_relaxation(self, saddle: SaddlePoint) -> Number:
        """Return the least upper bound of ρ for which the method is known to converge."""
        return 2.0

    def dual_step(self, problem: Problem) -> Number:
        return self.step_sizes(self.saddle(problem))[1]

    def _balance(self) -> Number:
        return self.ratio(1) if isinstance(self.ratio, Schedule) else self.ratio

    def step(
        self, problem: Problem, state: PDHGState, oracle: Oracle, generator: Generator | None = None
    ) -> PDHGState:
        saddle = self.saddle(problem)
        z, w = state.iterate
        tau, sigma = self.step_sizes(saddle)
        x = self._descend(saddle, z, saddle.K_adjoint(w), tau)
        ascended = tree_map(lambda w, Kx: descend(w, Kx, -sigma), w, saddle.K(2 * x - z))
        u = saddle.prox_G_conjugate(ascended, sigma)
        count = state.k + 1
        if not self.relaxes:
            return PDHGState(count, x, u)
        return PDHGState(count, x, u, relax(self.relaxation_at(saddle, count), x, u, state.iterate))

    def _descend(self, saddle: SaddlePoint, x: Tensor, pull: Tensor, tau: Number) -> Tensor:
        return saddle.prox_F(descend(x, pull, tau), tau)

    def _start(self, x: Tensor, u: Tree) -> PDHGState:
        return PDHGState(0, x, u, Relaxed(x, u) if self.relaxes else None)


class CondatVu(PDHG):
    """The method of Condat and Vũ, which uses the gradient of a smooth F in place of its prox:

    .. code-block:: none

        x = ∇ψ*(∇ψ(z) − τ(∇F(z) + Kᵀw)),   u = prox_{σG*}(w + σK(2x − z))
        (z, w) ← (z, w) + ρ_k((x, u) − (z, w))
        σ = 1/(ratio·‖K‖),                 1/τ = c + σ‖K‖²,  with norms in the geometry of ψ

    L is the Lipschitz constant of ∇F. Without a map ψ(x) = ½‖x‖², as published. With a map, primal
    steps are mirror steps (Chambolle and Pock's form with Bregman distances). For example, a
    :class:`~mirrordescent.mirrors.Stencil` damps the frequencies on which K is large, so that
    ‖K‖² ≤ 8 shrinks to a fifth, and the steps grow five times.

    **Relaxation.** The method converges for 0 < ρ < 2 − (L/2)/c. If F is quadratic, it is a
    proximal-point method as soon as c ≥ L, and converges for 0 < ρ < 2. The steps are as long as ρ
    permits:

    .. code-block:: none

        c = L/(2(2 − ρ₁)), but at least L/2, and at most L if F is quadratic

    So ρ = 1 gives c = L/2. If ρ is a schedule, its first value determines c, and a later value must
    not be larger than c permits.

    Args:
        ratio: Ratio that balances the two step sizes, as in :class:`PDHG`.
        mirror: Linear map; None for ψ(x) = ½‖x‖².
        relaxation: ρ in (0, 2), a number or a schedule; 1 for none.

    References: Condat, J. Optim. Theory Appl. 158 (2013), Theorem 3.1; Vũ, Adv. Comput. Math. 38
        (2013); Chambolle and Pock, Math. Program. 159 (2016); Condat, Kitahara, Contreras and
        Hirabayashi, SIAM Rev. 65 (2023), for quadratic F.
    """

    def __init__(
        self,
        ratio: float | Schedule = 1.0,
        mirror: MirrorMap | None = None,
        relaxation: ScheduleLike = 1.0,
    ) -> None:
        super().__init__(ratio, relaxation)
        if mirror is not None and not mirror.linear:
            raise TypeError(f"CondatVu needs a linear map, got {type(mirror).__name__}")
        self.mirror = mirror

    def saddle(self, problem: Problem | None) -> SaddlePoint:
        """Return the form whose F has a gradient."""
        require_no_constraint(self, problem)
        return super().saddle(problem).explicit()

    def step_sizes(self, saddle: SaddlePoint) -> tuple[Number, Number]:
        sigma = 1 / (self._balance() * saddle.K_norm)
        square = saddle.K_norm**2
        if self.mirror is not None:
            square = saddle.K_norm_in(self.mirror) ** 2
        return 1 / (self._slack(saddle) + sigma * square), sigma

    def largest_relaxation(self, saddle: SaddlePoint) -> Number:
        smoothness = self._smoothness(saddle)
        slack = self._slack(saddle)
        if saddle.F_quadratic:
            enough = smoothness <= slack
            if isinstance(enough, Tensor):
                return torch.where(enough, 2.0, 2 - smoothness / (2 * slack))
            if enough:
                return 2.0
        return 2 - smoothness / (2 * slack)

    def _smoothness(self, saddle: SaddlePoint) -> float:
        """Return L in the geometry of ψ."""
        if self.mirror is None:
            return saddle.F_smoothness
        return saddle.F_smoothness / self.mirror.convexity_in_l2()

    def _slack(self, saddle: SaddlePoint) -> Number:
        """Return c = 1/τ − σ‖K‖²."""
        rho = self.relaxation(1) if isinstance(self.relaxation, Schedule) else self.relaxation
        return least_slack(self._smoothness(saddle), rho, saddle.F_quadratic)

    def _descend(self, saddle: SaddlePoint, x: Tensor, pull: Tensor, tau: Number) -> Tensor:
        slope = saddle.grad_F(x) + pull
        if self.mirror is None:
            return saddle.project(descend(x, slope, tau))
        return descend(x, self.mirror.to_primal(slope), tau)


def as_relaxation(relaxation: ScheduleLike) -> float | Schedule:
    """Return a schedule, or a number in (0, 2)."""
    if not isinstance(relaxation, int | float):
        return as_schedule(relaxation, "relaxation")
    if not 0 < relaxation < 2:
        raise ValueError(
            f"relaxation must be a number in (0, 2), or a schedule; got {relaxation}. "
            "1 is no relaxation, and 1.8 is often fast"
        )
    return float(relaxation)


def require_admissible(method: Method[Any], rho: Number, largest: Number) -> None:
    """Raise a ValueError unless 0 < ρ < 2 and ρ ≤ largest, up to rounding."""
    rho = torch.as_tensor(rho).detach()
    bound = torch.as_tensor(largest).detach().to(rho)
    rounding = 8 * torch.finfo(rho.dtype).eps
    if bool(((rho > 0) & (rho < 2) & (rho <= bound * (1 + rounding))).all()):
        return
    raise ValueError(
        f"{type(method).__name__} needs a relaxation in (0, 2) that is at most "
        f"{float(bound.min()):.4g}, which the first value of the schedule permits; got values from "
        f"{float(rho.min()):.4g} to {float(rho.max()):.4g}. Let the schedule begin with its "
        "largest value"
    )


def least_slack(smoothness: float, rho: Number, quadratic: bool) -> Number:
    """Return the least c = 1/τ − σ‖K‖² for which a relaxation converges.

    This is L/(2(2 − ρ)), but at least L/2, and at most L if F is quadratic.

    >>> least_slack(1.0, 1.0, False), least_slack(1.0, 1.75, False), least_slack(1.0, 1.75, True)
    (0.5, 2.0, 1.0)
    """
    most = 1.0 if quadratic else math.inf
    if isinstance(rho, Tensor):
        return smoothness * (0.5 / (2 - rho)).clamp(0.5, most)
    return smoothness * min(max(0.5 / (2 - rho), 0.5), most)


def relax(rho: Number, x: Tensor, u: Tree, start: Relaxed) -> Relaxed:
    """Return (z, w) + ρ((x, u) − (z, w)), where (z, w) is the start of the step."""
    return Relaxed(cast(Tensor, mix(rho, x, start.x)), mix(rho, u, start.u))


def require_no_constraint(method: Method[Any], problem: Problem | None) -> None:
    """Raise a TypeError if a method with a map is applied to a problem with constraints.

    Steps in the geometry of a map would have to be projected in this geometry.
    """
    if (
        method.mirror is not None
        and problem is not None
        and not isinstance(problem.domain, WholeSpace)
    ):
        raise TypeError(
            f"{type(method).__name__} with a map cannot handle the constraint "
            f"{problem.domain.description} of {type(problem).__name__}; use it without a map"
        )


class DualFISTAState(NamedTuple):
    """Steps taken, the primal point, the dual iterate, its extrapolation, and θ."""

    k: int
    x: Tensor
    u: Tree
    v: Tree
    theta: Tensor


class DualFISTA(PrimalDual[DualFISTAState]):
    """FISTA on the dual of a problem with μ-strongly convex F. With x(v) = argmin_x F(x) + ⟨Kx, v⟩:

    u⁺ = prox_{σG*}(v + σKx(v)),  θ⁺ = (1 + √(1+4θ²))/2,  v⁺ = u⁺ + (θ−1)/θ⁺ (u⁺ − u),  σ = μ/‖K‖².

    The momentum of a sample restarts (θ = 1) when it points against the gradient. The answer is
    x(u).

    References: Beck and Teboulle, IEEE Trans. Image Process. 18 (2009); O'Donoghue and Candès,
    Found. Comput. Math. 15 (2015).
    """

    cli_names = ("dual-fista",)

    def dual_step(self, problem: Problem) -> float:
        saddle = self.saddle(problem)
        if saddle.F_convexity <= 0:
            raise TypeError(
                f"DualFISTA needs a strongly convex data term, which {type(problem).__name__} lacks"
            )
        return saddle.F_convexity / saddle.K_norm**2

    def step(
        self,
        problem: Problem,
        state: DualFISTAState,
        oracle: Oracle,
        generator: Generator | None = None,
    ) -> DualFISTAState:
        saddle = self.saddle(problem)
        sigma = self.dual_step(problem)
        theta = state.theta
        slope = saddle.K(saddle.argmin_F(saddle.K_adjoint(state.v)))
        ascended = tree_map(lambda v, s: torch.add(v, s, alpha=sigma), state.v, slope)
        u = saddle.prox_G_conjugate(ascended, sigma)
        grown = (1 + (1 + 4 * theta.square()).sqrt()) / 2
        change = tree_map(torch.sub, u, state.u)
        against = dot(tree_map(torch.sub, state.v, u), change) > 0
        momentum = torch.where(against, 0.0, (theta - 1) / grown)
        v = tree_map(lambda a, d: a + per_sample(momentum, d) * d, u, change)
        x = saddle.argmin_F(saddle.K_adjoint(u))
        return DualFISTAState(
            state.k + 1, x, u, v, torch.where(against, torch.ones_like(theta), grown)
        )

    def _start(self, x: Tensor, u: Tree) -> DualFISTAState:
        return DualFISTAState(0, x, u, u, x.new_ones(x.shape[0]))


class LPDState(NamedTuple):
    """Steps taken, the primal iterate and the previous one, the proximal point, and the dual."""

    k: int
    x: Tensor
    x_old: Tensor
    p: Tensor
    u: Tree


class LPD(PrimalDual[LPDState]):
    """A learned primal-dual method that converges for all values of its parameters:

    .. code-block:: none

        q      =  prox_{σG*}(u + σK(x_old + (1 + a/c)(p − x_old)))
        p⁺     =  prox_{τF}(x − τKᵀ(u + c(q − u)))
        u⁺     =  u + c(q − u)
        x⁺     =  x + a(p⁺ − x),   x_old⁺ = x

    a, c ∈ (0, 2) are relaxations, and σ, τ step sizes. They are functions of four learned numbers
    θ: c = 2 sigmoid θ₁, a = 2 sigmoid θ₂, and with K scaled to norm 1, στ = B sigmoid θ₃,
    σ/τ = exp 2θ₄, B = ca(2−c)(2−a)/(c+a−ca)² ≤ 1. At c = a = 1 this is PDHG.

    Reference: Banert, Ringh, Adler, Karlsson, Öktem, SIAM J. Imaging Sci. 13 (2020), Algorithm 4.4.
    """

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.0, 0.0, 3.0, 0.0]))

    def scalars(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return c, a, σ, τ for an operator of norm 1."""
        c = 2 * self.theta[0].sigmoid()
        a = 2 * self.theta[1].sigmoid()
        bound = c * a * (2 - c) * (2 - a) / (c + a - c * a).square()
        mean = (bound * self.theta[2].sigmoid()).sqrt()
        ratio = self.theta[3].exp()
        return c, a, mean * ratio, mean / ratio

    def dual_step(self, problem: Problem) -> float:
        return float(self.scalars()[2].detach()) / self.saddle(problem).K_norm

    def step(
        self, problem: Problem, state: LPDState, oracle: Oracle, generator: Generator | None = None
    ) -> LPDState:
        saddle = self.saddle(problem)
        c, a, sigma, tau = self.scalars()
        sigma = sigma / saddle.K_norm
        tau = tau / saddle.K_norm
        x = state.x
        x_old = state.x_old
        p = state.p
        ahead = saddle.K(x_old + (1 + a / c) * (p - x_old))
        q = saddle.prox_G_conjugate(tree_map(lambda u, Kx: u + sigma * Kx, state.u, ahead), sigma)
        u = mix(c, q, state.u)
        p = saddle.prox_F(x - tau * saddle.K_adjoint(u), tau)
        return LPDState(state.k + 1, x + a * (p - x), x, p, u)

    def _start(self, x: Tensor, u: Tree) -> LPDState:
        return LPDState(0, x, x, x, u)
