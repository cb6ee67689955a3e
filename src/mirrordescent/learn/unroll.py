"""The iteration inside an autograd graph: what is differentiated, and what of it is kept in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor
from torch.autograd.function import once_differentiable

from mirrordescent.methods.base import Method, State
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, tree_map

Differentiation = Literal["full", "checkpointed", "truncated"]


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

    ``"full"`` keeps the whole graph. ``"checkpointed"`` keeps the last of segments of ¾√N steps, and of the others
    only the states between them, and computes the rest again on the way back, so that memory grows like √N.
    ``"truncated"`` lets no gradient pass from one segment to the one before; ``segment`` is then the length over which
    gradients flow.

    With ``every`` > 1 only every so many answers are measured, or those it names, and the last. Values are measured
    inside the segments, so that a checkpointed run need not keep the iterates either.
    """
    if differentiation not in get_args(Differentiation):
        raise ValueError(
            f"differentiation must be one of {', '.join(get_args(Differentiation))}, got {differentiation!r}"
        )
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}")
    # Shorter than √N, because the graph of a step is larger than a state.
    length = horizon if differentiation == "full" else segment or max(1, round(0.75 * math.sqrt(horizon)))

    def run(state: State, steps: int, random: Generator | None) -> tuple[State, list[Tensor]]:
        measured = []
        for _ in range(steps):
            state = method.step(problem, state, oracle, random)
            looked_at = state.k % every == 0 if isinstance(every, int) else state.k in every
            if looked_at or state.k == horizon:
                measured.append(measure(state.k, method.answer(state)))
        return state, measured

    learned = [p for p in dict.fromkeys((*method.parameters(), *oracle.parameters())) if p.requires_grad]
    state, values = method.init(x0, problem), []
    segments = list(_segments(horizon, length))
    if differentiation == "checkpointed":
        segments.reverse()  # the last is to be a long one, since it is computed but once
    for steps in segments:
        if differentiation == "checkpointed" and state.k + steps < horizon:
            state, measured = _recomputed(run, state, steps, generator, learned)
        else:
            state, measured = run(state, steps, generator)
            if differentiation == "truncated":
                state = _with_tensors(Tensor.detach, state)
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
    learned: Sequence[Tensor],
) -> tuple[State, list[Tensor]]:
    """Run a segment of which nothing is kept but its start."""

    def segment(start: Sequence[Tensor], random: Generator | None) -> tuple[State, list[Tensor]]:
        given = iter(start)
        return run(_with_tensors(lambda _: next(given), state), steps, random)

    start, ended = _tensors(state), list[Any]()
    computed = iter(
        _Recomputed.apply(segment, generator, ended.append, len(start), *start, *learned)  # type: ignore[no-untyped-call]
    )
    return _with_tensors(lambda _: next(computed), ended[0])


class _Recomputed(torch.autograd.Function):
    """A function of some tensors, and of others that it knows, which is computed again when gradients are asked for.

    A checkpoint of torch would do, but for the gradients inside of the function: it keeps what they need all the same,
    and computes it once more for each of them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[[Sequence[Tensor], Generator | None], Any],
        generator: Generator | None,
        keep: Callable[[Any], None],
        count: int,
        *tensors: Tensor,
    ) -> Any:
        ctx.function, ctx.count = function, count
        ctx.replayed = None if generator is None else generator.clone_state()  # to draw again what is drawn now
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        result = function(tensors[:count], generator)
        keep(result)
        return tuple(_tensors(result))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        given, known = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in given]
        random = None if ctx.replayed is None else ctx.replayed.clone_state()
        with torch.enable_grad():
            outputs = _tensors(ctx.function(inputs, random))
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o.requires_grad]
        sources = [tensor for tensor in (*inputs, *known) if tensor.requires_grad]
        found: Iterator[Tensor | None] = iter([None] * len(sources))
        if pairs:
            reached, weights = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(reached, sources, weights, allow_unused=True))
        return None, None, None, None, *(next(found) if t.requires_grad else None for t in (*inputs, *known))


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors of a state, in order."""
    found: list[Tensor] = []
    _with_tensors(found.append, value)
    return found


def _with_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Change every tensor of a state, field by field."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _with_tensors(change, part) for name, part in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*(_with_tensors(change, part) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_with_tensors(change, part) for part in value)
    return value
