"""Restarted PDHG, a classical opponent: begin anew at averages of iterates, with steps balanced
anew.

On photographs, restarts and balanced steps need about as many iterations as PDHG with the same
relaxation and the best ratio of step sizes; their gain is that the ratio need not be tuned. Without
relaxation they need more. Restarted Halpern iteration of the reflected steps (Lu and Yang, 2024)
was tried too, with and without balanced steps. It needs more iterations than relaxed PDHG to gaps
below 1e-2, and is not raced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator

from mirrordescent.execution import Run, fast_run, runner
from mirrordescent.methods import PDHG
from mirrordescent.methods.base import Method
from mirrordescent.methods.primal_dual import PDHGState
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, dot, tree_map

SAMPLES = 4  # iterates that enter the average in every period
# when to begin anew, as in the reference
ENOUGH = 0.2
SOME = 0.8
LONG = 0.36
SMOOTHING = 0.5  # of the logarithm of the step ratio


class RestartedState(NamedTuple):
    """The state of PDHG, that at the last restart, the sums of iterates since and their number,
    ratio, and gaps.

    ``first`` is the gap at the last restart, ``last`` that at the last look.
    """

    inner: PDHGState
    start: PDHGState
    x: Tree
    u: Tree
    number: int
    ratio: float
    first: float
    last: float

    @property
    def k(self) -> int:
        """Steps taken."""
        return self.inner.k


class RestartedPDHG(Method[RestartedState]):
    """PDHG that begins anew at an average of its iterates. Every ``period`` steps, with x̄, ū the
    means since then:

    .. code-block:: none

        fixed       (x, u) ← (x̄, ū)
        adaptive    d = the smaller duality gap f(x) − ℓ(u) of (x, u) and of (x̄, ū),
                    d₀ = d at the last restart;
                    (x, u) ← the better of both
                        if d ≤ 0.2·d₀,
                        or d ≤ 0.8·d₀ and d is larger than one period ago,
                        or more than 0.36 of all steps were taken since the last restart
                    ratio ← √(ratio·‖Δx‖/‖Δu‖),   Δ the change since the last restart

    The duality gap is finite, because ℓ uses that minimisers lie in a box; that of a batch is the
    sum. Only some iterates of every period enter the averages, so that the others are steps of
    PDHG's own kernel, many a call.

    Args:
        ratio: First ratio of the step sizes.
        period: Steps between looks.
        adaptive: Whether the duality gap decides, and balances the step sizes.
        relaxation: ρ of PDHG.

    Reference: Applegate, Díaz, Hinder, Lu, Lubin, O'Donoghue, Schudy, NeurIPS 2021 (PDLP).
    """

    def __init__(self, ratio: float, period: int, adaptive: bool, relaxation: float = 1.0) -> None:
        super().__init__()
        if period % SAMPLES:
            raise ValueError(
                f"RestartedPDHG needs a period that is a multiple of {SAMPLES}, got {period}"
            )
        self.ratio = float(ratio)
        self.period = period
        self.adaptive = adaptive
        self.relaxation = float(relaxation)

    def init(self, x0: Tree, problem: Problem | None = None) -> RestartedState:
        return _begun(self.inner_method(self.ratio).init(x0, problem), self.ratio, math.inf)

    def inner_method(self, ratio: float) -> PDHG:
        """Return the method of the steps."""
        return PDHG(ratio, self.relaxation)

    def step(
        self,
        problem: Problem,
        state: RestartedState,
        oracle: Oracle,
        generator: Generator | None = None,
    ) -> RestartedState:
        def plain(ratio: float) -> Run[PDHGState]:
            return lambda inner, _: self.inner_method(ratio).step(problem, inner, oracle)

        return self.advance(problem, state, 1, plain)

    def answer(self, state: RestartedState) -> Tree:
        return state.inner.x

    def advance(
        self,
        problem: Problem,
        state: RestartedState,
        steps: int,
        run: Callable[[float], Run[PDHGState]],
    ) -> RestartedState:
        """Take steps of PDHG, given its run for a ratio of step sizes, and restart if it is due."""
        stride = self.period // SAMPLES
        end = state.k + steps
        while state.k < end:
            count = min(end - state.k, stride - state.k % stride)
            state = state._replace(inner=run(state.ratio)(state.inner, count))
            if state.k % stride == 0:
                state = _added(state)
            if state.k % self.period == 0:
                state = self._looked(problem, state)
        return state

    def _looked(self, problem: Problem, state: RestartedState) -> RestartedState:
        """Begin anew if it is time."""
        x, u = (tree_map(lambda sums: sums / state.number, part) for part in (state.x, state.u))
        mean = PDHGState(state.k, x, u)
        if not self.adaptive:
            return _begun(mean, state.ratio, math.inf)
        here, there = (self._gap(problem, point) for point in (state.inner, mean))
        gap, better = (there, mean) if there < here else (here, state.inner)
        anew = gap <= ENOUGH * state.first or (gap <= SOME * state.first and gap > state.last)
        if not anew and state.k - state.start.k < LONG * state.k:
            return state._replace(last=gap)
        dx = _distance(better.x, state.start.x)
        du = _distance(better.u, state.start.u)
        ratio = (
            state.ratio ** (1 - SMOOTHING) * (dx / du) ** SMOOTHING
            if dx > 0 and du > 0
            else state.ratio
        )
        return _begun(better, ratio, gap)

    def _gap(self, problem: Problem, point: PDHGState) -> float:
        lower = PDHG(self.ratio).lower_bound(problem, point)
        assert lower is not None
        return float((problem.value(point.x) - lower).sum())


@runner(RestartedPDHG)
def restarted_run(
    method: RestartedPDHG, problem: Problem, oracle: Oracle
) -> Run[RestartedState] | None:
    """Return PDHG's fast run, with restarts in between."""
    if fast_run(method.inner_method(method.ratio), problem, oracle) is None:
        return None

    def fast(ratio: float) -> Run[PDHGState]:
        run = fast_run(method.inner_method(ratio), problem, oracle)
        assert run is not None
        return run

    return lambda state, steps: method.advance(problem, state, steps, fast)


def _begun(point: PDHGState, ratio: float, gap: float) -> RestartedState:
    x, u = (tree_map(torch.zeros_like, part) for part in (point.x, point.u))
    return RestartedState(point, point, x, u, 0, ratio, gap, gap)


def _added(state: RestartedState) -> RestartedState:
    x, u = (
        tree_map(torch.add, *parts)
        for parts in ((state.x, state.inner.x), (state.u, state.inner.u))
    )
    return state._replace(x=x, u=u, number=state.number + 1)


def _distance(a: Tree, b: Tree) -> float:
    change = tree_map(torch.sub, a, b)
    return float(dot(change, change).sum()) ** 0.5
