"""Classical gradient methods, with which mirror descent is compared."""

from typing import ClassVar, NamedTuple

import torch

from mirrordescent._internal.checks import require_not_negative
from mirrordescent.domains import Domain
from mirrordescent.methods.base import GradientMethod
from mirrordescent.methods.descent import MD
from mirrordescent.mirrors.quadratic import Euclidean
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import ScheduleLike, as_schedule
from mirrordescent.trees import Tree, descend, tree_map


class GD(MD):
    """Gradient descent, x⁺ = x − t_k g: mirror descent with the Euclidean map."""

    cli_names = ("gd",)

    def __init__(self, t: ScheduleLike) -> None:
        super().__init__(Euclidean(), t)


class ProjectedGradient(MD):
    """Projected (sub)gradient descent on a set X:  x⁺ = P_X(x − t_k g).

    This is mirror descent with ½‖·‖² on X.
    """

    def __init__(self, domain: Domain, t: ScheduleLike) -> None:
        super().__init__(Euclidean(domain), t)
        self.domain = domain


class NesterovState(NamedTuple):
    """Steps taken, the extrapolated point, and the iterate it is extrapolated from."""

    k: int
    x: Tree
    iterate: Tree


class Nesterov(GradientMethod[NesterovState]):
    """Nesterov's accelerated gradient method:  u⁺ = x − t_k ∇f(x),  x⁺ = u⁺ + k/(k+3) (u⁺ − u).

    k counts from 0. The answer is u.

    Reference: Nesterov 1983, with the momentum of Su, Boyd, Candès, JMLR 17 (2016).
    """

    cli_names: ClassVar[tuple[str, ...]] = ("nesterov",)

    def __init__(self, t: ScheduleLike) -> None:
        super().__init__()
        self.t = as_schedule(t, "t")

    def init(self, x0: Tree, problem: Problem | None = None) -> NesterovState:
        return NesterovState(0, x0, x0)

    def update(self, state: NesterovState, grad: Tree) -> NesterovState:
        t = self.t(state.k + 1)
        momentum = state.k / (state.k + 3)
        iterate = tree_map(lambda x, g: descend(x, g, t), state.x, grad)
        x = tree_map(lambda new, old: new + momentum * (new - old), iterate, state.iterate)
        return NesterovState(state.k + 1, x, iterate)

    def answer(self, state: NesterovState) -> Tree:
        """Return the iterate, not the extrapolated point."""
        return state.iterate


class ProjectedNesterov(Nesterov):
    """Nesterov's method on a set X:  u⁺ = P_X(x − t_k ∇f(x)),  x⁺ = P_X(u⁺ + k/(k+3) (u⁺ − u)).

    The extrapolated point is projected too, since f may not be defined outside.
    """

    def __init__(self, domain: Domain, t: ScheduleLike) -> None:
        super().__init__(t)
        self.domain = domain

    def update(self, state: NesterovState, grad: Tree) -> NesterovState:
        t = self.t(state.k + 1)
        momentum = state.k / (state.k + 3)
        iterate = self.domain.project(tree_map(lambda x, g: descend(x, g, t), state.x, grad))
        x = tree_map(lambda new, old: new + momentum * (new - old), iterate, state.iterate)
        return NesterovState(state.k + 1, self.domain.project(x), iterate)


class SGDState(NamedTuple):
    """Steps taken, the iterate, and the velocity."""

    k: int
    x: Tree
    velocity: Tree


class SGD(GradientMethod[SGDState]):
    """Gradient descent with heavy-ball momentum β:  v⁺ = βv + g,  x⁺ = x − t_k v⁺.

    Meant for stochastic oracles; the form of ``torch.optim.SGD``.
    """

    def __init__(self, t: ScheduleLike, momentum: float = 0.0) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        self.t = as_schedule(t, "t")
        self.momentum = float(momentum)

    def init(self, x0: Tree, problem: Problem | None = None) -> SGDState:
        return SGDState(0, x0, tree_map(torch.zeros_like, x0))

    def update(self, state: SGDState, grad: Tree) -> SGDState:
        t = self.t(state.k + 1)
        velocity = grad
        if self.momentum:
            velocity = tree_map(lambda v, g: self.momentum * v + g, state.velocity, grad)
        x = tree_map(lambda x, v: descend(x, v, t), state.x, velocity)
        return SGDState(state.k + 1, x, velocity)


class AdamState(NamedTuple):
    """Steps taken, the iterate, and the running first and second moments of the gradient."""

    k: int
    x: Tree
    m: Tree
    v: Tree


class Adam(GradientMethod[AdamState]):
    """Adam, and AdamW if the weight decay w is positive:

    .. code-block:: none

        m⁺ = β₁m + (1 − β₁)g,   v⁺ = β₂v + (1 − β₂)g²
        x⁺ = (1 − t_k w)x − t_k m̂/(√v̂ + ε),   m̂ = m⁺/(1 − β₁^(k+1)),  v̂ = v⁺/(1 − β₂^(k+1))

    Args:
        t: Step sizes.
        betas: β₁ and β₂ in [0, 1).
        epsilon: ε.
        decay: w.

    References: Kingma and Ba, ICLR 2015; Loshchilov and Hutter, ICLR 2019.
    """

    cli_names = ("adam",)

    def __init__(
        self,
        t: ScheduleLike,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        decay: float = 0.0,
    ) -> None:
        super().__init__()
        require_not_negative(decay=decay)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), got {betas}")
        self.t = as_schedule(t, "t")
        self.betas = (betas[0], betas[1])
        self.epsilon = epsilon
        self.decay = decay

    def init(self, x0: Tree, problem: Problem | None = None) -> AdamState:
        zero = tree_map(torch.zeros_like, x0)
        return AdamState(0, x0, zero, zero)

    def update(self, state: AdamState, grad: Tree) -> AdamState:
        k = state.k + 1
        t = self.t(k)
        first, second = self.betas
        m = tree_map(lambda m, g: torch.lerp(m, g, 1 - first), state.m, grad)
        v = tree_map(lambda v, g: torch.addcmul(second * v, g, g, value=1 - second), state.v, grad)
        length = t / (1 - first**k)
        root = (1 - second**k) ** 0.5
        old = state.x
        if self.decay:
            old = tree_map(lambda x: (1 - t * self.decay) * x, old)
        x = tree_map(lambda x, m, v: x - length * m / (v.sqrt() / root + self.epsilon), old, m, v)
        return AdamState(k, x, m, v)
