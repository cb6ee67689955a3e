"""Outside solvers of entropic transport: Sinkhorn's algorithm, by POT and in plain torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from mirrordescent.problems.base import Problem
from mirrordescent.problems.transport import EntropicTransport
from mirrordescent.rivals.registry import Rival, SolveTo, register
from mirrordescent.trees import Tree

Solve: TypeAlias = Callable[[EntropicTransport, Tensor, float], Tensor]

STEPS = 5000
"""Largest number of iterations."""

CHECK = 10
"""Iterations between two checks of the marginals."""

SHARP = 200.0
"""Range of the costs, in units of ε, above which exponentials may underflow."""


def _prepare(solve: Solve) -> Callable[[Problem, Tree], SolveTo | None]:
    """Return a preparation that accepts entropic transport only."""

    def prepare(problem: Problem, x0: Tree) -> SolveTo | None:
        if not isinstance(problem, EntropicTransport):
            return None
        start = cast(Tensor, x0)
        return lambda tolerance: solve(problem, start, tolerance)

    return prepare


@torch.no_grad()
def _sinkhorn(problem: EntropicTransport, x0: Tensor, tolerance: float) -> Tensor:
    """Alternate between the potentials of sources and targets, with logarithms."""
    epsilon = problem.epsilon
    log_alpha = problem.alpha.log().unsqueeze(-1)
    log_beta = problem.beta.log().unsqueeze(-2)
    scores = -problem.C / epsilon
    x = (x0 / epsilon).unsqueeze(-1)
    for k in range(STEPS):
        y = -(log_alpha + x + scores).logsumexp(-2, keepdim=True)
        new = -(log_beta + y + scores).logsumexp(-1, keepdim=True)
        if k % CHECK == 0:
            rows = problem.alpha * (x - new).squeeze(-1).exp()  # of the plan of x and y
            if bool(((rows - problem.alpha).abs().sum(-1) <= tolerance).all()):
                break
        x = new
    return epsilon * x.squeeze(-1)


def _pot(problem: EntropicTransport, x0: Tensor, tolerance: float) -> Tensor:
    """Solve problem by problem; with logarithms if the costs are sharp."""
    import ot

    epsilon = problem.epsilon
    costs = problem.C.double().cpu().numpy()
    alpha = problem.alpha.double().expand(len(x0), -1).cpu().numpy()
    beta = problem.beta.double().expand(len(x0), -1).cpu().numpy()
    sharp = float(problem.C.max() - problem.C.min()) > SHARP * epsilon
    potentials = []
    for i in range(len(x0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, log = cast(Any, ot).sinkhorn(
                alpha[i],
                beta[i],
                costs if costs.ndim == 2 else costs[i],
                epsilon,
                method="sinkhorn_log" if sharp else "sinkhorn",
                numItermax=STEPS,
                stopThr=tolerance,
                log=True,
            )
        scaling = log["log_u"] if sharp else np.log(log["u"])
        potentials.append(epsilon * (scaling - np.log(alpha[i])))
    return torch.from_numpy(np.stack(potentials)).to(x0)


@torch.no_grad()
def _pot_batch(problem: EntropicTransport, x0: Tensor, tolerance: float) -> Tensor:
    """Solve all problems at once, with logarithms."""
    from ot import batch

    count = len(x0)
    alpha = problem.alpha.expand(count, -1)
    found = cast(Any, batch).bregman_log_projection_batch(
        -problem.C.expand(count, -1, -1) / problem.epsilon,
        alpha,
        problem.beta.expand(count, -1),
        max_iter=STEPS,
        tol=tolerance,
    )
    scaling, _ = found["potentials"]
    return problem.epsilon * (scaling - alpha.log())


register(Rival("Sinkhorn", _prepare(_sinkhorn)))
register(Rival("POT", _prepare(_pot), "ot"))
register(Rival("POT in batches", _prepare(_pot_batch), "ot"))
