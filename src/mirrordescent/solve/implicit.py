"""A solver as a layer of a network: its solutions, with derivatives with respect to data, weights and operators."""

from __future__ import annotations

from typing import Any

import torch

from mirrordescent.methods.base import Method
from mirrordescent.oracles import Default, Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.solve.loop import steps_of
from mirrordescent.trees import Tree, map_tensors


def layer(
    problem: Problem, method: Method[Any], x0: Tree | None = None, *, iterations: int = 200, last: int = 20,
    oracle: Oracle | None = None,
) -> Tree:  # fmt: skip
    """Return solutions x* through which derivatives flow: to all that the problem is made of, and to the method.

    .. code-block:: none

        z = T(z; θ) at a fixed point:   dz/dθ = Σ_j (∂T/∂z)^j ∂T/∂θ

    The first steps are taken without a graph, as fast as they are, the ``last`` of them with one: these are the first
    terms of the sum. Where T contracts by ρ, what is left out is ρ^last of it. The derivatives are those of the
    solution if the run has converged, and not of the way to it.

    Args:
        problem: made of tensors that require derivatives, such as ``md.TVDenoising(y, weight)``.
        method: a method whose steps can be differentiated: not one that searches for its steps.
        x0: where to start; the problem's own start by default.
        iterations: how many steps in all.
        last: how many of them derivatives go through.
        oracle: how gradients are computed, as in :func:`~mirrordescent.solve`.

    >>> import torch
    >>> from mirrordescent import GD, Quadratic
    >>> centre = torch.ones(1, 2, requires_grad=True)
    >>> x = layer(Quadratic(torch.ones(2), centre), GD(0.5), iterations=40, last=30)
    >>> torch.autograd.grad(x.sum(), centre)[0]
    tensor([[1., 1.]])
    """
    if not 1 <= last <= iterations:
        raise ValueError(f"layer needs 1 ≤ last ≤ iterations, got last={last} and iterations={iterations}")
    oracle = oracle or Default()
    with torch.no_grad():
        x0 = problem.start() if x0 is None else x0
        problem.check(x0)
        method.asked(oracle)
        state = steps_of(method, problem, oracle)(method.init(x0, problem), iterations - last)
        state = map_tensors(torch.Tensor.detach, state)
    with torch.enable_grad():
        for _ in range(last):
            state = method.step(problem, state, oracle)
        return method.answer(state)
