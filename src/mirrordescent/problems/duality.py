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
    """Dual points u_j of the terms, where their conjugates are finite, and that of the data, v, if
    there is one.
    """

    terms: list[Blocks]
    data: Tensor | None

    def double(self) -> Dual:
        """Return it in double precision."""
        terms = [{name: block.double() for name, block in u.items()} for u in self.terms]
        return Dual(terms, None if self.data is None else self.data.double())


def add_adjoints(out: Tensor, smooth: Problem, terms: Sequence[Term], dual: Dual) -> Tensor:
    """Add w = AᵀZv + ΣKⱼᵀuⱼ to a fresh tensor, in place if that can be, and return it."""
    for term, u in zip(terms, dual.terms, strict=True):
        out = term.add_adjoint(out, u)
    return out if dual.data is None else out + cast(Fit, smooth).back(dual.data)


def dual_bound(
    smooth: Problem, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual, level: Tensor
) -> Tensor:
    """Return the best of the bounds on min f₀ + Σgⱼ(Kⱼ·) over a set that follow from a dual point:
    (batch,).

    All is computed in double precision, if the operators take that, and rounded down.

    Args:
        smooth: f₀.
        terms: the gⱼ(Kⱼ·).
        domain: the set.
        x: where f₀ is linearised.
        dual: the dual point.
        level: a value of f, (batch,), which a minimiser is not above.
    """
    level = level.detach()
    try:
        found = _bounds(smooth, terms, domain, x.double(), dual.double(), level.double())
    except RuntimeError:  # of an operator that is made for one type of numbers
        found = _bounds(smooth, terms, domain, x, dual, level)
    best = torch.stack([x.new_full((len(x),), -torch.inf).to(found[0] if found else x), *found])
    return rounded_down(best.nan_to_num(nan=-torch.inf, neginf=-torch.inf).amax(0), x.dtype)


def _bounds(
    smooth: Problem, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual, level: Tensor
) -> list[Tensor]:
    found = []
    convexity = smooth.strong_convexity() or 0.0
    if smooth.convex and (convexity > 0 or domain.bounded):
        found.append(_linearised(smooth, convexity, terms, domain, x, dual))
    if dual.data is not None and domain.bounded:
        found.append(_least_over_set(cast(Fit, smooth), terms, domain, x, dual))
    if dual.data is not None and isinstance(domain, WholeSpace | PositiveOrthant):
        bound = _feasible(
            cast(Fit, smooth), terms, isinstance(domain, PositiveOrthant), x, dual, level
        )
        found += [] if bound is None else [bound]
    return found


def _linearised(
    smooth: Problem, convexity: float, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual
) -> Tensor:
    """min over X of f₀(x) + ⟨∇f₀(x), · − x⟩ + (μ/2)‖· − x‖² + ⟨w, ·⟩, minus the conjugates, w =
    ΣKⱼᵀuⱼ.
    """
    if next(smooth.buffers()).dtype != x.dtype:
        smooth = copy.deepcopy(smooth).to(x.dtype)
    w = add_adjoints(torch.zeros_like(x), smooth, terms, Dual(dual.terms, None))
    value = smooth.value(x)
    g = cast(Tensor, smooth.grad(x)) + w
    falls = []
    if convexity > 0:
        away = cast(Tensor, domain.project(x - g / convexity)) - x
        falls.append(dot(g, away) + convexity / 2 * dot(away, away))
    if domain.bounded:
        falls.append(domain.least(g) - dot(g, x))
    fall = torch.stack(falls).amax(0)
    linear = dot(w, x)
    taken = _conjugates(terms, dual.terms, value)
    size = value.abs() + norm(g) * norm(x) + fall.abs() + linear.abs() + taken
    return value + fall + linear - taken - _units(x) * size


def _least_over_set(
    fit: Fit, terms: Sequence[Term], domain: Domain, x: Tensor, dual: Dual
) -> Tensor:
    """min over a bounded X of ⟨w, ·⟩, w = AᵀZv + ΣKⱼᵀuⱼ, minus all conjugates."""
    v = cast(Tensor, dual.data)
    w = add_adjoints(torch.zeros_like(x), fit, terms, dual)
    value, size = fit.conjugate(v)
    least = domain.least(w)
    taken = _conjugates(terms, dual.terms, value)
    return (
        least
        - value
        - taken
        - _units(v) * (norm(w) * x[0].numel() ** 0.5 + least.abs() + size + taken)
    )


def _feasible(
    fit: Fit, terms: Sequence[Term], one_sided: bool, x: Tensor, dual: Dual, level: Tensor
) -> Tensor | None:
    """Minus all conjugates, at a dual point near the given one with w = AᵀZv + ΣKⱼᵀuⱼ = 0, or w ≥ 0
    if X is x ≥ 0.

    A term absorbs what is left of w; if it then exceeds its bound, all is divided by as much.
    Without such a term, on x ≥ 0, the data's part is raised until w ≥ 0. Of squared errors the best
    multiple is taken.
    """
    v = fit.masked(cast(Tensor, dual.data))
    duals = list(dual.terms)
    able = [i for i, term in enumerate(terms) if term.absorbs]
    place = max(able, key=lambda i: terms[i].absorbs_constants, default=None)
    charge = torch.zeros_like(level)
    if place is None:
        if not one_sided:
            return None
        v = fit.masked(fit.lifted(v, add_adjoints(torch.zeros_like(x), fit, terms, Dual(duals, v))))
    else:
        term = terms[place]
        if not term.absorbs_constants:
            rest = add_adjoints(torch.zeros_like(x), fit, terms, Dual(duals, None)).sum((-2, -1))
            v = fit.masked(fit.balanced(v, _seen_constants(fit, x), rest, one_sided))
        left = term.absorb(add_adjoints(torch.zeros_like(x), fit, terms, Dual(duals, v)), one_sided)
        duals[place] = {name: block - left[name] for name, block in duals[place].items()}
        w = add_adjoints(torch.zeros_like(x), fit, terms, Dual(duals, v))
        charge = term.charge((w.clamp(max=0) if one_sided else w).detach(), level)
    excess = torch.stack(
        [torch.zeros_like(level), *(t.excess(u) for t, u in zip(terms, duals, strict=True))]
    ).amax(0)
    alpha = (1 - 64 * torch.finfo(v.dtype).eps) / excess  # infinite, where nothing limits it
    if isinstance(fit, SquaredError):  # −α⟨y, v⟩ − α²(‖v‖²/(2c) + conjugates) is largest at
        square = sum_per_sample(v.square()) / (2 * fit.curvature) + _conjugates(terms, duals, level)
        alpha = torch.minimum(
            alpha, (-dot(fit.y.to(v), v) / (2 * square)).nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
        )
    else:
        alpha = alpha.clamp(max=1)
    v = per_sample(alpha, v) * v
    duals = [{name: per_sample(alpha, block) * block for name, block in u.items()} for u in duals]
    value, size = fit.conjugate(v)
    taken = _conjugates(terms, duals, value)
    return -value - taken - alpha * charge - _units(v) * (size + taken)


def _conjugates(terms: Sequence[Term], duals: Sequence[Blocks], like: Tensor) -> Tensor:
    return sum(
        (term.conjugate(u) for term, u in zip(terms, duals, strict=True)), torch.zeros_like(like)
    )


def _seen_constants(fit: Fit, like: Tensor) -> Tensor:
    """Return what is seen of images that are 1 in one channel and 0 in the others: (batch,
    channels, …).
    """
    images = []
    for channel in range(like.shape[1]):
        constant = torch.zeros_like(like)
        constant[:, channel] = 1
        images.append(fit.seen(constant))
    return torch.stack(images, 1)


def _units(like: Tensor) -> float:
    """What rounding may do to a sum over a sample, relative to the sum of the sizes of its
    terms.
    """
    return (64 + like[0].numel()) * torch.finfo(like.dtype).eps
