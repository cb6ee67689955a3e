"""Primal-dual methods: contestants that use proximal operators, and that certify themselves.

They solve  min_x F(x) + G(Kx) = min_x max_u F(x) + ⟨Kx, u⟩ − G*(u).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from torch import Generator, Tensor, nn

from mirrordescent.methods.base import Method
from mirrordescent.trees import Tree, dot, mix, tree_map

if TYPE_CHECKING:
    from mirrordescent.oracles import Oracle
    from mirrordescent.problems.base import Problem


class SaddlePoint(Protocol):
    """What a problem offers to primal-dual methods. x is a tensor, u a tensor or a dict."""

    @property
    def K_norm(self) -> float:
        """An upper bound on ‖K‖."""

    @property
    def F_convexity(self) -> float:
        """Strong convexity of F in ℓ₂, or 0."""

    @property
    def F_smoothness(self) -> float:
        """A Lipschitz constant of ∇F, where F is smooth."""

    def grad_F(self, x: Tensor) -> Tensor:
        """∇F, where F is smooth."""

    def K(self, x: Tensor) -> Tree:
        """Kx."""

    def K_adjoint(self, u: Tree) -> Tensor:
        """Kᵀu."""

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """argmin_x' F(x') + ‖x' − x‖²/(2τ)."""

    def prox_G_conjugate(self, u: Tree, sigma: float | Tensor) -> Tree:
        """argmin_u' G*(u') + ‖u' − u‖²/(2σ)."""

    def argmin_F(self, w: Tensor) -> Tensor:
        """argmin_x F(x) + ⟨w, x⟩, where F is strongly convex."""

    def lower_bound(self, u: Tree) -> Tensor:
        """A proven lower bound on the optimal value from any u: (batch,)."""


class PDHGState(NamedTuple):
    """Steps taken, and the primal and dual iterates; u is None before the first step."""

    k: int
    x: Tree
    u: Tree | None


class PDHG(Method[PDHGState]):
    """Primal-dual hybrid gradient, with x̄ = 2x⁺ − x:

    x⁺ = prox_{τF}(x − τKᵀu),  u⁺ = prox_{σG*}(u + σKx̄),  τ = ratio/‖K‖,  σ = 1/(ratio·‖K‖).

    ``ratio`` balances the two step sizes and decides the speed; it deserves tuning.

    Reference: Chambolle and Pock, J. Math. Imaging Vis. 40 (2011), Algorithm 1.
    """

    def __init__(self, ratio: float = 1.0) -> None:
        super().__init__()
        if not 0 < ratio < float("inf"):
            raise ValueError(f"PDHG needs a finite ratio > 0, got {ratio}")
        self.ratio = float(ratio)

    def init(self, x0: Tree) -> PDHGState:
        """Start at x0 with a zero dual variable."""
        return PDHGState(0, x0, None)

    def begin(self, problem: Problem, x: Tensor, curvature: float | None = None) -> PDHGState:
        """Start near a solution, with the dual variable that goes with it: u = prox_{aG*}(aKx).

        The larger the ``curvature`` a the nearer x must be; by default a = σ.
        """
        saddle = _saddle(problem, self)
        return PDHGState(0, x, _dual_near(saddle, x, curvature or self.step_sizes(saddle)[1]))

    def step_sizes(self, saddle: SaddlePoint) -> tuple[float, float]:
        """Return τ and σ."""
        return self.ratio / saddle.K_norm, 1 / (self.ratio * saddle.K_norm)

    def step(self, problem: Problem, state: PDHGState, oracle: Oracle, generator: Generator | None = None) -> PDHGState:
        """Take one primal and one dual proximal step."""
        saddle = _saddle(problem, self)
        tau, sigma = self.step_sizes(saddle)
        x = cast(Tensor, state.x)
        u = _zero_dual(saddle, x) if state.u is None else state.u
        x_new = saddle.prox_F(x - tau * saddle.K_adjoint(u), tau)
        ascended = tree_map(lambda u, Kx: torch.add(u, Kx, alpha=sigma), u, saddle.K(2 * x_new - x))
        return PDHGState(state.k + 1, x_new, saddle.prox_G_conjugate(ascended, sigma))

    def lower_bound(self, problem: Problem, state: PDHGState) -> Tensor | None:
        """Evaluate the dual at u."""
        return None if state.u is None else _saddle(problem, self).lower_bound(state.u)


class CondatVu(PDHG):
    """The method of Condat and Vũ, which takes the smooth F by its gradient, L-Lipschitz, and not by its prox:

    x⁺ = x − τ(∇F(x) + Kᵀu),  u⁺ = prox_{σG*}(u + σK(2x⁺ − x)),  σ = 1/(ratio·‖K‖),  1/τ = L/2 + σ‖K‖².

    References: Condat, J. Optim. Theory Appl. 158 (2013); Vũ, Adv. Comput. Math. 38 (2013).
    """

    def step_sizes(self, saddle: SaddlePoint) -> tuple[float, float]:
        """Return τ and σ."""
        sigma = 1 / (self.ratio * saddle.K_norm)
        return 1 / (saddle.F_smoothness / 2 + sigma * saddle.K_norm**2), sigma

    def step(self, problem: Problem, state: PDHGState, oracle: Oracle, generator: Generator | None = None) -> PDHGState:
        """Take one primal gradient step and one dual proximal step."""
        saddle = _saddle(problem, self)
        tau, sigma = self.step_sizes(saddle)
        x = cast(Tensor, state.x)
        u = _zero_dual(saddle, x) if state.u is None else state.u
        x_new = x - tau * (saddle.grad_F(x) + saddle.K_adjoint(u))
        ascended = tree_map(lambda u, Kx: torch.add(u, Kx, alpha=sigma), u, saddle.K(2 * x_new - x))
        return PDHGState(state.k + 1, x_new, saddle.prox_G_conjugate(ascended, sigma))


class DualFISTAState(NamedTuple):
    """Steps taken, the primal point, the dual iterate, its extrapolation, and the momentum count."""

    k: int
    x: Tree
    u: Tree | None
    v: Tree | None
    theta: Tensor | None


class DualFISTA(Method[DualFISTAState]):
    """FISTA on the dual of a problem with μ-strongly convex F. With x(v) = argmin_x F(x) + ⟨Kx, v⟩:

    u⁺ = prox_{σG*}(v + σKx(v)),  θ⁺ = (1 + √(1+4θ²))/2,  v⁺ = u⁺ + (θ−1)/θ⁺ (u⁺ − u),  σ = μ/‖K‖².

    The momentum of a sample restarts when it points against the gradient. The answer is x(u).

    References: Beck and Teboulle, IEEE Trans. Image Process. 18 (2009); O'Donoghue and Candès,
    Found. Comput. Math. 15 (2015).
    """

    def init(self, x0: Tree) -> DualFISTAState:
        """Start at u = 0: FISTA on the dual has no use for x0 but to know its shape."""
        return DualFISTAState(0, x0, None, None, None)

    def begin(self, problem: Problem, x: Tensor, curvature: float | None = None) -> DualFISTAState:
        """Start near a solution, with the dual variable that goes with it: u = prox_{aG*}(aKx), by default a = σ."""
        saddle = _saddle(problem, self)
        u = _dual_near(saddle, x, curvature or self._step_size(saddle))
        return DualFISTAState(0, x, u, u, x.new_ones(x.shape[0]))

    def step(
        self, problem: Problem, state: DualFISTAState, oracle: Oracle, generator: Generator | None = None
    ) -> DualFISTAState:
        """Take one proximal gradient step in the dual and extrapolate."""
        saddle = _saddle(problem, self)
        sigma = self._step_size(saddle)
        if state.u is None or state.v is None or state.theta is None:
            x0 = cast(Tensor, state.x)
            u = v = _zero_dual(saddle, x0)
            theta = x0.new_ones(x0.shape[0])
        else:
            u, v, theta = state.u, state.v, state.theta
        slope = saddle.K(saddle.argmin_F(saddle.K_adjoint(v)))
        ascended = tree_map(lambda v, s: torch.add(v, s, alpha=sigma), v, slope)
        u_new = saddle.prox_G_conjugate(ascended, sigma)
        theta_new = (1 + (1 + 4 * theta.square()).sqrt()) / 2
        change = tree_map(torch.sub, u_new, u)
        against = dot(tree_map(torch.sub, v, u_new), change) > 0
        momentum = torch.where(against, 0.0, (theta - 1) / theta_new)
        v_new = tree_map(lambda a, d: a + momentum.reshape(-1, *[1] * (d.ndim - 1)) * d, u_new, change)
        theta_new = torch.where(against, torch.ones_like(theta), theta_new)
        x = saddle.argmin_F(saddle.K_adjoint(u_new))
        return DualFISTAState(state.k + 1, x, u_new, v_new, theta_new)

    def lower_bound(self, problem: Problem, state: DualFISTAState) -> Tensor | None:
        """Evaluate the dual at u."""
        return None if state.u is None else _saddle(problem, self).lower_bound(state.u)

    def _step_size(self, saddle: SaddlePoint) -> float:
        if saddle.F_convexity <= 0:
            raise TypeError(f"DualFISTA needs a strongly convex data term, which {type(saddle).__name__} lacks")
        return saddle.F_convexity / saddle.K_norm**2


class LPDState(NamedTuple):
    """Steps taken, the primal iterate, the one before, the last proximal point, and the dual iterate."""

    k: int
    x: Tree
    x_old: Tree
    p: Tree
    u: Tree | None


class LPD(Method[LPDState]):
    """A learned primal-dual scheme with relaxations a, c ∈ (0, 2) and steps σ, τ, convergent for all its parameters:

    .. code-block:: none

        q      =  prox_{σG*}(u + σK(x_old + (1 + a/c)(p − x_old)))
        p⁺     =  prox_{τF}(x − τKᵀ(u + c(q − u)))
        u⁺     =  u + c(q − u)
        x⁺     =  x + a(p⁺ − x),   x_old⁺ = x

    The four scalars are free numbers θ: c = 2 sigmoid θ₁, a = 2 sigmoid θ₂, and with K scaled to norm 1
    στ = B sigmoid θ₃, σ/τ = exp 2θ₄, B = ca(2−c)(2−a)/(c+a−ca)² ≤ 1. At c = a = 1 this is PDHG.

    Reference: Banert, Ringh, Adler, Karlsson, Öktem, SIAM J. Imaging Sci. 13 (2020), Algorithm 4.4.
    """

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.0, 0.0, 3.0, 0.0]))

    def scalars(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return c, a, σ, τ for an operator of norm 1."""
        c, a = 2 * self.theta[0].sigmoid(), 2 * self.theta[1].sigmoid()
        bound = c * a * (2 - c) * (2 - a) / (c + a - c * a).square()
        mean = (bound * self.theta[2].sigmoid()).sqrt()
        ratio = self.theta[3].exp()
        return c, a, mean * ratio, mean / ratio

    def init(self, x0: Tree) -> LPDState:
        """Start at x0 with a zero dual variable."""
        return LPDState(0, x0, x0, x0, None)

    def step(self, problem: Problem, state: LPDState, oracle: Oracle, generator: Generator | None = None) -> LPDState:
        """Take one relaxed dual and one relaxed primal proximal step."""
        saddle = _saddle(problem, self)
        c, a, sigma, tau = self.scalars()
        sigma, tau = sigma / saddle.K_norm, tau / saddle.K_norm
        x, x_old, p = cast(Tensor, state.x), cast(Tensor, state.x_old), cast(Tensor, state.p)
        u = _zero_dual(saddle, x) if state.u is None else state.u
        ahead = saddle.K(x_old + (1 + a / c) * (p - x_old))
        q = saddle.prox_G_conjugate(tree_map(lambda u, Kx: u + sigma * Kx, u, ahead), sigma)
        u = mix(c, q, u)
        p = saddle.prox_F(x - tau * saddle.K_adjoint(u), tau)
        return LPDState(state.k + 1, x + a * (p - x), x, p, u)

    def lower_bound(self, problem: Problem, state: LPDState) -> Tensor | None:
        """Evaluate the dual at u."""
        return None if state.u is None else _saddle(problem, self).lower_bound(state.u)


def _saddle(problem: Problem, method: Method[Any]) -> SaddlePoint:
    if not hasattr(problem, "prox_G_conjugate"):
        raise TypeError(
            f"{type(method).__name__} needs proximal operators, which {type(problem).__name__} does not offer"
        )
    return cast(SaddlePoint, problem)


def _zero_dual(saddle: SaddlePoint, x: Tensor) -> Tree:
    return tree_map(torch.zeros_like, saddle.K(x))


def _dual_near(saddle: SaddlePoint, x: Tensor, a: float) -> Tree:
    """prox_{aG*}(aKx)."""
    return saddle.prox_G_conjugate(tree_map(lambda Kx: a * Kx, saddle.K(x)), a)
