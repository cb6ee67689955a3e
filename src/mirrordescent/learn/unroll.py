"""The iteration inside an autograd graph: what is differentiated, and how much of it is kept in
memory.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor, nn
from torch.autograd.function import once_differentiable

from mirrordescent.execution import steps_for
from mirrordescent.methods.base import Method, State
from mirrordescent.oracles import Oracle, require_generator
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, map_tensors

Judge: TypeAlias = Callable[[list[Tensor]], Tensor]


@dataclass(frozen=True)
class Unrolling:
    """x_1, …, x_N of a method on a batch of problems, and what ``measure(k, x_k)`` makes of those
    that are looked at.

    The fields are those of :func:`unroll`; ``compiled`` is for runs without a graph.
    """

    method: Method[Any]
    problem: Problem
    x0: Tree
    horizon: int
    oracle: Oracle
    every: int | Collection[int]
    measure: Callable[[int, Tree], Tensor]
    compiled: bool = False

    def begin(self) -> State:
        """Return the state before the first step."""
        return self.method.init(self.x0, self.problem)

    def run(
        self, state: State, steps: int, generator: Generator | None
    ) -> tuple[State, list[Tensor]]:
        """Take some steps; return the state after them, and what was measured on the way."""
        advance = steps_for(
            self.method, self.problem, self.oracle, generator, None if self.compiled else False
        )
        measured = []
        end = state.k + steps
        for k in range(state.k + 1, end + 1):
            if self._looked_at(k) or k == end:
                state = advance(state, k - state.k)
            if self._looked_at(k):
                measured.append(self.measure(k, self.method.answer(state)))
        return state, measured

    def whole(self, generator: Generator | None) -> list[Tensor]:
        """Take all steps, and return what was measured."""
        return self.run(self.begin(), self.horizon, generator)[1]

    def segments(self, length: int | None) -> list[int]:
        """Cut the run into segments of this many steps, or about ¾√N; the last may be shorter."""
        length = length or max(1, round(0.75 * math.sqrt(self.horizon)))
        return [min(length, self.horizon - k) for k in range(0, self.horizon, length)]

    @property
    def learned(self) -> list[nn.Parameter]:
        """The parameters of the method and the oracle that are to be learned."""
        return [
            p
            for p in dict.fromkeys((*self.method.parameters(), *self.oracle.parameters()))
            if p.requires_grad
        ]

    def _looked_at(self, k: int) -> bool:
        return k == self.horizon or (
            k % self.every == 0 if isinstance(self.every, int) else k in self.every
        )


@dataclass(frozen=True)
class Differentiation(ABC):
    """How d/dθ of a run is computed. To add a kind, write ``run``; a TOML file names it by its
    class.
    """

    @abstractmethod
    def run(self, unrolling: Unrolling, judge: Judge, generator: Generator | None) -> Tensor:
        """Return what ``judge`` makes of all that was measured, so that its gradients are those of
        this kind.
        """


@dataclass(frozen=True)
class Full(Differentiation):
    """The whole graph is kept."""

    def run(self, unrolling: Unrolling, judge: Judge, generator: Generator | None) -> Tensor:
        return judge(unrolling.whole(generator))


@dataclass(frozen=True)
class Checkpointed(Differentiation):
    """The same gradients with memory that grows like √N: of all segments but the last, only the
    states between them are kept, and the rest is computed again on the way back.

    Args:
        segment: their length; by default ¾√N, less than √N because the graph of a step is larger
            than a state.
    """

    segment: int | None = None

    def __post_init__(self) -> None:
        _require_length(self.segment)

    def run(self, unrolling: Unrolling, judge: Judge, generator: Generator | None) -> Tensor:
        *before, last = reversed(
            unrolling.segments(self.segment)
        )  # a long one is last, since it is computed only once
        state = unrolling.begin()
        measured = []
        for steps in before:
            state, found = _recomputed(unrolling, state, steps, generator)
            measured += found
        return judge(measured + unrolling.run(state, last, generator)[1])


@dataclass(frozen=True)
class Truncated(Differentiation):
    """No gradient passes from one segment to the one before, so that none can explode over more
    steps than a segment.

    Args:
        segment: the number of steps over which gradients flow; ¾√N by default.
    """

    segment: int | None = None

    def __post_init__(self) -> None:
        _require_length(self.segment)

    def run(self, unrolling: Unrolling, judge: Judge, generator: Generator | None) -> Tensor:
        state = unrolling.begin()
        measured = []
        for steps in unrolling.segments(self.segment):
            state, found = unrolling.run(state, steps, generator)
            state = map_tensors(Tensor.detach, state)
            measured += found
        return judge(measured)


def unroll(
    method: Method[Any],
    problem: Problem,
    x0: Tree,
    horizon: int,
    oracle: Oracle,
    generator: Generator | None = None,
    *,
    differentiation: Differentiation | None = None,
    every: int | Collection[int] = 1,
    measure: Callable[[int, Tree], Tensor],
    judge: Judge = torch.stack,
) -> Tensor:
    """Run a method for N steps and return ``judge`` of what ``measure(k, x_k)`` makes of its
    answers x_1, …, x_N.

    Values are measured inside the segments of a run, so that a checkpointed one need not keep the
    iterates either. Where no graph is wanted (``torch.no_grad()``), steps are compiled if the
    method has kernels for the problem.

    Args:
        method: the method to unroll.
        problem, x0: the problems, and where to start.
        horizon: N.
        oracle: how gradients are computed.
        generator: the source of randomness of a stochastic oracle, and of :class:`Evolution`.
        differentiation: how to differentiate; :class:`Full` by default.
        every: steps between looks, or the steps to look at. The last is always looked at.
        measure: returns a tensor for each look, always of one shape.
        judge: maps the list of these tensors to what is differentiated; by default they are
            stacked, (looks, …).
    """
    differentiation = Full() if differentiation is None else differentiation
    require_differentiation(differentiation)
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}")
    asked = method.resolve_oracle(oracle)
    if asked.stochastic:
        require_generator(generator, asked)
    without_graph = not torch.is_grad_enabled()
    unrolling = Unrolling(
        method, problem, x0, horizon, oracle, every, measure, compiled=without_graph
    )
    return differentiation.run(unrolling, judge, generator)


def require_differentiation(value: object) -> None:
    """Raise unless this is a kind of differentiation."""
    if not isinstance(value, Differentiation):
        known = ", ".join(cls.__name__ for cls in Differentiation.__subclasses__())
        raise ValueError(f"differentiation must be one of {known}, such as Full(); got {value!r}")


def _require_length(segment: int | None) -> None:
    if segment is not None and segment < 1:
        raise ValueError(f"segment must be at least 1, got {segment}")


def _recomputed(
    unrolling: Unrolling, state: State, steps: int, generator: Generator | None
) -> tuple[State, list[Tensor]]:
    """Run a segment of which nothing is kept but its start."""

    def segment(start: Sequence[Tensor], random: Generator | None) -> tuple[State, list[Tensor]]:
        given = iter(start)
        return unrolling.run(map_tensors(lambda _: next(given), state), steps, random)

    start = _tensors(state)
    ended = list[Any]()
    apply: Callable[..., tuple[Tensor, ...]] = _Recomputed.apply
    computed = iter(apply(segment, generator, ended.append, len(start), *start, *unrolling.learned))
    return map_tensors(lambda _: next(computed), ended[0])


class _Recomputed(torch.autograd.Function):
    """A function of given and of captured tensors, which is computed again when gradients are asked
    for.

    A checkpoint of torch would do, but for the gradients inside the function: it keeps what they
    need all the same, and computes it once more for each of them.
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
        ctx.function = function
        ctx.count = count
        ctx.replayed = (
            None if generator is None else generator.clone_state()
        )  # to draw again what is drawn now
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        result = function(tensors[:count], generator)
        keep(result)
        return tuple(_tensors(result))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        given = ctx.saved_tensors[: ctx.count]
        known = ctx.saved_tensors[ctx.count :]
        inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in given]
        random = None if ctx.replayed is None else ctx.replayed.clone_state()
        with torch.enable_grad():
            outputs = _tensors(ctx.function(inputs, random))
        pairs = [
            (o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o.requires_grad
        ]
        sources = [tensor for tensor in (*inputs, *known) if tensor.requires_grad]
        found: Iterator[Tensor | None] = iter([None] * len(sources))
        if pairs:
            reached, weights = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(reached, sources, weights, allow_unused=True))
        return (
            None,
            None,
            None,
            None,
            *(next(found) if t.requires_grad else None for t in (*inputs, *known)),
        )


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors of a state, in order."""
    found: list[Tensor] = []
    map_tensors(found.append, value)
    return found
