"""Dual-space preconditioning with shorter steps along noisy gradients."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from mirrordescent.methods.adaptive import AdaptivePreconditioned
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import TYPICAL_LENGTH, OverRun, ScheduleLike
from mirrordescent.trees import Tree, per_sample, sum_per_sample, tree_map


class DampedState(NamedTuple):
    """The state of :class:`AdaptivePreconditioned`, and the mean q of ‖g‖²."""

    k: int
    x: Tree
    m: Tree
    n: Tree
    w: Tree
    q: Tree


class DampedPreconditioned(AdaptivePreconditioned):
    """:class:`AdaptivePreconditioned` with steps multiplied by a signal-to-noise ratio, by leaf:

    .. code-block:: none

        q⁺ = βq + (1 − β)‖g‖²,    p = βq⁺ + (1 − β)‖g‖²
        r = ‖v‖/√(W_k p)                       W_k = 1 − β^(k+2), the sum of the weights in v
        x⁺ = (1 − t_k·decay)x − t_k r^η ℓ u/√(n⁺/w⁺)

    A normalised direction has the same length for signal and for noise; r distinguishes them. v and
    p are sums over the same gradients with the same weights, so r ≤ 1 by the Cauchy–Schwarz
    inequality, and r = 1 if all gradients are equal. If gradients are independent noise, r tends to
    the root of the sum of the squared weights; without lookahead this is √((1 − β)/(1 + β)). r does
    not change if all gradients are multiplied by a number. Other letters are those of
    :class:`AdaptivePreconditioned`, and the formulas for p and W_k are those with lookahead. With
    η = 0 the steps are those of :class:`AdaptivePreconditioned`.

    Args:
        mirror: Mirror map ψ.
        t: Step sizes.
        momentum: β in [0, 1), for runs of 100 steps or of unknown length.
        second_momentum: β₂ in [0, 1), likewise.
        lookahead: Whether v looks one step ahead.
        decay: Decoupled weight decay.
        damping: η ≥ 0.
        memory: Exponent by which moments become longer in long runs (:meth:`over`).

    >>> import torch
    >>> from mirrordescent.mirrors import Euclidean
    >>> method = DampedPreconditioned(Euclidean(), t=0.1, momentum=0.5, damping=1.0)
    >>> state = method.update(method.init(torch.zeros(1, 1)), torch.tensor([[1.0]]))
    >>> method.update(state, torch.tensor([[-1.0]])).x - state.x
    tensor([[0.0714]])
    """

    cli_names: ClassVar[tuple[str, ...]] = ("damped-preconditioned",)

    def __init__(
        self,
        mirror: MirrorMap,
        t: ScheduleLike,
        momentum: float = 0.0,
        second_momentum: float = 0.98,
        lookahead: bool = True,
        decay: float = 0.0,
        damping: float = 0.0,
        memory: float = 0.0,
    ) -> None:
        super().__init__(mirror, t, momentum, second_momentum, lookahead, decay)
        if not damping >= 0 or not memory >= 0:
            raise ValueError(f"damping and memory must be ≥ 0, got {damping} and {memory}")
        self.damping = float(damping)
        self.memory = float(memory)

    def over(self, steps: int) -> DampedPreconditioned:
        """Return the method for a run of N steps.

        Its schedule is stretched, and 1 − β and 1 − β₂ are multiplied by (N/100)^−memory, but are
        at most ½.
        """
        factor = (steps / TYPICAL_LENGTH) ** -self.memory
        first, second = (
            1 - min(0.5, factor * (1 - beta)) for beta in (self.momentum, self.second_momentum)
        )
        t = self.t.over(steps) if isinstance(self.t, OverRun) else self.t
        return self.replace(t=t, momentum=first, second_momentum=second, memory=0.0)

    def init(self, x0: Tree, problem: Problem | None = None) -> DampedState:  # type: ignore[override]
        start = super().init(x0, problem)
        return DampedState(*start, tree_map(lambda x: x.new_zeros(len(x)), x0))

    def update(self, state: DampedState, grad: Tree) -> DampedState:  # type: ignore[override]
        m, v = self._momenta(state.m, grad)
        n, w, d = self._adapted(state, v)
        squares = tree_map(lambda g: self.mirror.sum_of_parts(sum_per_sample(g.square())), grad)
        q, ahead = self._momenta(state.q, squares)
        weight = self.momentum_weight(state.k + 1)
        d = tree_map(lambda d, v, a: per_sample(self._factor(v, a, weight), d) * d, d, v, ahead)
        return DampedState(state.k + 1, self._moved(state, d), m, n, w, q)

    def momentum_weight(self, count: int) -> float:
        """Return the sum of the weights of gradients in v at a step, counted from 1."""
        return 1 - self.momentum ** (count + self.lookahead)

    def _factor(self, v: Tensor, ahead: Tensor, weight: float) -> Tensor:
        """Return r^η for each sample."""
        squares = self.mirror.sum_of_parts(sum_per_sample(v.square()))
        ratios = squares / (weight * ahead).clamp(min=torch.finfo(ahead.dtype).tiny)
        return ratios.clamp(max=1.0) ** (self.damping / 2)
