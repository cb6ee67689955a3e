"""Lower bounds on the minima of composite problems, from dual points."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from mirrordescent._internal.rounding import rounded_down, sum_error, unit
from mirrordescent.domains import Domain, PositiveOrthant, WholeSpace
from mirrordescent.problems.base import Problem
from mirrordescent.problems.fits import Fit, SquaredError
from mirrordescent.problems.linearisation import abs_dot, least_model_value, magnitude, reach
from mirrordescent.problems.terms import Blocks, Term
from mirrordescent.trees import dot, norm, per_sample, sum_per_sample

NORM_SLACK = 1.25
"""Factor by which norms of operators are charged, because they may be estimates."""


class Dual(NamedTuple):
    """A dual point: uⱼ of every term, in the domain of its conjugate, and v of the data, if any."""

    terms: list[Blocks]
    data: Tensor | None

    def double(self) -> Dual:
        """Return the dual point in double precision."""
        terms = [{name: block.double() for name, block in u.items()} for u in self.terms]
        return Dual(terms, None if self.data is None else self.data.double())


def add_adjoints(out: Tensor, smooth: Problem, terms: Sequence[Term], dual: Dual) -> Tensor:
    """Add w = AᵀZv + ΣⱼKⱼᵀuⱼ to ``out``, which may be overwritten, and return the sum."""
    for term, u in zip(terms, dual.terms, strict=True):
        out = term.add_adjoint(out, u)
    return out if dual.data is None else out + cast(Fit, smooth).observe_adjoint(dual.data)


def dual_bound(
    smooth: Problem, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual, level: Tensor
) -> Tensor:
    """Return the best lower bound on min_X f₀ + Σⱼ gⱼ(Kⱼ·) that a dual point proves: (batch,).

    The bound is computed in double precision, if the operators support it, and rounded down.

    Args:
        smooth: Smooth part f₀.
        terms: Terms gⱼ(Kⱼ·).
        domain: Set X.
        x: Point where f₀ is linearised.
        dual: Dual point.
        level: Value of f at some point, which minimisers do not exceed, (batch,).
    """
    level = level.detach()
    level = level + (1e-3 + unit(x[0].numel(), level.dtype)) * level.abs()  # rounding of f
    try:
        bounds = _bounds(smooth, terms, domain, x.double(), dual.double(), level.double())
    except RuntimeError:  # an operator does not accept double precision
        bounds = _bounds(smooth, terms, domain, x, dual, level)
    if not bounds:
        return rounded_down(x.new_full((len(x),), -torch.inf), x.dtype)
    best = torch.stack(bounds).nan_to_num(nan=-torch.inf, neginf=-torch.inf).amax(0)
    return rounded_down(best, x.dtype)


@torch.no_grad()
def proving_points(
    smooth: Problem, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual, level: Tensor
) -> list[Dual]:
    """Return the dual points from which :func:`dual_bound` is computed.

    They are in double precision, if the operators support it. They are the given dual point and,
    on an unbounded set, a feasible one near it. The arguments are those of :func:`dual_bound`.
    """
    try:
        return _proving_points(smooth, terms, domain, x.double(), dual.double(), level.double())
    except RuntimeError:  # an operator does not accept double precision
        return _proving_points(smooth, terms, domain, x, dual, level)


def _proving_points(
    smooth: Problem, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual, level: Tensor
) -> list[Dual]:
    dual = Dual(_into_domains(terms, dual.terms), dual.data)
    points = [dual]
    if dual.data is not None and isinstance(domain, WholeSpace | PositiveOrthant):
        one_sided = isinstance(domain, PositiveOrthant)
        found = _feasible_point(cast(Fit, smooth), terms, one_sided, x, dual, level)
        if found is not None:
            points.append(found.dual)
    return points


def _bounds(
    smooth: Problem, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual, level: Tensor
) -> list[Tensor]:
    """Return every bound that applies to the problem."""
    bounds = []
    dual = Dual(_into_domains(terms, dual.terms), dual.data)
    convexity = smooth.strong_convexity() or 0.0
    if smooth.convex and (convexity > 0 or domain.bounded):
        bounds.append(_bound_by_linearisation(smooth, convexity, terms, domain, x, dual))
    if dual.data is not None and domain.bounded:
        bounds.append(_bound_on_bounded_set(cast(Fit, smooth), terms, domain, x, dual))
    if dual.data is not None and isinstance(domain, WholeSpace | PositiveOrthant):
        one_sided = isinstance(domain, PositiveOrthant)
        bound = _bound_at_feasible_point(cast(Fit, smooth), terms, one_sided, x, dual, level)
        if bound is not None:
            bounds.append(bound)
    return bounds


def _bound_by_linearisation(
    smooth: Problem, convexity: float, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual
) -> Tensor:
    """min_{x' ∈ X} f₀(x) + ⟨∇f₀(x), x' − x⟩ + (μ/2)‖x' − x‖² + ⟨w, x'⟩ − Σⱼ gⱼ*(uⱼ).

    Here w = ΣⱼKⱼᵀuⱼ, because gⱼ(Kⱼx') ≥ ⟨uⱼ, Kⱼx'⟩ − gⱼ*(uⱼ). Rounding errors of f₀, ∇f₀ and w are
    errors of the value and of the gradient of the model.
    """
    if next(smooth.buffers()).dtype != x.dtype:
        smooth = copy.deepcopy(smooth).to(x.dtype)
    only_terms = Dual(dual.terms, None)
    w = add_adjoints(torch.zeros_like(x), smooth, terms, only_terms)
    value = smooth.value(x)
    g = cast(Tensor, smooth.grad(x))
    value_error = smooth.value_error(x, value)
    gradient_error = smooth.gradient_error(x, g)
    error = _adjoint_error(smooth, terms, only_terms, x)
    g = g + w
    gradient_error = gradient_error.detach() + error + unit(0, x.dtype) * norm(g).detach()
    decrease = least_model_value(domain, x, g, gradient_error, convexity)
    linear = dot(w, x)
    conjugates = _sum_of_conjugates(terms, dual.terms, value)
    size = value.abs() + decrease.abs().nan_to_num(posinf=0.0) + abs_dot(w, x) + conjugates.abs()
    loss = value_error.detach() + error * norm(x).detach() + _rounding(size, x, dual)
    return value + decrease + linear - conjugates - loss


def _bound_on_bounded_set(
    fit: Fit, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual
) -> Tensor:
    """min_{x' ∈ X} ⟨w, x'⟩ − d*(v) − Σⱼ gⱼ*(uⱼ) with w = AᵀZv + ΣⱼKⱼᵀuⱼ, for a bounded X.

    An error of w costs its norm times the largest ‖x'‖.
    """
    v = cast(Tensor, dual.data)
    w = add_adjoints(torch.zeros_like(x), fit, terms, dual)
    value, size = fit.conjugate(v)
    least = domain.least(w)
    conjugates = _sum_of_conjugates(terms, dual.terms, value)
    size = magnitude(domain, w) + size + conjugates.abs()
    loss = _adjoint_error(fit, terms, dual, x) * reach(domain, torch.zeros_like(x))
    return least - value - conjugates - loss - _rounding(size, x, dual)


class _Feasible(NamedTuple):
    """A feasible dual point, its factor α, and the cost of what is infeasible about it."""

    dual: Dual
    alpha: Tensor
    cost: Tensor


def _bound_at_feasible_point(
    fit: Fit, terms: Sequence[Term], one_sided: bool, x: Tensor, dual: Dual, level: Tensor
) -> Tensor | None:
    """−d*(v) − Σⱼ gⱼ*(uⱼ) at a feasible dual point near the given one; None if none is found.

    Its residual, and the rounding error of it, are charged.
    """
    found = _feasible_point(fit, terms, one_sided, x, dual, level)
    if found is None:
        return None
    value, size = fit.conjugate(cast(Tensor, found.dual.data))
    conjugates = _sum_of_conjugates(terms, found.dual.terms, value)
    cost = torch.where(found.alpha > 0, 1.01 * found.alpha.detach() * found.cost, 0.0)
    return -value - conjugates - cost - _rounding(size + conjugates.abs(), x, dual)


def _feasible_point(
    fit: Fit, terms: Sequence[Term], one_sided: bool, x: Tensor, dual: Dual, level: Tensor
) -> _Feasible | None:
    """Return a feasible dual point near the given one; None if none is found.

    Feasible means AᵀZv + ΣⱼKⱼᵀuⱼ = 0 on all of Rⁿ, or ≥ 0 if X is x ≥ 0 (``one_sided``).

    1. If a term can solve Kᵀu = w, it corrects its dual point. Otherwise, on x ≥ 0, v is raised.
    2. What is left of w, and its rounding error, cost at most their norm times a bound on ‖x‖ over
       the points where f is at most ``level``. This set contains the minimisers.
    3. The corrected dual point is scaled by a common factor α into the domains of the conjugates.
       For a squared error, α is also the factor with the best bound.
    """
    v = fit.apply_mask(cast(Tensor, dual.data))
    duals = list(dual.terms)

    def residual(data: Tensor | None) -> Tensor:
        return add_adjoints(torch.zeros_like(x), fit, terms, Dual(duals, data))

    correcting = _correcting_term(terms)
    if correcting is not None:
        term = terms[correcting]
        constants = None
        if not term.constants_in_range:
            rest = residual(None).sum(tuple(range(2, x.ndim)))
            constants = _observed_constants(fit, x)
            v = fit.apply_mask(fit.satisfy_moments(v, constants, rest, one_sided))
        correction = term.solve_adjoint(residual(v), one_sided)
        duals[correcting] = {
            name: block - correction[name] for name, block in duals[correcting].items()
        }
        w = residual(v).detach()
        left = norm(w.clamp(max=0) if one_sided else w)
        left = left + _adjoint_error(fit, terms, Dual(duals, v), x)
        error = _residual_cost(fit, term, constants, left, x, level)
    elif one_sided:
        v = fit.apply_mask(fit.lift_to_nonnegative(v, residual(v)))
        deficit = (-residual(v).detach()).clamp(min=0)
        adjoint_error = _adjoint_error(fit, terms, Dual(duals, v), x)
        error = _deficit_cost(fit, terms, deficit, adjoint_error, level)
    else:
        return None
    gauges = [term.dual_gauge(u) for term, u in zip(terms, duals, strict=True)]
    gauge = torch.stack([torch.zeros_like(level), *gauges]).amax(0)
    alpha = (1 - unit(64, v.dtype)) / gauge  # infinite if all conjugates are finite
    if isinstance(fit, SquaredError):
        # −α⟨y, v⟩ − α²·square is largest at α = −⟨y, v⟩/(2·square).
        square = sum_per_sample(v.square()) / (2 * fit.curvature)
        square = square + _sum_of_conjugates(terms, duals, level)
        best = (-dot(fit.y.to(v), v) / (2 * square)).nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
        alpha = torch.minimum(alpha, best)
    else:
        alpha = alpha.clamp(max=1)
    v = per_sample(alpha, v) * v
    duals = [{name: per_sample(alpha, block) * block for name, block in u.items()} for u in duals]
    return _Feasible(Dual(duals, v), alpha, error)


@torch.no_grad()
def _residual_cost(
    fit: Fit, term: Term, constants: Tensor | None, left: Tensor, x: Tensor, level: Tensor
) -> Tensor:
    """Return a bound on ⟨w, x⟩ over the points with f ≤ level, for all w of a norm: (batch,).

    Args:
        fit: Data fit.
        term: Term that bounds x.
        constants: Images ZAx of constants, if the term does not see constants; else None.
        left: Norm of w, (batch,).
        x: Points, for their shape.
        level: Value of f that minimisers do not exceed, (batch,).
    """
    like = per_sample(left / x[0].numel() ** 0.5, x).expand_as(x)
    if constants is None:
        return term.residual_bound(like, level)
    # x = c + rest. The data see the constants c: ‖ZAc‖ ≤ ‖ZAx‖ + ‖ZA‖‖rest‖.
    basis = constants.flatten(2)
    gram = basis @ basis.mT
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    smallest = torch.linalg.eigvalsh(gram).amin(-1) - sum_error(trace, sum(basis.shape[1:]))
    rest = 1.01 * term.deviation_bound(like, level)
    seen = fit.largest_observation(level.to(x)) + NORM_SLACK * fit.operator_norm * rest
    constant = torch.where(smallest > 0, seen / smallest.clamp(min=0).sqrt(), torch.inf)
    cost = left * (constant * math.prod(x.shape[2:]) ** 0.5 + rest)
    return torch.where(left > 0, cost, 0.0)


@torch.no_grad()
def _deficit_cost(
    fit: Fit, terms: Sequence[Term], deficit: Tensor, error: Tensor, level: Tensor
) -> Tensor:
    """Return a bound on ⟨w, x⟩ over x ≥ 0 with f ≤ level, for w ≤ deficit + error: (batch,).

    ⟨a, x⟩ ≤ total with a > 0 gives ⟨w, x⟩ ≤ max(w/a)·total. Entries of x that no data depend on
    have a = 0, and w = 0 exactly, unless the adjoint of a term is rounded.
    """
    a, total = fit.weighted_sum_bound(deficit, level.to(deficit))
    relevant = (a != 0) | (deficit != 0)
    if any(_rounds(term) for term in terms):
        relevant = relevant | per_sample(error > 0, deficit)
    ratio = torch.where(a > 0, (deficit + per_sample(error, deficit)) / a, torch.inf)
    return torch.where(relevant, ratio, 0.0).flatten(1).amax(1) * total


def _rounds(term: Term) -> bool:
    """Tell whether the adjoint of a term is rounded: it is not the identity."""
    return getattr(term, "operator", None) is not None or term.blocks != ("entries",)


def _correcting_term(terms: Sequence[Term]) -> int | None:
    """Return the index of a term that solves Kᵀu = w, preferably for every w; None if none can."""
    able = [i for i, term in enumerate(terms) if term.can_solve_adjoint]
    return max(able, key=lambda i: terms[i].constants_in_range, default=None)


def _sum_of_conjugates(terms: Sequence[Term], duals: Sequence[Blocks], like: Tensor) -> Tensor:
    """Σⱼ gⱼ*(uⱼ): (batch,)."""
    total = torch.zeros_like(like)
    for term, u in zip(terms, duals, strict=True):
        total = total + term.conjugate(u)
    return total


def _observed_constants(fit: Fit, like: Tensor) -> Tensor:
    """Return ZAx of the images that are 1 in one channel and 0 elsewhere: (batch, channels, …)."""
    images = []
    for channel in range(like.shape[1]):
        constant = torch.zeros_like(like)
        constant[:, channel] = 1
        images.append(fit.observe(constant))
    return torch.stack(images, 1)


def _into_domains(terms: Sequence[Term], duals: Sequence[Blocks]) -> list[Blocks]:
    """Shrink dual points that rounding has put outside of the domains of the conjugates."""
    inside = []
    for term, u in zip(terms, duals, strict=True):
        gauge = term.dual_gauge(u)
        divisor = (gauge * (1 + unit(64, gauge.dtype))).clamp(min=1)
        inside.append({name: block / per_sample(divisor, block) for name, block in u.items()})
    return inside


@torch.no_grad()
def _adjoint_error(smooth: Problem, terms: Sequence[Term], dual: Dual, x: Tensor) -> Tensor:
    """Return a bound on the rounding error of AᵀZv + ΣⱼKⱼᵀuⱼ in ℓ₂: (batch,).

    Each product is a sum of at most as many terms as u has entries. Norms of operators may be
    estimates, so they are charged with a factor.
    """
    total = x.new_zeros(len(x))
    count = x[0].numel()
    for term, u in zip(terms, dual.terms, strict=True):
        total = total + NORM_SLACK * term.norm * norm(u)
    if dual.data is not None:
        count = max(count, dual.data[0].numel())
        total = total + NORM_SLACK * cast(Fit, smooth).operator_norm * norm(dual.data)
    return sum_error(total, count)


def _rounding(size: Tensor, x: Tensor, dual: Dual) -> Tensor:
    """Return a bound on the rounding error of sums over x and the dual point: (batch,)."""
    counts = [x[0].numel()]
    counts += [sum(block[0].numel() for block in u.values()) for u in dual.terms]
    if dual.data is not None:
        counts.append(dual.data[0].numel())
    return sum_error(size, sum(counts))
