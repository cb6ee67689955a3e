"""Dual-space preconditioning, in which the mirror map is applied to gradients."""

from typing import ClassVar, NamedTuple

import torch

from mirrordescent._internal.checks import require_not_negative
from mirrordescent.methods.base import GradientMethod, State
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import ScheduleLike, as_schedule
from mirrordescent.trees import Tree, descend, mix, tree_map


class PreconditionedState(NamedTuple):
    """Steps taken, the iterate, and the running mean of the gradients."""

    k: int
    x: Tree
    m: Tree


class Preconditioned(GradientMethod[PreconditionedState]):
    """Dual-space preconditioning with momentum. For k = 0, 1, …, with the gradient g at x:

    .. code-block:: none

        m⁺ = βm + (1 − β)g,    v = βm⁺ + (1 − β)g  (or m⁺, without look-ahead)
        x⁺ = (1 − t_k w)x − t_k ∇ψ*(v)

    The map is applied to gradients only, so x may lie anywhere. With β = w = 0 it is mirror descent
    with points and gradients exchanged: if ψ*, as a function of gradients, is 1/t-smooth relative
    to f*, then ψ*(∇f(x_k)) decreases and is at most (f(x₀) − f*)/(tk) (Maddison et al.; measured by
    :func:`mirrordescent.theory.dual_preconditioning.dual_descent`). With momentum it is Lion-𝒦. The
    Euclidean map gives gradient descent with momentum, a sign gives Lion without its second β, and
    the polar factor of matrices (:class:`~mirrordescent.mirrors.SpectralPower` with p = 0) gives
    Muon.

    Args:
        mirror: Mirror map ψ.
        t: Step sizes.
        momentum: β in [0, 1).
        lookahead: Whether v looks one step ahead, as in Nesterov's momentum.
        normalised: Whether the direction is s(v)∇ψ*(v/c(v)) in place of ∇ψ*(v), leaf by leaf
            (:meth:`MirrorMap.direction`). Then the entries of a step have the mean square t_k²,
            whatever the size of the gradients. The factor s belongs to the step size.
        decay: w, a decoupled weight decay.

    >>> import torch
    >>> from mirrordescent.mirrors import SoftSign
    >>> method = Preconditioned(SoftSign(1e-6), t=0.1)
    >>> state = method.init(torch.zeros(1, 2))
    >>> method.update(state, torch.tensor([[3.0, -0.01]])).x
    tensor([[-0.1000,  0.1000]])

    References: Maddison, Paulin, Teh, Doucet, SIAM J. Optim. 31 (2021); Chen et al., Lion-𝒦, ICLR
    2024.
    """

    cli_names: ClassVar[tuple[str, ...]] = ("preconditioned",)
    maps_points = False

    mirror: MirrorMap

    def __init__(
        self,
        mirror: MirrorMap,
        t: ScheduleLike,
        momentum: float = 0.0,
        lookahead: bool = True,
        normalised: bool = False,
        decay: float = 0.0,
    ) -> None:
        super().__init__(mirror)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        require_not_negative(decay=decay)
        self.t = as_schedule(t, "t")
        self.momentum = float(momentum)
        self.lookahead = lookahead
        self.normalised = normalised
        self.decay = float(decay)

    @property
    def adjustable_momentum(self) -> float:
        return self.momentum

    def set_momentum(self, momentum: float) -> None:
        self.momentum = momentum

    def init(self, x0: Tree, problem: Problem | None = None) -> PreconditionedState:
        return PreconditionedState(0, x0, tree_map(torch.zeros_like, x0))

    def update(self, state: PreconditionedState, grad: Tree) -> PreconditionedState:
        m, v = self._momenta(state.m, grad)
        d = self.mirror.direction(v) if self.normalised else self.mirror.to_primal(v)
        return PreconditionedState(state.k + 1, self._moved(state, d), m)

    def _momenta(self, m: Tree, grad: Tree) -> tuple[Tree, Tree]:
        """Return m⁺ and v."""
        m = mix(self.momentum, m, grad)
        if not self.lookahead:
            return m, m
        return m, mix(self.momentum, m, grad)

    def _moved(self, state: State, d: Tree) -> Tree:
        """Return (1 − tw)x − td."""
        t = self.t(state.k + 1)
        old = state.x
        if self.decay:
            old = tree_map(lambda x: (1 - t * self.decay) * x, old)
        return tree_map(lambda x, d: descend(x, d, t), old, d)
