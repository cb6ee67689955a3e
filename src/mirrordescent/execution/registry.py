"""The registry of fast runs: which classes of methods have them.

A run takes many steps of a method on a problem without building an autograd graph:
``run(state, steps) -> state``. Every method can be run step by step with plain torch
(:func:`~mirrordescent.execution.plain.plain_run`). A class that can do better registers a factory:

.. code-block:: python

    @runner(PDHG)
    def pdhg_run(method, problem, oracle):
        ...
        return run  # or None, if there is no fast run for this problem

Several factories may be registered for one class, each for other problems; the first run is taken.
Factories are found by exact type. A subclass may change the mathematics, so it never gets the fast
run of its parent unless it is registered itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from mirrordescent.methods.base import Method, S
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem

Run: TypeAlias = Callable[[S, int], S]
"""A function of a state and a number of steps. It returns the state after these steps."""

RunFactory: TypeAlias = Callable[[Any, Problem, Oracle], Run[Any] | None]
"""A function of a method, a problem and an oracle. It returns a run, or None if there is none."""

RUNNERS: dict[type, list[RunFactory]] = {}
"""Factories by the exact type of the method."""


def runner(*types: type[Method[Any]]) -> Callable[[RunFactory], RunFactory]:
    """Register a factory of fast runs for exactly these classes of methods."""

    def register(factory: RunFactory) -> RunFactory:
        for each in types:
            RUNNERS.setdefault(each, []).append(factory)
        return factory

    return register


def fast_run(method: Method[Any], problem: Problem, oracle: Oracle) -> Run[Any] | None:
    """Return the fast run of a method on a problem, or None if there is none.

    The runs use C kernels.
    """
    for factory in RUNNERS.get(type(method), ()):
        run = factory(method, problem, oracle)
        if run is not None:
            return run
    return None
