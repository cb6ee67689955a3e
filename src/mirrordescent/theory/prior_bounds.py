"""The constants of the theorems' a-priori bounds, sampled before a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Generator, Tensor

from mirrordescent.oracles import Oracle
from mirrordescent.problems import Problem
from mirrordescent.theory.constants import SAFETY
from mirrordescent.theory.energies import dual_step, schedule_value
from mirrordescent.theory.geometry import Coupling, difference, squared_dual_norm
from mirrordescent.trees import Tree, dot, tree_map

DRAWS = 16
"""Draws of a stochastic gradient at every point."""


@dataclass(frozen=True)
class PriorConstants:
    """The constants of the bounds, sampled before the first step: (batch,) each.

    All but the last are multiplied by the safety factor 1.25.

    =====================  ================================================================
    ``second_moment``      σ², the largest E‖G + U‖_*²
    ``variance``           The largest E‖Δ‖_*²
    ``pairing``            C, the largest −⟨U, x − u⟩, at least 0
    ``squared_error``      C', the largest ‖U‖₂²
    ``energy_error``       M, the largest ⟨∇ψ(z̃) − ∇ψ(ẑ), z̃ − u⟩, at least 0
    ``squared_distance``   The largest ‖x − u‖₂²
    ``squared_gradient``   ‖∇f(u)‖_*²
    =====================  ================================================================

    The theorems' own constants are suprema over the whole domain, where most of them are infinite.
    These constants are maxima over a few points that are known before the run. A bound computed
    with them holds for runs that never exceed these constants. A run that diverges exceeds them,
    and then its bound. Constants measured along the run itself would grow with the run.
    """

    second_moment: Tensor
    variance: Tensor
    pairing: Tensor
    squared_error: Tensor
    energy_error: Tensor
    squared_distance: Tensor
    squared_gradient: Tensor


@torch.no_grad()
def sample_prior_constants(
    method: Any,
    problem: Problem,
    coupling: Coupling,
    points: Sequence[Tree],
    oracle: Oracle,
    generator: Generator,
    iterations: int,
    exact: bool,
) -> PriorConstants:
    """Sample the constants of the bounds at some points.

    The error of a step with an inexact inverse is U = e/t. It is therefore sampled with the
    shortest and the longest step and, for AMD, with the smallest and the largest weight. All of
    them are known before the run.

    Args:
        method: Method of the run.
        problem: Problem of the run.
        coupling: Exact geometry of the run with the point u.
        points: Points to sample at.
        oracle: Oracle that supplies gradients.
        generator: Random generator of the oracle.
        iterations: Number of steps.
        exact: Whether the run makes no errors in its geometry.
    """
    mirror = coupling.mirror
    steps = [schedule_value(method.t, k + 1) for k in range(iterations)]
    weights = steps
    if hasattr(method, "dual_weight"):
        weights = [t * schedule_value(method.dual_weight, k + 1) for k, t in enumerate(steps)]
    draws = DRAWS if oracle.stochastic else 1
    samples: list[dict[str, Tensor]] = []
    for x in points:
        gradients = [oracle(problem, x, 0, generator) for _ in range(draws)]
        samples.append(_gradient_constants(problem, coupling, x, gradients))
        if exact:
            continue
        extreme_steps = {min(steps), max(steps)}
        extreme_weights = {min(weights), max(weights)}
        samples += [_step_errors(method, coupling, x, gradients, t) for t in extreme_steps]
        samples += [_energy_error(method, coupling, x, gradients[0], w) for w in extreme_weights]
    largest = {name: SAFETY * _largest(samples, name) for name in samples[0]}
    squared_gradient = squared_dual_norm(mirror, problem.grad(coupling.u))
    return PriorConstants(**largest, squared_gradient=squared_gradient)


def _gradient_constants(
    problem: Problem, coupling: Coupling, x: Tree, gradients: Sequence[Tree]
) -> dict[str, Tensor]:
    """Return the constants of exact steps at a point; all errors are zero."""
    mirror = coupling.mirror
    from_u = difference(x, coupling.u)
    g = problem.grad(x)
    variance = _mean([squared_dual_norm(mirror, difference(G, g)) for G in gradients])
    zero = torch.zeros_like(variance)
    return {
        "variance": variance,
        "squared_distance": dot(from_u, from_u),
        "second_moment": _mean([squared_dual_norm(mirror, G) for G in gradients]),
        "pairing": zero,
        "squared_error": zero,
        "energy_error": zero,
    }


def _step_errors(
    method: Any, coupling: Coupling, x: Tree, gradients: Sequence[Tree], t: float
) -> dict[str, Tensor]:
    """Return the constants of the error U of a step of size t from a point."""
    mirror = coupling.mirror
    displacements = [_displacement(method, mirror.to_dual, x, G, t) for G in gradients]
    errors = [difference(total, G) for total, G in zip(displacements, gradients, strict=True)]
    error = tree_map(lambda *draws: torch.stack(draws).mean(0), *errors)
    return {
        "second_moment": _mean([squared_dual_norm(mirror, total) for total in displacements]),
        "pairing": -dot(error, difference(x, coupling.u)),
        "squared_error": dot(error, error),
    }


def _energy_error(
    method: Any, coupling: Coupling, x: Tree, gradient: Tree, weight: float
) -> dict[str, Tensor]:
    """Return the error term ⟨∇ψ(z̃) − ∇ψ(ẑ), z̃ − u⟩ of AMD for one step from a point."""
    to_dual = coupling.mirror.to_dual
    z_hat_dual = dual_step(to_dual(x), gradient, weight)
    z = method.mirror.to_primal(z_hat_dual)
    error = dot(difference(to_dual(z), z_hat_dual), difference(z, coupling.u))
    return {"energy_error": error}


def _displacement(method: Any, to_dual: Callable[[Tree], Tree], x: Tree, g: Tree, t: float) -> Tree:
    """Return (∇ψ(x) − ∇ψ(x⁺))/t = G + U for the step that the method takes from x."""
    before = to_dual(x)
    after = to_dual(method.mirror.to_primal(dual_step(method.mirror.to_dual(x), g, t)))
    return tree_map(lambda a, b: (a - b) / t, before, after)


def _mean(draws: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(draws)).mean(0)


def _largest(samples: Sequence[dict[str, Tensor]], name: str) -> Tensor:
    """Return the largest of the named numbers per problem, at least 0."""
    return reduce(torch.maximum, [row[name] for row in samples if name in row]).clamp(min=0)
