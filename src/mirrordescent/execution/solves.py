"""The choice of a run for a solve: a fast run with C kernels, or plain torch."""

from typing import Any

from torch import Generator

from mirrordescent import kernels

# These modules register the fast runs of the library's methods.
from mirrordescent.execution import (
    admm as admm,
    primal_dual as primal_dual,
    signals as signals,
    tv_grids as tv_grids,
    tv_images as tv_images,
    wrappers as wrappers,
)
from mirrordescent.execution.plain import plain_run
from mirrordescent.execution.registry import Run, fast_run
from mirrordescent.methods.base import Method
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem


def steps_for(
    method: Method[Any],
    problem: Problem,
    oracle: Oracle,
    generator: Generator | None = None,
    fused: bool | None = None,
) -> Run[Any]:
    """Return the run that takes the steps of a method on a problem, without an autograd graph.

    Args:
        method: Method that takes the steps.
        problem: Problem to solve.
        oracle: Oracle that the method asks for gradients.
        generator: Source of randomness of a stochastic oracle.
        fused: Whether to use C kernels. By default they are used where possible. True requires
            them. False uses plain torch.

    Raises:
        ValueError: If ``fused`` is True and there are no kernels for this method and problem.
        KernelsUnavailable: If ``fused`` is True and this installation has no compiled kernels.
    """
    use_kernels = kernels.available() if fused is None else fused
    fast = fast_run(method, problem, oracle) if use_kernels else None
    if fused and fast is None:
        raise ValueError(
            f"fused=True, but {type(method).__name__} has no kernel for {type(problem).__name__}; "
            "use fused=None or fused=False"
        )
    if fused:
        kernels.library()  # raises an error if there are no compiled kernels
    return fast or plain_run(method, problem, oracle, generator)
