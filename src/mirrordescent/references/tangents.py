"""Lower bounds from one point: a convex f lies above its tangents and above parabolas.

These are second implementations, for the verification of certificates. Gradients are derivatives of
``value`` that autograd computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from mirrordescent.domains import Box, Domain, PositiveOrthant, Simplex
from mirrordescent.problems import LeastSquares, Problem, Quadratic
from mirrordescent.problems.origin import user_definition
from mirrordescent.trees import dot, norm, sum_per_sample

EPS = torch.finfo(torch.float64).eps

EXACT_SIZE = 24
"""Largest matrix that is factorised in rational arithmetic."""


def unit(count: int) -> float:
    """Return a bound on the relative rounding error of sums of ``count`` terms."""
    return (64 + count) * EPS


class Model(NamedTuple):
    """A function q(x') = f(x) + ⟨g + δ, x' − x⟩ + (μ/2)‖x' − x‖² ≤ f(x'), for an unknown error δ.

    Attributes:
        value: f(x), rounded down, (batch,).
        gradient: g.
        error: Bound on ‖δ‖, (batch,).
        convexity: μ ≥ 0.
    """

    value: Tensor
    gradient: Tensor
    error: Tensor
    convexity: float


def tangent_bound(problem: Problem, x: Tensor) -> Tensor | None:
    """Return the minimum over the set of the model at x; None if the bound is unknown."""
    if _is_own(problem, Quadratic):
        return _quadratic_bound(problem)  # type: ignore[arg-type]
    model = model_at(problem, x)
    if model is None:
        return None
    bounds = []
    decrease = least_of_parabola(problem.domain, x, model.gradient, model.error, model.convexity)
    if decrease is not None:
        bounds.append(model.value + decrease)
    if _is_own(problem, LeastSquares):
        bounds.append(torch.zeros_like(model.value))  # f is a sum of squares
        if isinstance(problem.domain, PositiveOrthant):
            bounds.append(_orthant_dual(problem, x))  # type: ignore[arg-type]
    return torch.stack(bounds).amax(0) if bounds else None


def model_at(problem: Problem, x: Tensor) -> Model | None:
    """Return the model of a convex f at x; None if f is not convex or not differentiable there."""
    if _is_own(problem, LeastSquares):
        return _least_squares_model(problem, x)  # type: ignore[arg-type]
    return _differentiated_model(problem, x)


def _is_own(problem: Problem, cls: type[Problem]) -> bool:
    """Tell whether f is that of a class of this library, also in a subclass."""
    return isinstance(problem, cls) and user_definition(problem, "value", "convex") is None


def _differentiated_model(problem: Problem, x: Tensor) -> Model | None:
    """Differentiate the value by autograd.

    The rounding error of f(x) is estimated by the sensitivity Σ|∂f/∂θ||θ| to the data θ and to x,
    and is at least the error that the problem states.
    """
    if not problem.convex:
        return None
    data = [b for b in problem.buffers() if b.is_floating_point() and not b.requires_grad]
    with torch.inference_mode(False), torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        try:
            for tensor in data:
                tensor.requires_grad_()
            value = problem.value(point)
            grads: Sequence[Tensor | None] = torch.autograd.grad(
                value.sum(), [point, *data], allow_unused=True
            )
        except RuntimeError:  # the value has no derivative that autograd can compute
            return None
        finally:
            for tensor in data:
                tensor.requires_grad_(False)
    value = value.detach()
    g = grads[0]
    if g is None:
        return None
    units = unit(x[0].numel())
    size = value.abs() + sum_per_sample((g * x).abs())
    for tensor, grad in zip(data, grads[1:], strict=True):
        if grad is None:
            continue
        sensitivity = (grad * tensor).abs()
        own_data = problem.batch is not None and tensor.shape[:1] == (problem.batch,)
        size = size + (sum_per_sample(sensitivity) if own_data else float(sensitivity.sum()))
    smoothness = problem.smoothness() or 0.0
    error = norm(g)
    if math.isfinite(smoothness):
        error = error + smoothness * norm(x)
    convexity = problem.strong_convexity() or 0.0
    value_error = torch.maximum(units * size, problem.value_error(x, value))
    gradient_error = torch.maximum(units * error, problem.gradient_error(x, g))
    return Model(value - value_error, g, gradient_error, convexity)


def _least_squares_model(problem: LeastSquares, x: Tensor) -> Model:
    """½‖r‖², Aᵀr and σ_min(A)². The errors of r and of Aᵀr are bounded entry by entry."""
    A = problem.A if problem.A.ndim == 3 else problem.A.expand(len(x), -1, -1)
    b = problem.b.expand(len(x), -1)
    rows, columns = A.shape[-2:]
    units = 4 * (rows + columns + 8) * EPS
    r = _times(A, x) - b
    r_error = units * (_times(A.abs(), x.abs()) + b.abs())
    g = _times(A.mT, r)
    g_error = _times(A.abs().mT, units * r.abs() + 2 * r_error)
    value = 0.5 * r.square().sum(-1)
    value_error = (r.abs() * r_error + r_error.square()).sum(-1) + units * value
    convexity = 0.0
    if rows >= columns:
        singular = torch.linalg.svdvals(problem.A)
        least = singular[..., -1] - units * singular[..., 0]
        convexity = float(least.min().clamp(min=0)) ** 2
    return Model(value - value_error, g, norm(g_error), convexity)


def _orthant_dual(problem: LeastSquares, x: Tensor) -> Tensor:
    """⟨b, u⟩ − ½‖u‖² for u = b − Ax − cA1 with Aᵀu ≤ 0, also after rounding; −∞ if there is none.

    f(x') ≥ ⟨u, b − Ax'⟩ − ½‖u‖² for every u, and ⟨Aᵀu, x'⟩ ≤ 0 for x' ≥ 0.
    """
    A = problem.A if problem.A.ndim == 3 else problem.A.expand(len(x), -1, -1)
    b = problem.b.expand(len(x), -1)
    units = 4 * (sum(A.shape[-2:]) + 8) * EPS
    ones = A.sum(-1)
    r = b - _times(A, x)

    def slopes(u: Tensor) -> Tensor:
        """Upper bounds on Aᵀu."""
        return _times(A.mT, u) + units * _times(A.abs().mT, u.abs())

    gain = _times(A.mT, ones)
    needed = torch.where(slopes(r) > 0, slopes(r) / gain.clamp(min=0), 0.0)
    c = needed.amax(-1, keepdim=True) * (1 + 1e-9)
    u = r - c.nan_to_num(posinf=0.0) * ones
    feasible = (slopes(u) <= 0).all(-1) & c.squeeze(-1).isfinite()
    linear = b * u
    square = 0.5 * u.square()
    bound = (linear - square).sum(-1) - units * (linear.abs() + square).sum(-1)
    return torch.where(feasible, bound, -torch.inf)


def _times(A: Tensor, x: Tensor) -> Tensor:
    """Ax for matrices (batch, m, n) and vectors (batch, n)."""
    return (A @ x.unsqueeze(-1)).squeeze(-1)


def _quadratic_bound(problem: Quadratic) -> Tensor | None:
    """Return 0, the value at the centre, if A is positive semidefinite; else None.

    The smallest eigenvalue must exceed the rounding error, unless A is diagonal or is small enough
    for elimination in rational arithmetic.
    """
    A = problem.A
    zeros = torch.zeros(problem.batch or 1, dtype=torch.float64, device=A.device)
    if A.ndim == 1:
        return zeros if bool((A >= 0).all()) else None
    n = A.shape[-1]
    symmetric = (A + A.mT) / 2
    eigenvalues = torch.linalg.eigvalsh(symmetric)
    rounding = 4 * n * (n + 8) * EPS * eigenvalues.abs().amax(-1)
    undecided = (eigenvalues[..., 0] <= rounding).reshape(-1)
    for matrix in A.reshape(-1, n, n)[undecided]:
        if n > EXACT_SIZE or not _has_factors(matrix):
            return None
    return zeros


def _has_factors(matrix: Tensor) -> bool:
    """Tell whether A + Aᵀ = LDLᵀ with D ≥ 0, in rational arithmetic.

    Columns of L are computed one by one, and a pivot 0 needs a column of zeros.
    """
    rows = [[Fraction(a) for a in row] for row in matrix.tolist()]
    n = len(rows)
    rest = [[rows[i][j] + rows[j][i] for j in range(n)] for i in range(n)]
    for k in range(n):
        pivot = rest[k][k]
        column = [rest[i][k] for i in range(n)]
        if pivot < 0 or (pivot == 0 and any(column[k:])):
            return False
        if pivot == 0:
            continue
        for i in range(k + 1, n):
            for j in range(k + 1, n):
                rest[i][j] -= column[i] * column[j] / pivot
    return True


def least_of_parabola(
    domain: Domain, x: Tensor, g: Tensor, error: Tensor, convexity: float
) -> Tensor | None:
    """Return a lower bound on ⟨g + δ, x' − x⟩ + (μ/2)‖x' − x‖² over x' ∈ X and ‖δ‖ ≤ error.

    For μ > 0 it is (μ/2)·dist(z, X)² − ‖g‖²/(2μ) with z = x − g/μ. A hyperplane that separates z
    from X bounds the distance from below.
    """
    bounds = []
    units = unit(x[0].numel())
    if convexity > 0:
        length = norm(g) + error
        bound = -length.square() / (2 * convexity) * (1 + units)
        z = x - g / convexity
        normal = z - domain.project(z)  # type: ignore[operator]
        support = support_function(domain, normal)
        if support is not None:
            blur = units * norm(normal) * (norm(z) + norm(x)) + norm(normal) * error / convexity
            clearance = (dot(normal, z) - support - blur) / norm(normal).clamp(min=1e-300)
            distance = torch.where(norm(normal) > 0, clearance, 0.0).clamp(min=0)
            bound = bound + convexity / 2 * distance.square() * (1 - units)
        bounds.append(bound)
    support = support_function(domain, -g)
    if domain.bounded and support is not None:
        distance = radius(domain, x) + norm(x)
        linear = -support - dot(g, x)
        bounds.append(linear - units * norm(g) * distance - error * distance)
    return torch.stack(bounds).amax(0) if bounds else None


def support_function(domain: Domain, direction: Tensor) -> Tensor | None:
    """max_{x ∈ X} ⟨direction, x⟩ per sample; None for a set that is not known here."""
    if type(domain) is Box:
        ends = torch.maximum(domain.lower * direction, domain.upper * direction)
        return sum_per_sample(ends)
    if type(domain) is Simplex:
        return sum_per_sample(direction.amax(-1))
    if type(domain) is PositiveOrthant:
        outside = (direction > 0).flatten(1).any(1)
        return torch.where(outside, torch.inf, 0.0).to(direction)
    return None


def radius(domain: Domain, x: Tensor) -> float:
    """An upper bound on ‖x‖ over a bounded set, for points of the shape of x."""
    if isinstance(domain, Box):
        return max(abs(domain.lower), abs(domain.upper)) * math.sqrt(x[0].numel())
    return math.sqrt(x[0].numel() / x.shape[-1])
