"""The iteration inside an autograd graph: what is differentiated, and what of it is kept in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal, cast, get_args

import torch
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint

from mirrordescent.methods.base import Method, State
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, tree_map

Differentiation = Literal["full", "checkpointed", "truncated"]


class FirstOrder(Oracle):
    """An oracle whose answers count as constants: the meta-gradient does not pass through ∇f."""

    def __init__(self, base: Oracle) -> None:
        super().__init__()
        self.base, self.stochastic = base, base.stochastic

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        """Return the base oracle's answer, computed without a graph."""
        with torch.no_grad():
            return self.base(problem, tree_map(torch.Tensor.detach, x), k, generator)


def unroll(
    method: Method[Any],
    problem: Problem,
    x0: Tree,
    horizon: int,
    oracle: Oracle,
    generator: Generator | None = None,
    *,
    differentiation: Differentiation = "full",
    segment: int | None = None,
    every: int | Collection[int] = 1,
    measure: Callable[[int, Tree], Tensor],
) -> list[Tensor]:
    """Run a method for ``horizon`` steps and return what ``measure(k, x_k)`` makes of the answers x_1, …, x_N.

    ``"full"`` keeps the whole graph. ``"checkpointed"`` keeps the states between segments of ½√N steps and computes
    the rest again on the way back, so that memory grows like √N. ``"truncated"`` lets no gradient pass from one segment
    to the one before; ``segment`` is then the length over which gradients flow.

    With ``every`` > 1 only every so many answers are measured, or those it names, and the last. Values are measured
    inside the segments, so that a checkpointed run need not keep the iterates either.
    """
    if differentiation not in get_args(Differentiation):
        raise ValueError(
            f"differentiation must be one of {', '.join(get_args(Differentiation))}, got {differentiation!r}"
        )
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}")
    # Shorter than √N, because the graph of a step is larger than a state; every step is computed twice in any case.
    length = horizon if differentiation == "full" else segment or max(1, math.isqrt(horizon) // 2)

    def run(state: State, steps: int, random: Generator | None) -> tuple[State, list[Tensor]]:
        measured = []
        for _ in range(steps):
            state = method.step(problem, state, oracle, random)
            looked_at = state.k % every == 0 if isinstance(every, int) else state.k in every
            if looked_at or state.k == horizon:
                measured.append(measure(state.k, method.answer(state)))
        return state, measured

    state, values = method.init(x0), []
    for steps in _segments(horizon, length):
        if differentiation == "checkpointed":
            state, measured = _recomputed(run, state, steps, generator)
        else:
            state, measured = run(state, steps, generator)
            if differentiation == "truncated":
                state = _detached(state)
        values += measured
    return values


def _segments(horizon: int, length: int) -> Iterator[int]:
    while horizon > 0:
        yield min(length, horizon)
        horizon -= length


def _recomputed(
    run: Callable[[State, int, Generator | None], tuple[State, list[Tensor]]],
    state: State,
    steps: int,
    generator: Generator | None,
) -> tuple[State, list[Tensor]]:
    """Run a segment under a checkpoint. The second run must draw what the first one drew."""
    before = None if generator is None else generator.get_state()

    def segment(state: State) -> tuple[State, list[Tensor]]:
        if generator is None or before is None:
            return run(state, steps, None)
        replayed = torch.Generator(generator.device)
        replayed.set_state(before)
        result = run(state, steps, replayed)
        generator.set_state(replayed.get_state())
        return result

    return cast(tuple[State, list[Tensor]], checkpoint(segment, state, use_reentrant=False, preserve_rng_state=False))


def _detached(value: Any) -> Any:
    """Cut a state off its history, field by field."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, dict):
        return {name: leaf.detach() for name, leaf in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*map(_detached, value))
    return value
