"""Lower bounds on the minima of composite problems, from dual points."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from mirrordescent._internal.rounding import rounded_down
from mirrordescent.domains import Domain, PositiveOrthant, WholeSpace
from mirrordescent.problems.base import Problem
from mirrordescent.problems.fits import Fit, SquaredError
from mirrordescent.problems.terms import Blocks, Term
from mirrordescent.trees import dot, norm, per_sample, sum_per_sample


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
    try:
        bounds = _bounds(smooth, terms, domain, x.double(), dual.double(), level.double())
    except RuntimeError:  # an operator does not accept double precision
        bounds = _bounds(smooth, terms, domain, x, dual, level)
    if not bounds:
        return rounded_down(x.new_full((len(x),), -torch.inf), x.dtype)
    best = torch.stack(bounds).nan_to_num(nan=-torch.inf, neginf=-torch.inf).amax(0)
    return rounded_down(best, x.dtype)


def _bounds(
    smooth: Problem, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual, level: Tensor
) -> list[Tensor]:
    """Return every bound that applies to the problem."""
    bounds = []
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

    Here w = ΣⱼKⱼᵀuⱼ.
    """
    if next(smooth.buffers()).dtype != x.dtype:
        smooth = copy.deepcopy(smooth).to(x.dtype)
    w = add_adjoints(torch.zeros_like(x), smooth, terms, Dual(dual.terms, None))
    value = smooth.value(x)
    g = cast(Tensor, smooth.grad(x)) + w
    decreases = []
    if convexity > 0:
        step = cast(Tensor, domain.project(x - g / convexity)) - x
        decreases.append(dot(g, step) + convexity / 2 * dot(step, step))
    if domain.bounded:
        decreases.append(domain.least(g) - dot(g, x))
    decrease = torch.stack(decreases).amax(0)
    linear = dot(w, x)
    conjugates = _sum_of_conjugates(terms, dual.terms, value)
    size = value.abs() + norm(g) * norm(x) + decrease.abs() + linear.abs() + conjugates
    return value + decrease + linear - conjugates - _rounding_unit(x) * size


def _bound_on_bounded_set(
    fit: Fit, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual
) -> Tensor:
    """min_{x' ∈ X} ⟨w, x'⟩ − d*(v) − Σⱼ gⱼ*(uⱼ) with w = AᵀZv + ΣⱼKⱼᵀuⱼ, for a bounded X."""
    v = cast(Tensor, dual.data)
    w = add_adjoints(torch.zeros_like(x), fit, terms, dual)
    value, size = fit.conjugate(v)
    least = domain.least(w)
    conjugates = _sum_of_conjugates(terms, dual.terms, value)
    size = norm(w) * x[0].numel() ** 0.5 + least.abs() + size + conjugates
    return least - value - conjugates - _rounding_unit(v) * size


def _bound_at_feasible_point(
    fit: Fit, terms: Sequence[Term], one_sided: bool, x: Tensor, dual: Dual, level: Tensor
) -> Tensor | None:
    """−d*(v) − Σⱼ gⱼ*(uⱼ) at a feasible dual point near the given one; None if none is found.

    Feasible means AᵀZv + ΣⱼKⱼᵀuⱼ = 0 on all of Rⁿ, or ≥ 0 if X is x ≥ 0 (``one_sided``).

    1. If a term can solve Kᵀu = w, it corrects its dual point. Otherwise, on x ≥ 0, v is raised.
    2. The corrected dual point is scaled by a common factor α into the domains of the conjugates.
       For a squared error, α is also the factor with the best bound.
    """
    v = fit.apply_mask(cast(Tensor, dual.data))
    duals = list(dual.terms)

    def residual(data: Tensor | None) -> Tensor:
        return add_adjoints(torch.zeros_like(x), fit, terms, Dual(duals, data))

    correcting = _correcting_term(terms)
    error = torch.zeros_like(level)
    if correcting is not None:
        term = terms[correcting]
        if not term.constants_in_range:
            rest = residual(None).sum((-2, -1))
            constants = _observed_constants(fit, x)
            v = fit.apply_mask(fit.satisfy_moments(v, constants, rest, one_sided))
        correction = term.solve_adjoint(residual(v), one_sided)
        duals[correcting] = {
            name: block - correction[name] for name, block in duals[correcting].items()
        }
        w = residual(v)
        error = term.residual_bound((w.clamp(max=0) if one_sided else w).detach(), level)
    elif one_sided:
        v = fit.apply_mask(fit.lift_to_nonnegative(v, residual(v)))
    else:
        return None
    gauges = [term.dual_gauge(u) for term, u in zip(terms, duals, strict=True)]
    gauge = torch.stack([torch.zeros_like(level), *gauges]).amax(0)
    alpha = (1 - 64 * torch.finfo(v.dtype).eps) / gauge  # infinite if all conjugates are finite
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
    value, size = fit.conjugate(v)
    conjugates = _sum_of_conjugates(terms, duals, value)
    return -value - conjugates - alpha * error - _rounding_unit(v) * (size + conjugates)


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


def _rounding_unit(like: Tensor) -> float:
    """A bound on the rounding error of a sum over a sample, relative to Σ|summands|."""
    return (64 + like[0].numel()) * torch.finfo(like.dtype).eps
