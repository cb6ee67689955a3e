"""The one loop that runs every method on every problem."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import index
from time import perf_counter
from typing import Any, SupportsIndex, cast

import torch
from torch import Generator, Tensor

from mirrordescent._internal.arrays import converter_like, tree_of
from mirrordescent._internal.eager import eager, without_autocast
from mirrordescent._internal.progress import ProgressBar
from mirrordescent.domains import WholeSpace
from mirrordescent.execution import steps_for
from mirrordescent.methods.base import Method
from mirrordescent.methods.naming import default_method
from mirrordescent.oracles import Default, Oracle, require_generator
from mirrordescent.problems.base import Problem
from mirrordescent.problems.statements import (
    allowed_excess,
    premises,
    require_consistent,
    require_statements_once,
)
from mirrordescent.solving.solution import Solution, Status, Trace
from mirrordescent.solving.stopping import Evaluation, PreviousCheck, Rule, Snapshot
from mirrordescent.trees import Tree, batch_size, is_finite, leaves, tree_map, where

CHECKS = 25  # default number of checks in a run


@eager
@without_autocast
@torch.no_grad()
def solve(
    problem: Problem,
    method: Method[Any] | str,
    x0: Tree | None = None,
    *,
    iterations: int = 1000,
    oracle: Oracle | None = None,
    stop: Rule | Sequence[Rule] | None = None,
    callbacks: Sequence[Callable[[Snapshot], object]] = (),
    generator: Generator | None = None,
    check_every: int | None = None,
    trace: int | Sequence[int] | None = None,
    diverge_factor: float = 1e3,
    fused: bool | None = None,
    progress: bool | None = None,
    state: Any = None,
) -> Solution:
    """Minimise a batch of problems.

    The run is checked every ``check_every`` iterations. A check computes the values, keeps the best
    iterates, and applies stop rules and callbacks. Samples that converged, diverged, became
    non-finite, or left the domain of the method or of the problem are frozen with their status. A
    frozen sample keeps its place in the batch and never changes the numbers of other samples. No
    autograd graph is built.

    Args:
        problem: Problem to minimise.
        method: Method that takes the steps; or the name of one, such as ``"pdhg"``, with default
            settings.
        x0: Start, (batch, …) or a dict of such tensors. By default the problem's own. For an array
            of NumPy, pandas or xarray, ``x`` and ``best_x`` of the solution are of the same kind.
        iterations: Maximal number of iterations.
        oracle: Oracle of the gradients. By default the method's own oracle if it has one, else
            exact gradients.
        stop: Rules such as ``gap(1e-4)``. A sample stops if one of them says so.
        callbacks: Functions that are called with a :class:`Snapshot` at every check.
        generator: Source of randomness of a stochastic oracle.
        check_every: Number of iterations between checks. By default about 25 checks a run.
        trace: Iterations at which values are recorded, or their number, spaced logarithmically.
            If the run ends before, its last values are repeated. By default every check up to the
            end of the run. Recording changes nothing else.
        diverge_factor: A sample has diverged if f(x) > f(x₀) + diverge_factor · S. The scale S is
            the larger of |f| at x₀ and at the problem's own start, or the first value of f that is
            not 0 if both are 0.
        fused: Whether to use C kernels. By default they are used if there are kernels for this
            method and problem. True requires them and raises an error if there are none. False uses
            plain torch.
        progress: Whether to show a progress bar. By default on a terminal, after one second.
        state: ``state`` of the same method's solution of a similar problem. The run begins there
            in place of x0, with the dual variables if there are any.

    >>> import torch
    >>> from mirrordescent import GD, Quadratic, solve, gradient_norm
    >>> problem = Quadratic(torch.tensor([1.0, 2.0]), centre=torch.tensor([[3.0, 4.0]]))
    >>> solution = solve(problem, GD(0.5), iterations=100, stop=gradient_norm(1e-4))
    >>> solution.statuses, solution.x
    ([<Status.CONVERGED: 1>], tensor([[3.0000, 4.0000]]))
    """
    method = _chosen_method(problem, method)
    oracle = oracle or Default()
    if state is not None and x0 is not None:
        raise ValueError("give either x0 or state, got both")
    convert = converter_like(x0)
    if state is not None:
        x0 = method.answer(state)
    elif x0 is None:
        x0 = problem.start()
    else:
        x0 = cast(Tree, tree_of(x0, "x0"))
    _check_arguments(problem, method, x0, iterations, check_every, oracle, generator)
    iterations = index(iterations)
    if check_every is not None:
        check_every = index(check_every)
    rules = (stop,) if isinstance(stop, Rule) else tuple(stop or ())
    check_at, record_at = _plan_checks(iterations, check_every, trace)

    ask_problem = not method.certifies and any(rule.needs_bound for rule in rules)
    if method.certifies or ask_problem:
        require_statements_once(problem, x0)
    run = steps_for(method, problem, oracle, generator, fused)
    state = method.init(x0, problem) if state is None else method.warm_start(state, problem)
    record = _Record(problem, method, x0, state, diverge_factor, ask_problem)
    seconds = 0.0
    with ProgressBar("solving", iterations, progress) as bar:
        for k in sorted(check_at | record_at):
            began = perf_counter()
            if k > state.k:
                state = run(state, k - state.k)
            _synchronise(x0)
            seconds += perf_counter() - began
            if k in check_at:
                state = record.check(state, rules, callbacks, seconds)
            if k in record_at:
                record.add_to_trace(state, k, seconds)
            bar.update(k, record.description())
            if not record.running.any():
                break
    if trace is not None:
        for k in sorted(record_at):
            if k > state.k:  # all samples stopped early and keep their values
                record.add_to_trace(state, k, seconds)
    solution = record.solution(seconds)
    return replace(solution, x=convert(solution.x), best_x=convert(solution.best_x))


def _chosen_method(problem: Problem, method: Method[Any] | str) -> Method[Any]:
    """Return the method, and refuse arguments of other types or in another order."""
    if isinstance(problem, Method) and isinstance(method, Problem):
        raise TypeError("the problem comes first: solve(problem, method)")
    if not isinstance(problem, Problem):
        raise TypeError(
            f"problem must be a Problem, got {type(problem).__name__}; "
            f"Function(f) makes one of a function of a batch of points"
        )
    if isinstance(method, str):
        return default_method(method, problem)
    if isinstance(method, type):
        raise TypeError(f"method must be an object, got the class: write {method.__name__}(…)")
    if not isinstance(method, Method):
        raise TypeError(f"method must be a Method or the name of one, got {type(method).__name__}")
    return method


class _Record:
    """The values, bounds and statuses of a run so far."""

    def __init__(
        self,
        problem: Problem,
        method: Method[Any],
        x0: Tree,
        state: Any,
        diverge_factor: float,
        ask_problem: bool,
    ) -> None:
        self.ask_problem = ask_problem
        self.convexity = (problem.strong_convexity() or 0.0) if ask_problem else 0.0
        self.problem = problem
        self.method = method
        self.state = state
        self.start = Evaluation(problem, x0, problem.value(x0))
        self.start_value = self.start.value
        self.diverge_factor = diverge_factor
        self.scale = self.start_value.abs()
        self.ceiling = self.start_value + diverge_factor * self.scale
        self.scale_is_final = False
        self.x = x0
        self.value = self.start_value
        self.best_x = x0
        self.best_value = self.start_value
        self.lower: Tensor | None = None
        self.previous: PreviousCheck | None = None
        device = self.start_value.device
        self.status = torch.full((batch_size(x0),), int(Status.RUNNING), device=device)
        self.running = self.status == Status.RUNNING
        self.steps = torch.zeros_like(self.status)
        self.iterations: list[int] = []
        self.seconds: list[float] = []
        self.values: list[Tensor] = []

    def description(self) -> str:
        """Return one line for the progress bar."""
        return f"{int(self.running.sum())} running, mean value {float(self.value.mean()):.4g}"

    def check(
        self,
        state: Any,
        rules: Sequence[Rule],
        callbacks: Sequence[Callable[[Snapshot], object]],
        seconds: float,
    ) -> Any:
        """Update the statuses, and return the state with the frozen samples put back."""
        running = self.running
        state = where(running, state, self.state)
        self.state = state  # frees the memory of the earlier state
        x, value = self._answer(state)
        self._raise_lower_bound(state, x)
        self._mark_failures(state, x, value)
        improved = self.running & (value < self.best_value)
        self.best_x = where(improved, x, self.best_x)
        self.best_value = torch.where(improved, value, self.best_value)
        snapshot = Snapshot(
            k=state.k,
            x=x,
            value=value,
            start=self.start,
            best_value=self.best_value,
            previous=self.previous,
            lower=self.lower,
            seconds=seconds,
            running=self.running,
            problem=self.problem,
            method=self.method,
            state=state,
        )
        for rule in rules:
            self._mark(rule(snapshot), rule.status)
        for rule in rules:
            if rule.undecidable is None:
                continue
            undecidable = rule.undecidable(snapshot)
            if bool(undecidable.any()):
                self._mark(undecidable, Status.PRECISION)
        for callback in callbacks:
            callback(snapshot)
        self.steps = torch.where(running, state.k, self.steps)
        self.previous = PreviousCheck(x, self.lower)
        self.x = x
        self.value = value
        return state

    def add_to_trace(self, state: Any, k: int, seconds: float) -> None:
        """Record the values at an iteration; this changes nothing else."""
        self.iterations.append(k)
        self.seconds.append(seconds)
        self.values.append(self.value if state is self.state else self._answer(state)[1])

    def _answer(self, state: Any) -> tuple[Tree, Tensor]:
        """Return the answers and their values; frozen samples keep theirs."""
        running = self.running
        x = where(running, self.method.answer(state), self.x)
        return x, torch.where(running, self.problem.value(x), self.value)

    def _raise_lower_bound(self, state: Any, x: Tree) -> None:
        """Keep the best bound of the method or, if it is needed, of the problem at x."""
        bound = self.method.lower_bound(self.problem, state)
        if bound is None and self.ask_problem:
            bound = self.problem.bound_at(x, self.convexity)
        if bound is not None:
            self.lower = bound if self.lower is None else torch.fmax(self.lower, bound)

    def _mark_failures(self, state: Any, x: Tree, value: Tensor) -> None:
        self._mark(~(is_finite(x) & value.isfinite()), Status.NON_FINITE)
        excluded = self.method.excluded(self.problem, state)
        if excluded is not None:
            self._mark(excluded[0], Status.INFEASIBLE)
            self._mark(excluded[1], Status.UNBOUNDED)
        inside = self.method.inside(state)
        if inside is not None:
            self._mark(~inside, Status.LEFT_DOMAIN)
        if not isinstance(self.problem.domain, WholeSpace):
            self._mark(~self.problem.domain.contains(x, closed=True), Status.LEFT_DOMAIN)
        if bool((value > self.ceiling).any()):
            self._raise_ceiling(value)
            self._mark(value > self.ceiling, Status.DIVERGED)

    def _raise_ceiling(self, value: Tensor) -> None:
        """Make sure that the scale of f is not that of a start which happens to be optimal.

        This costs a value of f, and is done only if a sample has passed the first ceiling.
        """
        if not self.scale_is_final:
            elsewhere = self._value_elsewhere()
            if elsewhere is not None:
                self.scale = torch.fmax(self.scale, elsewhere.abs().nan_to_num(0.0, 0.0))
            self.scale_is_final = True
        self.scale = torch.where(self.scale == 0, value.abs(), self.scale)
        self.ceiling = self.start_value + self.diverge_factor * self.scale

    def _value_elsewhere(self) -> Tensor | None:
        """Return f at the problem's own start, or at 0 if there are no constraints."""
        if self.problem.sample_shape is not None:
            return self.problem.value(self.problem.start(batch_size(self.x)))
        if isinstance(self.problem.domain, WholeSpace):
            return self.problem.value(tree_map(torch.zeros_like, self.x))
        return None

    def _mark(self, samples: Tensor, status: Status) -> None:
        """Give some samples a status, if they are still running."""
        if not bool(samples.any()):
            return
        self.status = torch.where(self.running & samples, int(status), self.status)
        self.running = self.status == Status.RUNNING

    def solution(self, seconds: float) -> Solution:
        """Return the solution; samples that are still running have used their budget."""
        self._mark(self.running, Status.BUDGET)
        failed = (self.status >= Status.DIVERGED) & (self.status != Status.PRECISION)
        conditions: tuple[str, ...] = ()
        if self.lower is not None:
            conditions = premises(self.problem, "gradients" if self.ask_problem else None)
            require_consistent(
                self.problem,
                self.lower,
                self.best_value,
                self.start_value,
                conditions,
                lambda: allowed_excess(self.problem, self.best_x, self.start.x),
            )
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
            conditional_on=conditions,
        )


def _plan_checks(
    iterations: int, check_every: int | None, trace: int | Sequence[int] | None
) -> tuple[set[int], set[int]]:
    """Return the iterations of the checks, and those to record."""
    every = check_every or max(1, iterations // CHECKS)
    checks = {*range(0, iterations, every), iterations}
    if trace is None:
        return checks, checks
    if _is_whole(trace):
        trace = index(cast(SupportsIndex, trace))
        if trace < 2:
            raise ValueError(f"trace must record at least 2 iterations, got {trace}")
        intervals = max(1, trace - 2)
        return checks, {0, *(round(iterations ** (i / intervals)) for i in range(trace - 1))}
    recorded = {index(k) for k in cast(Sequence[SupportsIndex], trace)}
    if not recorded or min(recorded) < 0 or max(recorded) > iterations:
        raise ValueError(
            f"trace must name iterations from 0 to {iterations}, got {sorted(recorded)}"
        )
    return checks, recorded


def _is_whole(number: object) -> bool:
    """Tell whether a number is whole, such as an int or a NumPy integer."""
    try:
        index(cast(SupportsIndex, number))
    except TypeError:
        return False
    return True


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
        if number is not None and not (_is_whole(number) and number >= 1):
            raise ValueError(f"{name} must be a whole number, at least 1, got {number}")
    problem.check(x0)
    resolved = method.resolve_oracle(oracle)
    if resolved.stochastic:
        require_generator(generator, resolved)
    dtype = next(leaves(x0)).dtype
    for module in (method, oracle):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.is_floating_point() and tensor.dtype != dtype:
                raise TypeError(
                    f"x0 is {dtype}, but {name} of {type(module).__name__} is {tensor.dtype}: "
                    "use .double() or .float()"
                )


def _synchronise(x: Tree) -> None:
    """Wait for a CUDA device, so that the clock measures work and not its queueing."""
    device = next(leaves(x)).device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
