"""Dual-space preconditioning with second moments: what a map has done to a gradient, divided by its usual size."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch

from mirrordescent import kernels
from mirrordescent.methods.base import Tensors
from mirrordescent.methods.preconditioned import Preconditioned
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.by_kind import unit_directions_of
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import ScheduleLike
from mirrordescent.trees import Tree, tree_map

TINY = 1e-8  # beside numbers whose mean square is 1


class AdaptiveState(NamedTuple):
    """Steps taken, the iterate, and the running means of the gradients and of the squares of directions."""

    k: int
    x: Tree
    m: Tree
    n: Tree


class AdaptivePreconditioned(Preconditioned):
    """Dual-space preconditioning whose directions are divided by their usual size, entry by entry.

    .. code-block:: none

        m⁺ = βm + (1 − β)g,    v = βm⁺ + (1 − β)g  (or m⁺, without look-ahead)
        u = s(v)∇ψ*(v/c(v)),   n⁺ = β₂n + (1 − β₂)u²
        x⁺ = (1 − t_k w)x − t_k ℓ u/√(n⁺/(1 − β₂ᵏ⁺¹))

    u is the normalised direction of :class:`Preconditioned`, its entries of mean square 1, and ℓ is what the map scales
    it by. With the Euclidean map that is Adam, with momentum that looks ahead and gradients of one size; with the polar
    factor of matrices it evens out rows and columns that the factor leaves small, step after step. The division by the
    root keeps the mean square near 1, and at the first step it gives the sign of u.

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

    def __init__(
        self, mirror: MirrorMap, t: ScheduleLike, momentum: float = 0.0, second_momentum: float = 0.98,
        lookahead: bool = True, decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(mirror, t, momentum, lookahead, normalised=True, decay=decay)
        if not 0 <= second_momentum < 1:
            raise ValueError(f"second_momentum must be in [0, 1), got {second_momentum}")
        self.second_momentum = float(second_momentum)

    def init(self, x0: Tree, problem: Problem | None = None) -> AdaptiveState:  # type: ignore[override]
        return AdaptiveState(0, x0, tree_map(torch.zeros_like, x0), tree_map(torch.zeros_like, x0))

    def update(self, state: AdaptiveState, grad: Tree) -> AdaptiveState:  # type: ignore[override]
        m, v = self._momenta(state.m, grad)
        lengths = self.mirror.lengths(v)
        u = tree_map(torch.div, self.mirror.direction(v), lengths)
        n = tree_map(lambda n, u: torch.lerp(n, u.square(), 1 - self.second_momentum), state.n, u)
        root = self._root(state.k + 1)
        d = tree_map(lambda u, n, c: c * root * u / (n.sqrt() + TINY), u, n, lengths)
        return AdaptiveState(state.k + 1, self._moved(state, d), m, n)

    def together(self, count: int, maps: Sequence[MirrorMap], x: Tensors, beside: Tensors, g: Tensors) -> None:
        """m and n as in ``update``,  x ← (1 − tw)x − t ℓ u/√(n/(1 − β₂ᵏ))."""
        t, m, n = float(self.t(count)), beside[::2], beside[1::2]
        u, lengths = unit_directions_of(maps, self._momenta_in_place(m, g))
        steps, keep = [t * self._root(count) * length for length in lengths], 1 - t * self.decay
        if kernels.ready() and kernels.has_moments(x, n, u):
            kernels.adapted(x, n, u, steps, self.second_momentum, keep, TINY)
            return
        torch._foreach_mul_(n, self.second_momentum)
        torch._foreach_addcmul_(n, u, u, 1 - self.second_momentum)
        sizes = torch._foreach_sqrt(n)
        torch._foreach_add_(sizes, TINY)
        if self.decay:
            torch._foreach_mul_(x, keep)
        torch._foreach_addcdiv_(x, u, sizes, [-step for step in steps])

    def _root(self, count: int) -> float:
        """√(1 − β₂ᵏ): the means begin with 0."""
        return (1 - self.second_momentum**count) ** 0.5
