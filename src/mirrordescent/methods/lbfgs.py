"""L-BFGS, the usual quasi-Newton method for smooth problems without constraints, in batches."""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent._internal.checks import require_positive
from mirrordescent.methods.base import Method
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, dot, norm, per_sample, tree_map, where

SHORTENINGS = 40  # largest number of trials of one step
FIRST_FACTOR = 1 / 8  # by which the first step is shortened, since its length is a guess
FACTOR = 1 / 2  # by which later steps are shortened
ARMIJO = 1e-4  # required share of the predicted decrease
MIN_CURVATURE = 1e-10  # pairs of less curvature, relative to their lengths, are not used


class Pair(NamedTuple):
    """Changes s of the point and y of the gradient, and 1/⟨s, y⟩, or 0 if it is not used."""

    s: Tree
    y: Tree
    rho: Tensor


class LBFGSState(NamedTuple):
    """Steps taken, the iterate, its gradient and value, and the last pairs, the newest first.

    There are always as many pairs as the method remembers, so that states of different ages can be
    mixed sample by sample. Pairs of steps that were not taken yet are 0, and are not used.
    """

    k: int
    x: Tree
    g: Tree
    value: Tensor
    pairs: tuple[Pair, ...]


class LBFGS(Method[LBFGSState]):
    """L-BFGS:  x⁺ = x − aHg, where the last m pairs s = x⁺ − x, y = g⁺ − g define H.

    Hg is computed by the two-loop recursion. a = 1 is halved until f decreases by 10⁻⁴ a⟨g, Hg⟩,
    sample by sample. The first step tries H = I, and shortens a by factors of 8. Nothing depends on
    the units of the data. Pairs without curvature are not used. The method is for smooth problems
    on all of Rⁿ. A step costs a gradient and a value of f, and one more value for every halving.

    Args:
        memory: Number m of pairs.

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
            raise TypeError(
                "L-BFGS compares gradients, and cannot use the stochastic oracle "
                f"{type(oracle).__name__}"
            )
        return oracle

    def init(self, x0: Tree, problem: Problem | None = None) -> LBFGSState:
        if problem is None:
            raise TypeError(
                "L-BFGS compares values of f, and needs the problem from the start: "
                "call init(x0, problem)"
            )
        value = problem.value(x0)
        zeros = tree_map(torch.zeros_like, x0)
        unused = Pair(zeros, zeros, torch.zeros_like(value))
        return LBFGSState(0, x0, problem.grad(x0), value, (unused,) * self.memory)

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
        # Rounding may have spoilt the pairs. If the direction does not descend, use the gradient.
        downhill = slope > 0
        direction = where(downhill, direction, g)
        slope = torch.where(downhill, slope, dot(g, g))
        x, value = self._backtrack(problem, state, direction, slope)
        new = oracle(problem, x, state.k + 1, generator)
        s = tree_map(torch.sub, x, state.x)
        y = tree_map(torch.sub, new, g)
        curvature = dot(s, y)
        used = curvature > MIN_CURVATURE * norm(s) * norm(y)
        pair = Pair(s, y, torch.where(used, 1 / curvature, torch.zeros_like(curvature)))
        return LBFGSState(state.k + 1, x, new, value, (pair, *state.pairs)[: self.memory])

    def _direction(self, state: LBFGSState) -> Tree:
        """Return Hg."""
        q = state.g
        weights = []
        pairs = state.pairs[: state.k]
        for s, y, rho in pairs:
            a = rho * dot(s, q)
            weights.append(a)
            q = _add(q, y, -a)
        q = tree_map(lambda leaf: per_sample(self._scale(state), leaf) * leaf, q)
        for (s, y, rho), a in zip(reversed(pairs), reversed(weights), strict=True):
            q = _add(q, s, a - rho * dot(y, q))
        return q

    def _scale(self, state: LBFGSState) -> Tensor:
        """Return ⟨s, y⟩/⟨y, y⟩ of the newest used pair, or 1 if there is none."""
        scale = torch.ones_like(state.value)
        for _, y, rho in reversed(state.pairs[: state.k]):
            tiny = torch.finfo(rho.dtype).tiny
            scale = torch.where(rho > 0, 1 / (rho * dot(y, y)).clamp(min=tiny), scale)
        return scale

    def _backtrack(
        self, problem: Problem, state: LBFGSState, direction: Tree, slope: Tensor
    ) -> tuple[Tree, Tensor]:
        """Return the next points and their values; a sample that cannot decrease f stays."""
        a = torch.ones_like(slope)
        rounding = 4 * torch.finfo(slope.dtype).eps * state.value.abs()
        x = state.x
        value = state.value
        searching = slope > 0
        factor = FACTOR if state.k else FIRST_FACTOR
        for _ in range(SHORTENINGS):
            trial = _add(state.x, direction, -a)
            new = problem.value(trial)
            good = searching & (new <= state.value - ARMIJO * a * slope + rounding)
            x = where(good, trial, x)
            value = torch.where(good, new, value)
            searching = searching & ~good
            if not bool(searching.any()):
                break
            a = torch.where(searching, factor * a, a)
        return x, value


def _add(first: Tree, second: Tree, weight: Tensor) -> Tree:
    """Return first + weight·second, with a weight for every sample."""
    return tree_map(lambda a, b: a + per_sample(weight, b) * b, first, second)
