"""Steps with plain torch, which work for every method."""

from typing import Any

from torch import Generator

from mirrordescent.execution.registry import Run
from mirrordescent.methods.base import Method
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem


def plain_run(
    method: Method[Any], problem: Problem, oracle: Oracle, generator: Generator | None = None
) -> Run[Any]:
    """Return a run that calls ``method.step`` again and again."""

    def run(state: Any, steps: int) -> Any:
        for _ in range(steps):
            state = method.step(problem, state, oracle, generator)
        return state

    return run
