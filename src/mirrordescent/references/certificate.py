"""Certified optima: a point, its value, and a proven lower bound, for every problem of a batch."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from mirrordescent.cache import fingerprint, remember
from mirrordescent.problems.base import Problem
from mirrordescent.problems.linear_models import SVM
from mirrordescent.problems.tomography import PoissonTomography
from mirrordescent.problems.tv import TVInpainting
from mirrordescent.references.svm import solve_svm
from mirrordescent.references.tomography import solve_tomography
from mirrordescent.references.tv import solve_tv
from mirrordescent.solve.stopping import relative_gap


@dataclass(frozen=True)
class Certificate:
    """x*, f(x*) and a lower bound on min f per problem, in float64: lower ≤ min f ≤ value.

    ``start_value`` is f at the problem's own start, to which relative gaps refer.
    """

    x: Tensor
    value: Tensor
    lower: Tensor
    start_value: Tensor

    @property
    def relative_gap(self) -> Tensor:
        """(f(x*) − lower) / (f(x₀) − lower), per problem."""
        return relative_gap(self.value, self.lower, self.start_value)


def certify(problem: Problem, tolerance: float = 1e-6, *, cache: bool = True) -> Certificate:
    """Solve a batch of problems in float64 to a certified relative gap.

    For total-variation problems (dual FISTA where every pixel is observed, else PDHG), for Poisson tomography
    (PDHG) and for the SVM (an interior-point method). The result is kept on disk under a hash of the problem's
    content. Warns if the tolerance was not reached; the certificate then says what was.

    >>> import torch
    >>> from mirrordescent import TVDenoising
    >>> reference = certify(TVDenoising(torch.rand(1, 1, 8, 8)), cache=False)
    >>> bool(reference.lower <= reference.value), bool(reference.relative_gap <= 1e-6)
    (True, True)
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    key = fingerprint(problem, f"certify {tolerance:g}") if cache else None
    entry = remember(key, lambda: _compute(problem, tolerance))
    device = next(problem.buffers(), torch.empty(0)).device
    certificate = Certificate(**{name: tensor.to(device) for name, tensor in entry.items()})
    worst = float(certificate.relative_gap.max())
    if worst > tolerance:
        warnings.warn(f"certified to a relative gap of {worst:.1e} only, not {tolerance:.1e}", stacklevel=2)
    return certificate


@torch.no_grad()
def _compute(problem: Problem, tolerance: float) -> dict[str, Tensor]:
    precise = copy.deepcopy(problem).double()
    x, lower = _solve(precise, tolerance)
    start_value = precise.value(precise.start(len(x)))
    return {"x": x, "value": precise.value(x), "lower": lower, "start_value": start_value}


@singledispatch
def _solve(problem: Problem, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return a minimiser and a lower bound of a problem whose data are float64."""
    raise TypeError(f"there is no certified reference for {type(problem).__name__}")


_solve.register(TVInpainting)(solve_tv)
_solve.register(SVM)(solve_svm)
_solve.register(PoissonTomography)(solve_tomography)
