"""The one loop that runs every method on every problem."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Generator, Tensor

from mirrordescent._internal.progress import ProgressBar
from mirrordescent.domains import WholeSpace
from mirrordescent.execution import steps_for
from mirrordescent.methods.base import Method
from mirrordescent.oracles import Default, Oracle, require_generator
from mirrordescent.problems.base import Problem
from mirrordescent.solving.solution import Solution, Status, Trace
from mirrordescent.solving.stopping import Look, Rule
from mirrordescent.trees import Tree, batch_size, is_finite, leaves, where

LOOKS = 25  # default number of looks in a run


@torch.no_grad()
def solve(
    problem: Problem,
    method: Method[Any],
    x0: Tree | None = None,
    *,
    iterations: int = 1000,
    oracle: Oracle | None = None,
    stop: Rule | Sequence[Rule] | None = None,
    callbacks: Sequence[Callable[[Look], object]] = (),
    generator: Generator | None = None,
    check_every: int | None = None,
    trace: int | Sequence[int] | None = None,
    diverge_factor: float = 1e3,
    fused: bool | None = None,
    progress: bool | None = None,
    state: Any = None,
) -> Solution:
    """Minimise a batch of problems.

    The run is looked at every ``check_every`` iterations: values are computed, the best iterates
    kept, stop rules and callbacks asked, and samples that converged, diverged, became non-finite or
    left the domain of the method or of the problem are frozen with their status. A frozen sample
    keeps its place in the batch and never changes its neighbours' numbers. No autograd graph is
    kept.

    Args:
        problem: what to minimise.
        method: how to minimise it.
        x0: where to start, (batch, …) or a dict of such; the problem's own start by default.
        iterations: the budget.
        oracle: how gradients are computed; by default by the method's own oracle, if it has one,
            else exactly.
        stop: rules such as ``gap(1e-4)``; a sample stops when any of them says so.
        callbacks: functions called with every :class:`Look`.
        generator: the source of randomness of a stochastic oracle.
        check_every: iterations between looks; about 25 looks a run by default.
        trace: the iterations to record values at, or how many, spaced logarithmically; by default
            every look. What is recorded changes nothing else.
        diverge_factor: a sample diverged when f(x) > f(x₀) + factor · (1 + |f(x₀)|).
        fused: use kernels in C, where there are any for the method and the problem: by default if
            they are compiled already. True compiles them, which takes seconds, once, or raises if
            there are none; False does without.
        progress: show a progress bar; by default on a terminal, when it takes longer than a second.
        state: where the same method has got to on a problem near this one, the ``state`` of its
            solution: the run begins there, with dual variables if there are any, in place of x0.

    >>> import torch
    >>> from mirrordescent import GD, Quadratic, solve, gradient_norm
    >>> problem = Quadratic(torch.tensor([1.0, 2.0]), centre=torch.tensor([[3.0, 4.0]]))
    >>> solution = solve(problem, GD(0.5), iterations=100, stop=gradient_norm(1e-4))
    >>> solution.statuses, solution.x
    ([<Status.CONVERGED: 1>], tensor([[3.0000, 4.0000]]))
    """
    oracle = oracle or Default()
    if state is not None and x0 is not None:
        raise ValueError("give either x0 or a state to begin with, not both")
    if state is not None:
        x0 = method.answer(state)
    x0 = problem.start() if x0 is None else x0
    _check_arguments(problem, method, x0, iterations, check_every, oracle, generator)
    rules = (stop,) if isinstance(stop, Rule) else tuple(stop or ())
    check_at, record_at = _plan(iterations, check_every, trace)

    run = steps_for(method, problem, oracle, generator, fused)
    state = method.init(x0, problem) if state is None else method.warm(state, problem)
    record = _Record(problem, method, x0, state, diverge_factor)
    seconds = 0.0
    with ProgressBar("solving", iterations, progress) as bar:
        for k in sorted(check_at | record_at):
            began = perf_counter()
            state = run(state, k - state.k) if k > state.k else state
            _synchronise(x0)
            seconds += perf_counter() - began
            if k in check_at:
                state = record.check(state, rules, callbacks, seconds)
            if k in record_at:
                record.keep(state, k, seconds)
            bar.update(
                k,
                f"{int(record.running.sum())} running, mean value {float(record.value.mean()):.4g}",
            )
            if not record.running.any():
                break
    for k in sorted(k for k in record_at if k > state.k):
        record.keep(state, k, seconds)  # all samples stopped early and keep their values
    return record.solution(seconds)


class _Record:
    """What is known of a run so far."""

    def __init__(
        self, problem: Problem, method: Method[Any], x0: Tree, state: Any, diverge_factor: float
    ) -> None:
        self.problem = problem
        self.method = method
        self.state = state
        self.start_value = problem.value(x0)
        self.ceiling = self.start_value + diverge_factor * (1 + self.start_value.abs())
        self.x = x0
        self.value = self.start_value
        self.best_x = x0
        self.best_value = self.start_value
        self.previous_x: Tree | None = None
        self.lower: Tensor | None = None
        self.status = torch.full(
            (batch_size(x0),), int(Status.RUNNING), device=self.start_value.device
        )
        self.steps = torch.zeros_like(self.status)
        self.iterations: list[int] = []
        self.seconds: list[float] = []
        self.values: list[Tensor] = []

    @property
    def running(self) -> Tensor:
        return self.status == Status.RUNNING

    def check(
        self,
        state: Any,
        rules: Sequence[Rule],
        callbacks: Sequence[Callable[[Look], object]],
        seconds: float,
    ) -> Any:
        """Judge a state and return it with the frozen samples put back."""
        running = self.running
        state = where(running, state, self.state)
        x, value = self._answer(state)
        self._raise_lower_bound(state)
        self._judge(state, x, value)
        improved = self.running & (value < self.best_value)
        self.best_x = where(improved, x, self.best_x)
        self.best_value = torch.where(improved, value, self.best_value)
        look = Look(
            state.k,
            x,
            value,
            self.start_value,
            self.best_value,
            self.previous_x,
            self.lower,
            seconds,
            self.running,
            self.problem,
            self.method,
            state,
        )
        for rule in rules:
            self._mark(rule(look), rule.status)
        for callback in callbacks:
            callback(look)
        self.steps = torch.where(running, state.k, self.steps)
        self.previous_x = x
        self.x = x
        self.value = value
        self.state = state
        return state

    def keep(self, state: Any, k: int, seconds: float) -> None:
        """Record the values at an iteration; this changes nothing else."""
        self.iterations.append(k)
        self.seconds.append(seconds)
        self.values.append(self.value if state is self.state else self._answer(state)[1])

    def _answer(self, state: Any) -> tuple[Tree, Tensor]:
        """Return the answers and their values, those of frozen samples as they were."""
        running = self.running
        x = where(running, self.method.answer(state), self.x)
        return x, torch.where(running, self.problem.value(x), self.value)

    def _raise_lower_bound(self, state: Any) -> None:
        bound = self.method.lower_bound(self.problem, state)
        if bound is not None:
            self.lower = bound if self.lower is None else torch.fmax(self.lower, bound)

    def _judge(self, state: Any, x: Tree, value: Tensor) -> None:
        self._mark(~(is_finite(x) & value.isfinite()), Status.NON_FINITE)
        inside = self.method.inside(state)
        if inside is not None:
            self._mark(~inside, Status.LEFT_DOMAIN)
        if not isinstance(self.problem.domain, WholeSpace):
            self._mark(~self.problem.domain.contains(x, closed=True), Status.LEFT_DOMAIN)
        self._mark(value > self.ceiling, Status.DIVERGED)

    def _mark(self, samples: Tensor, status: Status) -> None:
        self.status = torch.where(self.running & samples, int(status), self.status)

    def solution(self, seconds: float) -> Solution:
        self._mark(self.running, Status.BUDGET)
        failed = self.status >= Status.DIVERGED
        return Solution(
            x=where(failed, self.best_x, self.x),
            value=torch.where(failed, self.best_value, self.value),
            best_x=self.best_x,
            best_value=self.best_value,
            statuses=[Status(code) for code in self.status.tolist()],
            steps=self.steps,
            seconds=seconds,
            trace=Trace(self.iterations, self.seconds, torch.stack(self.values)),
            lower=self.lower,
            state=self.state,
        )


def _plan(
    iterations: int, check_every: int | None, trace: int | Sequence[int] | None
) -> tuple[set[int], set[int]]:
    """Return the iterations to check at, and those to record."""
    every = check_every or max(1, iterations // LOOKS)
    checks = {*range(0, iterations, every), iterations}
    if trace is None:
        return checks, checks
    if isinstance(trace, int):
        if trace < 2:
            raise ValueError(f"trace must record at least 2 iterations, got {trace}")
        return checks, {
            0,
            *(round(iterations ** (i / max(1, trace - 2))) for i in range(trace - 1)),
        }
    recorded = set(trace)
    if not recorded or min(recorded) < 0 or max(recorded) > iterations:
        raise ValueError(f"trace must name iterations from 0 to {iterations}")
    return checks, recorded


def _check_arguments(
    problem: Problem,
    method: Method[Any],
    x0: Tree,
    iterations: int,
    check_every: int | None,
    oracle: Oracle,
    generator: Generator | None,
) -> None:
    for name, number in (("iterations", iterations), ("check_every", check_every)):
        if number is not None and (not isinstance(number, int) or number < 1):
            raise ValueError(f"{name} must be a whole number, at least 1, got {number}")
    problem.check(x0)
    asked = method.resolve_oracle(oracle)
    if asked.stochastic:
        require_generator(generator, asked)
    dtype = next(leaves(x0)).dtype
    for module in (method, oracle):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.is_floating_point() and tensor.dtype != dtype:
                raise TypeError(
                    f"x0 is {dtype}, but {name} of {type(module).__name__} is {tensor.dtype}: use .double() or .float()"
                )


def _synchronise(x: Tree) -> None:
    """Wait for the device, so that the clock measures work and not its queueing."""
    device = next(leaves(x)).device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
