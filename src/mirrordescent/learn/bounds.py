"""Lower bounds on the minima of a batch of problems, within a time limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from mirrordescent.problems.base import Problem, in_double
from mirrordescent.references.certificate import Certificate, NotCertifiable, certify
from mirrordescent.references.estimate import estimate
from mirrordescent.trees import Tree, batch_size, leaves

PROOF_SHARE = 0.6
"""Share of the time limit for proofs; the rest is for estimates where proofs are not finished."""


@dataclass(frozen=True)
class Bounds:
    """Lower bounds on the minimal values of a batch of problems.

    Args:
        lower: Bounds, (batch,).
        conditions: Statements of users' classes that the proofs rest on; None if some bounds are
            estimates.
        estimated: Number of bounds that are estimates.
    """

    lower: Tensor
    conditions: list[str] | None
    estimated: int = 0


def bounds_within(
    problem: Problem, x0: Tree, tolerance: float = 1e-3, seconds: float = math.inf
) -> Bounds:
    """Prove lower bounds to a relative gap, and estimate those that are not proven in time.

    An estimate is the least value of short runs of classical solvers, minus a small margin.

    Args:
        problem: Batch of problems.
        x0: Starts.
        tolerance: Relative gap to which bounds are proven.
        seconds: Time limit for proofs and estimates together.
    """
    count = batch_size(x0)
    like = next(leaves(x0))
    deadline = perf_counter() + seconds
    try:
        certificate = certify(problem, tolerance, seconds=PROOF_SHARE * seconds)
    except NotCertifiable:
        certificate = certify(
            problem, tolerance, estimate=True, x0=x0, seconds=deadline - perf_counter()
        )
        # If all starting points share one problem, they share its bound.
        return Bounds(certificate.lower.to(like).expand(count), None, count)
    except RuntimeError:
        # f or its gradient raises errors at some points, such as those at which statements are
        # tested.
        return Bounds(_estimates(problem, x0, None, deadline).to(like), None, count)
    conditions = list(certificate.conditional_on)
    lower = certificate.lower.to(like).expand(count)
    unfinished = _unfinished(certificate, tolerance, seconds).expand(count)
    if not bool(unfinished.any()):
        return Bounds(lower, conditions)
    estimates = _estimates(problem, x0, certificate, deadline).to(like)
    # A proven bound above an estimate would be a contradiction, up to rounding.
    lower = torch.where(unfinished, torch.maximum(lower, estimates), lower)
    return Bounds(lower, None, int(unfinished.sum()))


def _unfinished(certificate: Certificate, tolerance: float, seconds: float) -> Tensor:
    """Return the problems whose proofs were not finished in time, (batch,) bool."""
    if seconds == math.inf:
        return torch.zeros_like(certificate.lower, dtype=torch.bool)
    return ~(certificate.relative_gap <= tolerance)


def _estimates(
    problem: Problem, x0: Tree, certificate: Certificate | None, deadline: float
) -> Tensor:
    """Return estimates from short runs, at least as good as the points of a certificate."""
    precise, start = in_double(problem, x0)
    start = precise.domain.project(start)
    value = estimate(precise, start, deadline=deadline)[2]
    if certificate is None:
        return value
    known = certificate.value.to(value)
    margin = 1e-6 * (precise.value(start) - known).abs()
    return torch.minimum(value, (known - margin).expand_as(value))
