"""The quasi-Newton method that smooth problems without constraints are usually given to, for a
batch of them.
"""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent._internal.checks import require_positive
from mirrordescent.methods.base import Method
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, dot, norm, per_sample, tree_map, where

HALVINGS = 40  # of a step at most
ARMIJO = 1e-4  # the share of the predicted fall that a step has to bring
CURVED = 1e-10  # pairs of less curvature, relative to their lengths, are left out


class Pair(NamedTuple):
    """How a step moved the point and the gradient, and 1/⟨s, y⟩, or 0 where the pair is not used:
    (batch,).
    """

    s: Tree
    y: Tree
    rho: Tensor


class LBFGSState(NamedTuple):
    """Steps taken, the iterate, its gradient and value, and the last pairs, the newest first."""

    k: int
    x: Tree
    g: Tree
    value: Tensor
    pairs: tuple[Pair, ...]


class LBFGS(Method[LBFGSState]):
    """L-BFGS:  x⁺ = x − aHg, with H made of the last m pairs s = x⁺ − x, y = g⁺ − g by the two-loop
    recursion.

    a = 1 is halved until f falls by 10⁻⁴ a⟨g, Hg⟩, sample by sample; the first step has the length
    1, or that of the gradient if it is shorter. Pairs without curvature are left out. For smooth
    problems on all of Rⁿ. A step costs a gradient and a value, more where a step has to be
    shortened.

    Args:
        memory: m.

    >>> import torch
    >>> from mirrordescent import Quadratic, solve
    >>> bowl = Quadratic(torch.tensor([1.0, 100.0]), centre=torch.ones(1, 2))
    >>> bool(solve(bowl, LBFGS(), iterations=15).value < 1e-6)
    True

    Reference: Liu and Nocedal, Math. Program. 45 (1989).
    """

    def __init__(self, memory: int = 10) -> None:
        super().__init__()
        require_positive(memory=memory)
        self.memory = int(memory)

    def resolve_oracle(self, oracle: Oracle) -> Oracle:
        if oracle.stochastic:
            raise TypeError(f"L-BFGS compares gradients, and cannot use {type(oracle).__name__}")
        return oracle

    def init(self, x0: Tree, problem: Problem | None = None) -> LBFGSState:
        if problem is None:
            raise TypeError(
                "L-BFGS looks at values, and has to know the problem from the start: init(x0, problem)"
            )
        return LBFGSState(0, x0, problem.grad(x0), problem.value(x0), ())

    def step(
        self,
        problem: Problem,
        state: LBFGSState,
        oracle: Oracle,
        generator: Generator | None = None,
    ) -> LBFGSState:
        g = state.g
        direction = self._direction(state)
        slope = dot(g, direction)
        # Where rounding has spoilt the pairs, the direction does not descend: take the gradient.
        downhill = slope > 0
        direction = where(downhill, direction, g)
        slope = torch.where(downhill, slope, dot(g, g))
        x, value = self._searched(problem, state, direction, slope)
        new = oracle(problem, x, state.k + 1, generator)
        s = tree_map(torch.sub, x, state.x)
        y = tree_map(torch.sub, new, g)
        curvature = dot(s, y)
        used = curvature > CURVED * norm(s) * norm(y)
        pair = Pair(s, y, torch.where(used, 1 / curvature, torch.zeros_like(curvature)))
        return LBFGSState(state.k + 1, x, new, value, (pair, *state.pairs)[: self.memory])

    def _direction(self, state: LBFGSState) -> Tree:
        """Return Hg."""
        q = state.g
        weights = []
        for s, y, rho in state.pairs:
            a = rho * dot(s, q)
            weights.append(a)
            q = _add(q, y, -a)
        q = tree_map(lambda leaf: per_sample(self._scale(state), leaf) * leaf, q)
        for (s, y, rho), a in zip(reversed(state.pairs), reversed(weights), strict=True):
            q = _add(q, s, a - rho * dot(y, q))
        return q

    def _scale(self, state: LBFGSState) -> Tensor:
        """⟨s, y⟩/⟨y, y⟩ of the newest pair that is used; at first the length that makes a step of
        at most 1.
        """
        scale = 1 / norm(state.g).clamp(min=1)
        for _, y, rho in reversed(state.pairs):
            scale = torch.where(
                rho > 0, 1 / (rho * dot(y, y)).clamp(min=torch.finfo(rho.dtype).tiny), scale
            )
        return scale

    def _searched(
        self, problem: Problem, state: LBFGSState, direction: Tree, slope: Tensor
    ) -> tuple[Tree, Tensor]:
        """Return the next points and their values; a sample that cannot fall any more stays where
        it is.
        """
        a = torch.ones_like(slope)
        rounding = 4 * torch.finfo(slope.dtype).eps * state.value.abs()
        x = state.x
        value = state.value
        searching = slope > 0
        for _ in range(HALVINGS):
            trial = _add(state.x, direction, -a)
            new = problem.value(trial)
            good = searching & (new <= state.value - ARMIJO * a * slope + rounding)
            x = where(good, trial, x)
            value = torch.where(good, new, value)
            searching = searching & ~good
            if not bool(searching.any()):
                break
            a = torch.where(searching, a / 2, a)
        return x, value


def _add(first: Tree, second: Tree, weight: Tensor) -> Tree:
    """first + weight·second, with a weight for every sample."""
    return tree_map(lambda a, b: a + per_sample(weight, b) * b, first, second)
