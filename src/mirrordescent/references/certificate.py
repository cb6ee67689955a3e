"""Certified optima: a point, its value, and a proven lower bound, for every problem of a batch."""

import copy
import warnings
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from mirrordescent.cache import fingerprint, remember
from mirrordescent.methods.primal_dual import PDHG, DualFISTA
from mirrordescent.problems.base import Problem
from mirrordescent.solve import Look, Rule, relative_gap, solve

ITERATIONS = 40_000


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

    A problem that can find its minimisers by itself does so (:meth:`Problem.minimiser`: the SVM, quadratics); else its
    saddle-point form (:meth:`Problem.saddle_point`: total variation, Poisson tomography) is solved by dual FISTA if it
    is strongly convex, and by PDHG if not. The result is kept on disk under a hash of the problem's content. There is a
    warning if the tolerance was not reached; the certificate then tells the gap that was.

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
    x, lower = precise.minimiser(tolerance) or _by_saddle_point(precise, tolerance)
    start_value = precise.value(precise.start(len(x)))
    return {"x": x, "value": precise.value(x), "lower": lower, "start_value": start_value}


def _by_saddle_point(problem: Problem, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the best iterate and the best lower bound of a primal-dual method."""
    saddle = problem.saddle_point()
    if saddle is None:
        raise TypeError(
            f"{type(problem).__name__} cannot be certified: it has neither a saddle-point form (saddle_point) "
            f"nor a way to find its minimiser by itself (minimiser)"
        )
    method = DualFISTA() if saddle.F_convexity > 0 else PDHG(saddle.ratio)
    solution = solve(problem, method, iterations=ITERATIONS, stop=_small_gap(problem, tolerance), check_every=50)
    return cast(Tensor, solution.best_x), cast(Tensor, solution.lower)


def _small_gap(problem: Problem, tolerance: float) -> Rule:
    """Stop at best − lower ≤ tolerance · min(f(x₀) − lower, f(x₀ made constant)), or at rounding errors.

    With a large weight, f(x₀) is so large that a gap relative to it alone would mean little.
    """
    start = cast(Tensor, problem.start())
    flat = problem.value(start.mean(tuple(range(2, start.ndim)), keepdim=True).expand_as(start))

    def test(look: Look) -> Tensor:
        lower = cast(Tensor, look.lower)
        rounding = torch.finfo(flat.dtype).eps * (1 + look.start_value.abs())
        allowed = tolerance * torch.minimum(look.start_value - lower, flat)
        return look.best_value - lower <= torch.maximum(allowed, rounding)

    return Rule(test)
