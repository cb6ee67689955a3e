"""Dual-space preconditioning with second moments of the directions."""

from typing import Any, ClassVar, NamedTuple

import torch

from mirrordescent.methods.preconditioned import Preconditioned
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import ScheduleLike
from mirrordescent.trees import Tree, per_sample, tree_map

TINY = 1e-8  # added to roots of second moments, whose mean square is 1


class AdaptiveState(NamedTuple):
    """Steps taken, the iterate, and running means with the weights of the second one.

    m is the mean of gradients, n that of squared directions, and w the weight of n.
    """

    k: int
    x: Tree
    m: Tree
    n: Tree
    w: Tree


class AdaptivePreconditioned(Preconditioned):
    """Dual-space preconditioning with directions divided by their root mean square, entry by entry:

    .. code-block:: none

        m⁺ = βm + (1 − β)g,    v = βm⁺ + (1 − β)g  (or m⁺, without look-ahead)
        u = s(v)∇ψ*(v/c(v)),   n⁺ = β₂n + (1 − β₂)u²,    w⁺ = β₂w + 1 − β₂
        x⁺ = (1 − t_k·decay)x − t_k ℓ u/√(n⁺/w⁺)

    u is the normalised direction of :class:`Preconditioned`, with entries of mean square 1, and ℓ
    the size that the map gives it. With the Euclidean map this is similar to Adam, except that the
    second moments are those of normalised momenta. After the polar factor of matrices, second
    moments enlarge rows and columns that it leaves small. Since the mean of n/w over the entries is
    1, the lengths of steps hardly change. The first step is the sign of u.

    Args:
        mirror: Mirror map ψ.
        t: Step sizes.
        momentum: β in [0, 1).
        second_momentum: β₂ in [0, 1).
        lookahead: Whether v looks one step ahead.
        decay: Decoupled weight decay.

    >>> import torch
    >>> from mirrordescent.mirrors import Euclidean
    >>> method = AdaptivePreconditioned(Euclidean(), t=0.1)
    >>> method.update(method.init(torch.zeros(1, 2)), torch.tensor([[3.0, -0.01]])).x
    tensor([[-0.1000,  0.1000]])
    """

    cli_names: ClassVar[tuple[str, ...]] = ("adaptive-preconditioned",)

    # Its states differ from those of the parent class; the two are never exchanged.

    def __init__(
        self,
        mirror: MirrorMap,
        t: ScheduleLike,
        momentum: float = 0.0,
        second_momentum: float = 0.98,
        lookahead: bool = True,
        decay: float = 0.0,
    ) -> None:
        super().__init__(mirror, t, momentum, lookahead, normalised=True, decay=decay)
        if not 0 <= second_momentum < 1:
            raise ValueError(f"second_momentum must be in [0, 1), got {second_momentum}")
        self.second_momentum = float(second_momentum)

    def init(self, x0: Tree, problem: Problem | None = None) -> AdaptiveState:  # type: ignore[override]
        zeros = tree_map(torch.zeros_like, x0)
        return AdaptiveState(
            0,
            x0,
            zeros,
            tree_map(torch.zeros_like, x0),
            tree_map(lambda x: x.new_zeros(len(x)), x0),
        )

    def update(self, state: AdaptiveState, grad: Tree) -> AdaptiveState:  # type: ignore[override]
        m, v = self._momenta(state.m, grad)
        n, w, d = self._adapted(state, v)
        return AdaptiveState(state.k + 1, self._moved(state, d), m, n, w)

    def _adapted(self, state: Any, v: Tree) -> tuple[Tree, Tree, Tree]:
        """Return n⁺, w⁺ and ℓ u/√(n⁺/w⁺)."""
        sizes = self.mirror.direction_sizes(v)
        u = tree_map(torch.div, self.mirror.direction(v), sizes)
        n = tree_map(lambda n, u: torch.lerp(n, u.square(), 1 - self.second_momentum), state.n, u)
        w = tree_map(lambda w: self.second_momentum * w + (1 - self.second_momentum), state.w)
        d = tree_map(
            lambda u, n, w, c: c * per_sample(w.sqrt(), u) * u / (n.sqrt() + TINY), u, n, w, sizes
        )
        return n, w, d
