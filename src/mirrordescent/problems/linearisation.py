"""Lower bounds on the minimum of a convex function over a set, from one gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mirrordescent._internal.rounding import sum_error, unit
from mirrordescent.domains import Box, Domain, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.trees import (
    Tree,
    add_over_leaves,
    dot,
    leaves,
    norm,
    spread,
    sum_per_sample,
    tree_map,
)


def least_model_value(
    domain: Domain, x: Tree, gradient: Tree, error: Tensor, convexity: float | Tensor
) -> Tensor:
    """Return a lower bound on min_{x' ∈ X} ⟨g, x' − x⟩ + (μ/2)‖x' − x‖², rounded down: (batch,).

    .. code-block:: none

        q(d) = ⟨g̃, d⟩ + (μ/2)‖d‖²,   g = g̃ + e,   ‖e‖ ≤ E,   r = ∇q(d̃) = g̃ + μd̃
        min q ≥ q(d̃) + min_{x' ∈ X} ⟨r, x' − x − d̃⟩ + (μ/2)‖x' − x − d̃‖²     for every d̃
        min q + ⟨e, ·⟩ ≥ min q − E‖d*‖ − E²/(2μ),   ‖d* − d̃‖² ≤ (2/μ)(q(d̃) − min q)

    The first inequality holds for every d̃, so the projection that computes d̃ may be inexact. If
    μ = 0 and X is bounded, the minimum is at a vertex, and the error costs E times the largest
    ‖x' − x‖. The better of the two bounds is returned, and −∞ where none applies.

    Args:
        domain: Set X.
        x: Points.
        gradient: Computed gradients g̃ at these points.
        error: Bound E on ‖g̃ − g‖, (batch,).
        convexity: Constant μ ≥ 0, a number or (batch,).
    """
    mu = torch.as_tensor(convexity, dtype=error.dtype, device=error.device).expand_as(error)
    count = sum(leaf[0].numel() for leaf in leaves(x))
    bounds = [torch.full_like(error, -torch.inf)]
    if bool((mu > 0).any()):
        divisor = torch.where(mu > 0, mu, torch.inf)
        bound = _strongly_convex(domain, x, gradient, error, divisor, count)
        bounds.append(torch.where(mu > 0, bound, -torch.inf))
    if domain.bounded:
        size = magnitude(domain, gradient) + abs_dot(gradient, x)
        least = domain.least(gradient) - dot(gradient, x)
        bounds.append(least - error * reach(domain, x) - sum_error(size, 2 * count))
    return torch.stack(bounds).nan_to_num(nan=-torch.inf, neginf=-torch.inf).amax(0)


def _strongly_convex(
    domain: Domain, x: Tree, gradient: Tree, error: Tensor, mu: Tensor, count: int
) -> Tensor:
    """Return the bound for μ > 0; numbers where μ = ∞ have no meaning."""
    if isinstance(domain, WholeSpace):
        cross = 2 * norm(gradient).detach() * error + error.square()
        square = dot(gradient, gradient) + cross
        return -square / (2 * mu) * (1 + unit(count, error.dtype))
    target = domain.project(tree_map(lambda a, b: a - b / spread(mu, b), x, gradient))
    step = tree_map(torch.sub, target, x)
    residual = tree_map(lambda g, d: g + spread(mu, d) * d, gradient, step)
    size = abs_dot(gradient, step) + mu / 2 * dot(step, step)
    at_target = dot(gradient, step) + mu / 2 * dot(step, step)
    slack, slack_size = _optimality(domain, residual, target, mu)
    # The rounding errors of d̃ and r act like an error of the gradient.
    inexact = unit(0, error.dtype) * (norm(gradient) + mu * norm(step))
    error = error + inexact.detach()
    decrease = slack.clamp(max=0) - sum_error(size + slack_size, 2 * count)
    distance = 2 * norm(step) + (-2 * decrease / mu).sqrt()
    loss = error * distance.detach() + error.square() / (2 * mu)
    return at_target + decrease - loss * (1 + unit(count, error.dtype))


def _optimality(domain: Domain, r: Tree, target: Tree, mu: Tensor) -> tuple[Tensor, Tensor]:
    """Return a bound on min_{x' ∈ X} ⟨r, x' − t⟩ + (μ/2)‖x' − t‖² and the size of its summands."""
    if isinstance(domain, PositiveOrthant):

        def entries(residual: Tensor, at: Tensor) -> Tensor:
            below = residual.clamp(max=0).square() / (2 * spread(mu, residual))
            return sum_per_sample(below + residual.clamp(min=0) * at)

        cost = add_over_leaves(entries, r, target)
        return -cost, cost
    if domain.bounded:
        return domain.least(r) - dot(r, target), magnitude(domain, r) + abs_dot(r, target)
    # Of other sets only the projection is known: the distance of t from x − g/μ projected exactly
    # is a few roundings of the numbers that enter it.
    count = sum(leaf[0].numel() for leaf in leaves(r))
    shift = unit(count, mu.dtype) * (norm(target) + norm(r) / mu)
    return -norm(r) * shift, torch.zeros_like(mu)


def reach(domain: Domain, x: Tree) -> Tensor:
    """Return a bound on ‖x' − x‖ over a bounded set: (batch,)."""
    if isinstance(domain, Box):
        ends = max(abs(domain.lower), abs(domain.upper))
    elif isinstance(domain, Simplex):
        ends = 1.0
    else:  # the largest entry in absolute value, by linear functions of all entries
        ones = tree_map(torch.ones_like, x)
        opposite = tree_map(torch.neg, ones)
        most = torch.maximum(-domain.least(ones), -domain.least(opposite)).abs()
        return 2 * (norm(x) + most)
    count = sum(leaf[0].numel() for leaf in leaves(x))
    return (norm(x) + ends * math.sqrt(count)) * (1 + unit(count, norm(x).dtype))


def magnitude(domain: Domain, g: Tree) -> Tensor:
    """Return a bound on Σ|gᵢ||xᵢ| over a bounded set, where its minimum is a sum: (batch,)."""
    if isinstance(domain, Box):
        ends = max(abs(domain.lower), abs(domain.upper))
        return ends * add_over_leaves(lambda leaf: sum_per_sample(leaf.abs()), g)
    if isinstance(domain, Simplex):
        return add_over_leaves(lambda leaf: sum_per_sample(leaf.abs().amax(-1)), g)
    return domain.least(g).abs()


def abs_dot(first: Tree, second: Tree) -> Tensor:
    """Σ|aᵢbᵢ|: (batch,)."""
    return add_over_leaves(lambda a, b: sum_per_sample((a * b).abs()), first, second)
