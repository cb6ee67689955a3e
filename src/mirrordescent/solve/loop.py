"""The one loop that runs every method on every problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method
from mirrordescent.oracles import Exact, Oracle, require_generator
from mirrordescent.problems.base import Problem
from mirrordescent.progress import ProgressBar
from mirrordescent.solve.solution import Solution, Status, Trace
from mirrordescent.solve.stopping import Look, Rule
from mirrordescent.trees import Tree, batch_size, is_finite, leaves, where

LOOKS = 50  # default number of looks in a run


@torch.no_grad()
def solve(
    problem: Problem,
    method: Method[Any],
    x0: Tree | None = None,
    *,
    iterations: int = 1000,
    oracle: Oracle | None = None,
    stop: Rule | Sequence[Rule] = (),
    callbacks: Sequence[Callable[[Look], object]] = (),
    generator: Generator | None = None,
    check_every: int | None = None,
    trace: int | Sequence[int] | None = None,
    diverge_factor: float = 1e3,
    progress: bool | None = None,
) -> Solution:
    """Minimise a batch of problems.

    The run is looked at every ``check_every`` iterations: values are computed, the best iterates kept,
    stop rules and callbacks asked, and samples that converged, diverged, became non-finite or left
    the method's domain are frozen with their status. A frozen sample keeps its place in the batch and never
    changes its neighbours' numbers. No autograd graph is kept.

    Args:
        problem: what to minimise.
        method: how.
        x0: where to start, (batch, …) or a dict of such; the problem's own start by default.
        iterations: the budget.
        oracle: how gradients are asked for; exact by default.
        stop: rules such as ``gap(1e-4)``; a sample stops when any of them says so.
        callbacks: functions called with every :class:`Look`.
        generator: the source of randomness of a stochastic oracle.
        check_every: iterations between looks; about 50 looks a run by default.
        trace: the iterations to record values at, or how many, spaced logarithmically; by default every look.
        diverge_factor: a sample diverged when f(x) > f(x₀) + factor · (1 + |f(x₀)|).
        progress: show a progress bar; by default on a terminal, when it takes longer than a second.

    >>> import torch
    >>> from mirrordescent import GD, Quadratic, solve, gradient_norm
    >>> problem = Quadratic(torch.tensor([1.0, 2.0]), centre=torch.tensor([[3.0, 4.0]]))
    >>> solution = solve(problem, GD(0.5), iterations=100, stop=gradient_norm(1e-4))
    >>> solution.statuses, solution.x
    ([<Status.CONVERGED: 1>], tensor([[3.0000, 4.0000]]))
    """
    oracle = oracle or Exact()
    x0 = problem.start() if x0 is None else x0
    _check_arguments(problem, method, x0, iterations, check_every, oracle, generator)
    rules = (stop,) if isinstance(stop, Rule) else tuple(stop)
    look_at, record_at = _plan(iterations, check_every, trace)

    state = method.init(x0)
    record = _Record(problem, method, x0, state, diverge_factor)
    seconds = 0.0
    with ProgressBar("solving", iterations, progress) as bar:
        for k in look_at:
            began = perf_counter()
            for _ in range(k - state.k):
                state = method.step(problem, state, oracle, generator)
            _synchronise(x0)
            seconds += perf_counter() - began
            state = record.look(state, rules, callbacks, seconds, keep=k in record_at)
            bar.update(k, f"{int(record.running.sum())} running, mean value {float(record.value.mean()):.4g}")
            if not record.running.any():
                break
    return record.solution(seconds)


class _Record:
    """What the looks of a run have found so far."""

    def __init__(self, problem: Problem, method: Method[Any], x0: Tree, state: Any, diverge_factor: float) -> None:
        self.problem, self.method, self.state = problem, method, state
        self.start_value = problem.value(x0)
        self.ceiling = self.start_value + diverge_factor * (1 + self.start_value.abs())
        self.x, self.value = x0, self.start_value
        self.best_x, self.best_value = x0, self.start_value
        self.previous_x: Tree | None = None
        self.lower: Tensor | None = None
        self.status = torch.full((batch_size(x0),), int(Status.RUNNING), device=self.start_value.device)
        self.steps = torch.zeros_like(self.status)
        self.iterations: list[int] = []
        self.seconds: list[float] = []
        self.values: list[Tensor] = []

    @property
    def running(self) -> Tensor:
        return self.status == Status.RUNNING

    def look(
        self,
        state: Any,
        rules: Sequence[Rule],
        callbacks: Sequence[Callable[[Look], object]],
        seconds: float,
        keep: bool,
    ) -> Any:
        """Judge a state and return it with the frozen samples put back."""
        running = self.running
        state = _freeze(running, state, self.state)
        x = where(running, self.method.answer(state), self.x)
        value = torch.where(running, self.problem.value(x), self.value)
        improved = running & (value < self.best_value)
        self.best_x = where(improved, x, self.best_x)
        self.best_value = torch.where(improved, value, self.best_value)
        self._raise_lower_bound(state)
        self._judge(state, x, value)
        look = Look(
            state.k, x, value, self.start_value, self.best_value, self.previous_x, self.lower, seconds,
            self.running, self.problem, self.method, state,
        )  # fmt: skip
        for rule in rules:
            self._mark(rule(look), rule.status)
        for callback in callbacks:
            callback(look)
        self.steps = torch.where(running, state.k, self.steps)
        self.previous_x, self.x, self.value, self.state = x, x, value, state
        if keep:
            self.iterations.append(state.k)
            self.seconds.append(seconds)
            self.values.append(value)
        return state

    def _raise_lower_bound(self, state: Any) -> None:
        bound = self.method.lower_bound(self.problem, state)
        if bound is not None:
            self.lower = bound if self.lower is None else torch.fmax(self.lower, bound)

    def _judge(self, state: Any, x: Tree, value: Tensor) -> None:
        self._mark(~(is_finite(x) & value.isfinite()), Status.NON_FINITE)
        inside = self.method.inside(state)
        if inside is not None:
            self._mark(~inside, Status.LEFT_DOMAIN)
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


def _freeze(running: Tensor, new: Any, old: Any) -> Any:
    """Return ``new`` with the samples that no longer run taken from ``old``, field by field."""
    if running.all() or old is None:
        return new
    if hasattr(new, "_fields"):
        return type(new)(*(_freeze(running, *pair) for pair in zip(new, old, strict=True)))
    is_tree = isinstance(new, dict) or (isinstance(new, Tensor) and new.ndim > 0)
    return where(running, new, old) if is_tree else new


def _plan(iterations: int, check_every: int | None, trace: int | Sequence[int] | None) -> tuple[list[int], set[int]]:
    """Return the iterations to look at, in order, and those to record."""
    every = check_every or max(1, iterations // LOOKS)
    checks = {*range(0, iterations, every), iterations}
    if trace is None:
        return sorted(checks), checks
    if isinstance(trace, int):
        if trace < 2:
            raise ValueError(f"trace must record at least 2 iterations, got {trace}")
        spaced = torch.logspace(0, torch.tensor(float(iterations)).log10().item(), trace - 1).round()
        recorded = {0, *spaced.int().tolist()}
    else:
        recorded = set(trace)
        if not recorded or min(recorded) < 0 or max(recorded) > iterations:
            raise ValueError(f"trace must name iterations from 0 to {iterations}")
    return sorted(checks | recorded), recorded


def _check_arguments(
    problem: Problem,
    method: Method[Any],
    x0: Tree,
    iterations: int,
    check_every: int | None,
    oracle: Oracle,
    generator: Generator | None,
) -> None:
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    if check_every is not None and check_every < 1:
        raise ValueError(f"check_every must be at least 1, got {check_every}")
    problem.check(x0)
    if oracle.stochastic:
        require_generator(generator, oracle)
    dtype = next(leaves(x0)).dtype
    for module in (method, oracle):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.is_floating_point() and tensor.dtype != dtype:
                raise TypeError(f"x0 is {dtype}, but {name} of {type(module).__name__} is {tensor.dtype}: convert one")


def _synchronise(x: Tree) -> None:
    """Wait for the device, so that the clock measures work and not its queueing."""
    device = next(leaves(x)).device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
