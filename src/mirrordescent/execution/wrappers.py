"""Fast runs of methods around others: they use the fast run of the method inside."""

from functools import cache
from typing import Any

from mirrordescent.execution.plain import plain_run
from mirrordescent.execution.registry import Run, fast_run, runner
from mirrordescent.execution.tv_images import StencilRun
from mirrordescent.methods.base import Method, Wrapped
from mirrordescent.methods.certified import Certified
from mirrordescent.methods.conditioned import Conditioned
from mirrordescent.methods.equipped import Equipped
from mirrordescent.methods.never_worse import NeverWorse
from mirrordescent.methods.safeguarded import Safeguarded
from mirrordescent.methods.switch import Switch
from mirrordescent.oracles import Default, Oracle
from mirrordescent.problems.base import Problem


@runner(Equipped)
def equipped_run(method: Equipped, problem: Problem, oracle: Oracle) -> Run[Any] | None:
    """Return the inner method's run with the oracle that belongs to the method."""
    return fast_run(method.method, problem, oracle.combine_with(method.oracle))


@runner(Certified)
def certified_run(method: Certified, problem: Problem, oracle: Oracle) -> Run[Wrapped] | None:
    """Return the inner method's run, if it computes the means of the gradients on the way."""
    inner = fast_run(method.method, problem, oracle)
    if not isinstance(inner, StencilRun) or not inner.computes_means:
        return None
    stencil_run = inner

    def run(state: Wrapped, steps: int) -> Wrapped:
        return Wrapped(*stencil_run.with_means(state.inner, state.own, steps))

    return run


@runner(Conditioned)
def conditioned_run(method: Conditioned, problem: Problem, oracle: Oracle) -> Run[Wrapped] | None:
    """Return the inner method's run, constructed again whenever a state has other features."""
    if fast_run(method.method, problem, oracle) is None:
        return None
    latest: tuple[Method[Any], Run[Any]] | None = None

    def run(state: Wrapped, steps: int) -> Wrapped:
        nonlocal latest
        inner = method.active_method(state)
        if latest is None or latest[0] is not inner:
            chosen = fast_run(inner, problem, oracle) or plain_run(inner, problem, oracle)
            latest = inner, chosen
        return Wrapped(latest[1](state.inner, steps), state.own)

    return run


@runner(Safeguarded)
def safeguarded_run(method: Safeguarded, problem: Problem, oracle: Oracle) -> Run[Wrapped] | None:
    """Return the inner method's run with checks in between; shortened steps are plain ones."""
    inner = fast_run(method.method, problem, oracle)
    if inner is None:
        return None

    def run(state: Wrapped, steps: int) -> Wrapped:
        while steps > 0:
            if bool((state.own.factor < 1).any()):
                state = method.step(problem, state, oracle)
                steps -= 1
                continue
            count = min(steps, method.every - state.k % method.every)
            state = method.check(problem, Wrapped(inner(state.inner, count), state.own))
            steps -= count
        return state

    return run


@runner(NeverWorse)
def never_worse_run(method: NeverWorse, problem: Problem, oracle: Oracle) -> Run[Wrapped] | None:
    """Return the inner method's run with checks in between."""
    inner = fast_run(method.method, problem, oracle)
    if inner is None:
        return None

    def run(state: Wrapped, steps: int) -> Wrapped:
        while steps > 0:
            count = min(steps, method.every - state.k % method.every)
            state = method.check(problem, Wrapped(inner(state.inner, count), state.own))
            steps -= count
        return state

    return run


@runner(Switch)
def switch_run(method: Switch, problem: Problem, oracle: Oracle) -> Run[Wrapped] | None:
    """Return the runs of both methods one after the other, if one of them has a fast run."""
    if method.resolve_oracle(oracle).stochastic:
        return None
    first = fast_run(method.method, problem, oracle)

    @cache  # created at the switch, since its step sizes may be expensive
    def second() -> Run[Any] | None:
        return fast_run(method.then, problem, Default())

    if first is None and second() is None:
        return None

    def run(state: Wrapped, steps: int) -> Wrapped:
        while steps > 0:
            state = method.switch(problem, state)
            if state.own:
                inner = second()
                count = steps
            else:
                inner = first
                count = min(steps, method.after - state.k)
            if inner is None:
                state = method.step(problem, state, oracle)
                steps -= 1
            else:
                state = Wrapped(inner(state.inner, count), state.own)
                steps -= count
        return state

    return run
