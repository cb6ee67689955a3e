"""Dual-space preconditioning with second moments: what a map has done to a gradient, divided by its
usual size.
"""

from typing import ClassVar, NamedTuple

import torch

from mirrordescent.methods.preconditioned import Preconditioned
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import ScheduleLike
from mirrordescent.trees import Tree, per_sample, tree_map

TINY = 1e-8  # beside numbers whose mean square is 1


class AdaptiveState(NamedTuple):
    """Steps taken, the iterate, running means of gradients and of squares of directions, and the
    weights of these.
    """

    k: int
    x: Tree
    m: Tree
    n: Tree
    w: Tree


class AdaptivePreconditioned(Preconditioned):
    """Dual-space preconditioning whose directions are divided by their usual size, entry by entry.

    .. code-block:: none

        m⁺ = βm + (1 − β)g,    v = βm⁺ + (1 − β)g  (or m⁺, without look-ahead)
        u = s(v)∇ψ*(v/c(v)),   n⁺ = β₂n + (1 − β₂)u²,    w⁺ = β₂w + 1 − β₂
        x⁺ = (1 − t_k·decay)x − t_k ℓ u/√(n⁺/w⁺)

    u is the normalised direction of :class:`Preconditioned`, its entries of mean square 1, and ℓ is
    what the map scales it by. With the Euclidean map that is much like Adam, except that second
    moments are those of momenta of one size; behind the polar factor of matrices they even out rows
    and columns that it leaves small, step after step. Since n/w is a mean of squares whose mean
    over the entries is 1, steps keep about their length; the first is the sign of u.

    Args:
        mirror, t, momentum, lookahead, decay: see :class:`Preconditioned`.
        second_momentum: β₂ in [0, 1).

    >>> import torch
    >>> from mirrordescent.mirrors import Euclidean
    >>> method = AdaptivePreconditioned(Euclidean(), t=0.1)
    >>> method.update(method.init(torch.zeros(1, 2)), torch.tensor([[3.0, -0.01]])).x
    tensor([[-0.1000,  0.1000]])
    """

    called: ClassVar[tuple[str, ...]] = ("adaptive-preconditioned",)

    # Its states are not those of the class it extends, and nobody hands one the states of the
    # other.

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
        sizes = self.mirror.direction_sizes(v)
        u = tree_map(torch.div, self.mirror.direction(v), sizes)
        n = tree_map(lambda n, u: torch.lerp(n, u.square(), 1 - self.second_momentum), state.n, u)
        w = tree_map(lambda w: self.second_momentum * w + (1 - self.second_momentum), state.w)
        d = tree_map(
            lambda u, n, w, c: c * per_sample(w.sqrt(), u) * u / (n.sqrt() + TINY), u, n, w, sizes
        )
        return AdaptiveState(state.k + 1, self._moved(state, d), m, n, w)
