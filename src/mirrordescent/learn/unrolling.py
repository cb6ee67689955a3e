"""The iteration as an autograd graph, with several trade-offs of memory and bias."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.autograd.function import once_differentiable

from mirrordescent.execution import steps_for
from mirrordescent.methods.base import Method, State
from mirrordescent.oracles import Oracle, require_generator
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, map_tensors

Judge: TypeAlias = Callable[[list[Tensor]], Tensor]
"""A function of the measurements of a run, such as a loss."""
T = TypeVar("T")


@dataclass(frozen=True)
class Unrolling:
    """A run x_1, …, x_N of a method on a batch of problems, with measurements ``measure(k, x_k)``.

    The fields are the arguments of :func:`unroll`. ``compiled`` allows compiled steps, which have
    no graph.
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
        """Take some steps; return the last state and the measurements."""
        advance = steps_for(
            self.method, self.problem, self.oracle, generator, None if self.compiled else False
        )
        measured = []
        end = state.k + steps
        for k in range(state.k + 1, end + 1):
            if self._is_measured(k) or k == end:
                state = advance(state, k - state.k)
            if self._is_measured(k):
                measured.append(self.measure(k, self.method.answer(state)))
        return state, measured

    def run_all(self, generator: Generator | None) -> list[Tensor]:
        """Take all steps and return the measurements."""
        return self.run(self.begin(), self.horizon, generator)[1]

    def segments(self, length: int | None) -> list[int]:
        """Return the lengths of the segments of the run; the last may be shorter.

        Args:
            length: Length of a segment. The default is about ¾√N.
        """
        length = length or max(1, round(0.75 * math.sqrt(self.horizon)))
        return [min(length, self.horizon - k) for k in range(0, self.horizon, length)]

    @property
    def learned(self) -> list[nn.Parameter]:
        """The parameters of the method and the oracle that require gradients."""
        unique = dict.fromkeys((*self.method.parameters(), *self.oracle.parameters()))
        return [parameter for parameter in unique if parameter.requires_grad]

    def _is_measured(self, k: int) -> bool:
        if k == self.horizon:
            return True
        if isinstance(self.every, int):
            return k % self.every == 0
        return k in self.every


@dataclass(frozen=True)
class Differentiation(ABC):
    """A way to compute d/dθ of a run.

    A subclass implements :meth:`run`. A TOML file refers to it by the name of its class.
    """

    @abstractmethod
    def run(self, unrolling: Unrolling, judge: Judge, generator: Generator | None) -> Tensor:
        """Return ``judge`` of all measurements, with the gradient of this kind."""


@dataclass(frozen=True)
class Full(Differentiation):
    """Exact gradients, with the whole graph in memory."""

    def run(self, unrolling: Unrolling, judge: Judge, generator: Generator | None) -> Tensor:
        return judge(unrolling.run_all(generator))


@dataclass(frozen=True)
class Checkpointed(Differentiation):
    """Exact gradients, with memory that grows like √N.

    The run is cut into segments. Of all segments but the last, only the first state is kept; the
    rest is computed again in the backward pass.

    Args:
        segment: Length of a segment. The default is ¾√N, less than √N because the graph of a step
            is larger than a state.
    """

    segment: int | None = None

    def __post_init__(self) -> None:
        _require_length(self.segment)

    def run(self, unrolling: Unrolling, judge: Judge, generator: Generator | None) -> Tensor:
        # In reverse, so that a full segment is last: the last segment is computed only once.
        *recomputed, last = reversed(unrolling.segments(self.segment))
        state = unrolling.begin()
        measured = []
        for steps in recomputed:
            state, measurements = _run_recomputed(unrolling, state, steps, generator)
            measured += measurements
        return judge(measured + unrolling.run(state, last, generator)[1])


@dataclass(frozen=True)
class Truncated(Differentiation):
    """Biased gradients that do not pass from a segment to the previous one.

    They cannot explode over more steps than a segment has.

    Args:
        segment: Length of a segment. The default is ¾√N.
    """

    segment: int | None = None

    def __post_init__(self) -> None:
        _require_length(self.segment)

    def run(self, unrolling: Unrolling, judge: Judge, generator: Generator | None) -> Tensor:
        state = unrolling.begin()
        measured = []
        for steps in unrolling.segments(self.segment):
            state, measurements = unrolling.run(state, steps, generator)
            state = map_tensors(Tensor.detach, state)
            measured += measurements
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
    """Run a method for N steps and return a differentiable function of its answers x_1, …, x_N.

    The result is ``judge([measure(k, x_k), …])``. Answers are measured inside the segments of a
    run, so that a checkpointed run need not keep the iterates. Under ``torch.no_grad()``, steps are
    compiled if the method has kernels for the problem.

    Args:
        method: Method to unroll.
        problem: Batch of problems.
        x0: Starting points.
        horizon: Number N of steps.
        oracle: Oracle that computes the gradients.
        generator: Random generator of a stochastic oracle and of :class:`Evolution`.
        differentiation: Kind of differentiation. The default is :class:`Full`.
        every: Number of steps between measurements, or a list of steps. The last step is always
            measured.
        measure: Function of k and x_k that returns a tensor, always of the same shape.
        judge: Function of the list of these tensors. By default they are stacked.
    """
    differentiation = Full() if differentiation is None else differentiation
    require_differentiation(differentiation)
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}")
    resolved = method.resolve_oracle(oracle)
    if resolved.stochastic:
        require_generator(generator, resolved)
    without_graph = not torch.is_grad_enabled()
    unrolling = Unrolling(
        method, problem, x0, horizon, oracle, every, measure, compiled=without_graph
    )
    return differentiation.run(unrolling, judge, generator)


def require_differentiation(value: object) -> None:
    """Raise unless the value is a :class:`Differentiation`."""
    if not isinstance(value, Differentiation):
        known = ", ".join(cls.__name__ for cls in Differentiation.__subclasses__())
        raise ValueError(f"differentiation must be one of {known}, such as Full(); got {value!r}")


def _require_length(segment: int | None) -> None:
    if segment is not None and segment < 1:
        raise ValueError(f"segment must be at least 1, got {segment}")


def _run_recomputed(
    unrolling: Unrolling, state: State, steps: int, generator: Generator | None
) -> tuple[State, list[Tensor]]:
    """Run a segment and keep only its first state for the backward pass."""

    def segment(start: Sequence[Tensor], random: Generator | None) -> tuple[State, list[Tensor]]:
        return unrolling.run(_with_tensors(state, start), steps, random)

    start = _tensors(state)
    results: list[tuple[State, list[Tensor]]] = []
    apply: Callable[..., tuple[Tensor, ...]] = _Recomputed.apply
    tensors = apply(segment, generator, results.append, len(start), *start, *unrolling.learned)
    return _with_tensors(results[0], tensors)


class _Recomputed(torch.autograd.Function):
    """A function of given and captured tensors that is computed again in the backward pass.

    ``torch.utils.checkpoint`` is not suitable, because the function itself computes gradients. A
    checkpoint would keep their intermediate results in memory, and compute them again for each
    gradient.
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
        # The backward pass draws the same random numbers again.
        ctx.generator = None if generator is None else generator.clone_state()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        result = function(tensors[:count], generator)
        keep(result)
        return tuple(_tensors(result))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        given = ctx.saved_tensors[: ctx.count]
        captured = ctx.saved_tensors[ctx.count :]
        copies = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in given]
        generator = None if ctx.generator is None else ctx.generator.clone_state()
        with torch.enable_grad():
            outputs = _tensors(ctx.function(copies, generator))
        inputs = [*copies, *captured]
        input_grads = _input_gradients(outputs, grads, inputs)
        # No gradients for function, generator, keep and count.
        return (None, None, None, None, *input_grads)


def _input_gradients(
    outputs: Sequence[Tensor], grads: Sequence[Tensor | None], inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradients of the inputs, given those of the outputs; None where there is none."""
    reached = []
    weights = []
    for output, grad in zip(outputs, grads, strict=True):
        if grad is not None and output.requires_grad:
            reached.append(output)
            weights.append(grad)
    sources = [tensor for tensor in inputs if tensor.requires_grad]
    if not reached or not sources:
        return [None] * len(inputs)
    computed = iter(torch.autograd.grad(reached, sources, weights, allow_unused=True))
    return [next(computed) if tensor.requires_grad else None for tensor in inputs]


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors of a state in order."""
    tensors: list[Tensor] = []
    map_tensors(tensors.append, value)
    return tensors


def _with_tensors(value: T, tensors: Sequence[Tensor]) -> T:
    """Return a state with other tensors, given in the order of :func:`_tensors`."""
    replacements = iter(tensors)
    return map_tensors(lambda _: next(replacements), value)
