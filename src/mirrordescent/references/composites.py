"""Lower bounds on composite problems from dual points: f(x) = f₀(x) + Σⱼ gⱼ(Kⱼx) on a set X.

For dual points uⱼ of the terms, and v of a data fit f₀(x) = d(ZAx),

.. code-block:: none

    f(x) ≥ ⟨w, x⟩ − d*(v) − Σⱼ gⱼ*(uⱼ),   w = AᵀZv + ΣⱼKⱼᵀuⱼ

On all of Rⁿ this needs w = 0, and on x ≥ 0 it needs w ≥ 0. The witness satisfies this up to
rounding. The rest is charged with a bound on the size of the minimisers, which follows from the
value of f at 0.

This is a second implementation, for the verification of certificates. Adjoints are derivatives that
autograd computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent.domains import Box, Domain, PositiveOrthant, WholeSpace
from mirrordescent.problems import (
    L1,
    TV,
    Blur,
    Chain,
    Composite,
    Counts,
    Fourier,
    Haar,
    Matrix,
    Multiple,
    ParallelBeam,
    Problem,
    Ridge,
    Roughness,
    Sampling,
    SquaredError,
    Term,
    Trend,
)
from mirrordescent.problems.fits import Fit
from mirrordescent.problems.origin import user_definition
from mirrordescent.problems.variation import DifferenceTerm
from mirrordescent.references.dual_points import divergence, into_groups
from mirrordescent.references.tangents import (
    EPS,
    least_of_parabola,
    model_at,
    radius,
    support_function,
    unit,
)
from mirrordescent.trees import per_sample, sum_per_sample

DATA = "data"
"""Name of the dual point of the data in a witness."""

POINT = "x"
"""Name of the primal point in a witness."""

STATED_NORM = 4.0
"""Factor by which the stated norm of an operator of a user's is charged."""

_OF_TERMS = ("value", "K", "scaled_weight")
_OF_FITS = ("value", "misfit", "observe", "apply_mask", "curvature")


def block_name(index: int, name: str) -> str:
    """Return the name of a block of the dual point of a term in a witness."""
    return f"term {index + 1} {name}"


def witness_shapes(problem: Composite) -> dict[str, tuple[int, ...]]:
    """Return the names of the tensors of a witness, with the shapes of one sample."""
    zeros = _zeros(problem, 1)
    shapes = {POINT: tuple(problem.sample_shape)}
    for index, term in enumerate(_terms(problem)):
        for name, block in term.K(zeros[:1]).items():
            shapes[block_name(index, name)] = tuple(block.shape[1:])
    if isinstance(problem.smooth, Fit):
        shapes[DATA] = tuple(problem.smooth.y.shape[1:])
    return shapes


@dataclass
class _TermBound:
    """What the dual point of one term contributes.

    Attributes:
        u: Blocks of the dual point, inside the domain of the conjugate.
        adjoint: Kᵀu.
        error: Bound on the rounding error of Kᵀu in ℓ₂, (batch,).
        conjugate: g*(u), rounded up, (batch,).
    """

    u: list[Tensor]
    adjoint: Tensor
    error: Tensor
    conjugate: Tensor


def composite_bound(problem: Composite, tensors: dict[str, Tensor]) -> Tensor | None:
    """Return the best bound that a witness proves, (batch,); None if the parts are unknown.

    Args:
        problem: Problem in double precision.
        tensors: Dual points of all terms and of the data, and a primal point.
    """
    terms = _terms(problem)
    if not all(_is_known(term, (L1, Ridge, TV, Roughness, Trend), _OF_TERMS) for term in terms):
        return None
    zeros = _zeros(problem, len(tensors[POINT]))
    parts = [_term_bound(term, index, tensors, zeros) for index, term in enumerate(terms)]
    smooth = problem.smooth
    bounds: list[Tensor | None] = []
    if not isinstance(smooth, Fit):
        bounds.append(_linearised(problem, terms, parts, tensors[POINT]))
    elif not _is_known_fit(smooth):
        return None
    else:
        if _is_direct(smooth) and isinstance(problem.domain, WholeSpace | PositiveOrthant | Box):
            bounds.append(_direct(cast(SquaredError, smooth), problem.domain, terms, parts))
        elif _is_direct(smooth):
            bounds.append(_linearised(problem, terms, parts, tensors[POINT]))
        bounds.append(_dual(problem, terms, parts, tensors[DATA]))
        bounds.append(zeros.new_zeros(len(zeros)))  # all parts of f are ≥ 0
    finite = [
        torch.where(bound.isfinite(), bound, -torch.inf) for bound in bounds if bound is not None
    ]
    return torch.stack(finite).amax(0) if finite else None


def _terms(problem: Composite) -> list[Term]:
    return list(cast("Sequence[Term]", problem.parts))


def _zeros(problem: Composite, batch: int) -> Tensor:
    like = next(b for b in problem.smooth.buffers() if b.is_floating_point())
    return torch.zeros(batch, *problem.sample_shape, dtype=torch.float64, device=like.device)


def _is_known(part: Any, classes: tuple[type, ...], names: Sequence[str]) -> bool:
    """Tell whether a part is one of some classes, and a user's class changes nothing about it."""
    return isinstance(part, classes) and user_definition(part, *names) is None


def _is_known_fit(smooth: Fit) -> bool:
    """Tell whether the conjugate of a data fit, and bounds on its observations, are known."""
    if not _is_known(smooth, (SquaredError, Counts), _OF_FITS):
        return False
    return not isinstance(smooth, Counts) or _is_nonnegative(smooth.operator)


def _is_direct(smooth: Problem) -> bool:
    """Tell whether f₀(x) = (c/2)‖x − y‖²."""
    return isinstance(smooth, SquaredError) and smooth.operator is None and smooth.mask is None


def norm(x: Tensor) -> Tensor:
    """Return the Euclidean norm of every sample, (batch,), without underflow of squares."""
    if not x.numel():
        return x.new_zeros(len(x))
    largest = x.flatten(1).abs().amax(1)
    scale = torch.where(largest > 0, largest, 1.0)
    return scale * sum_per_sample((x / per_sample(scale, x)).square()).sqrt()


# The terms.


def _term_bound(term: Term, index: int, tensors: dict[str, Tensor], zeros: Tensor) -> _TermBound:
    """Scale the dual point of a term into the domain of the conjugate, and evaluate it."""
    weight = torch.as_tensor(term.scaled_weight, dtype=torch.float64, device=zeros.device)
    weight = weight.detach().reshape(-1).expand(len(zeros))
    blocks = [tensors[block_name(index, name)] for name in term.blocks]
    square = 0.0  # g*(u) = (square/weight)‖u‖²
    if isinstance(term, L1):
        blocks = [_into_balls(blocks[0], weight, term.coupled)]
    elif isinstance(term, TV):
        height = per_sample(weight, blocks[0])
        blocks = into_groups(blocks, height, term.isotropic, term.coupled)
        square = term.huber / 2
    elif isinstance(term, Trend):
        blocks = [_into_balls(block, weight, False) for block in blocks]
    else:
        square = 0.5
    size = zeros.new_zeros(len(zeros))
    length = torch.zeros_like(size)
    for block in blocks:
        size = size + sum_per_sample(block.square())
        length = length + norm(block)
    units = unit(sum(block[0].numel() for block in blocks))
    if isinstance(term, TV | Roughness):
        adjoint = divergence(blocks, term.weights_of_axes)
        error = (6 + 2 * len(blocks)) * EPS * _grid_norm(term) * length
    elif isinstance(term, Trend):
        adjoint = divergence(_divergences(blocks, zeros), term.weights_of_axes)
        error = (12 + 4 * len(blocks)) * EPS * _grid_norm(term) * length
    elif isinstance(term, L1) and term.operator is not None:
        adjoint = _adjoint(term.operator, zeros, blocks[0])
        error = units * _norm_of(term.operator, zeros, term.norm) * length
    else:
        adjoint = blocks[0]
        error = torch.zeros_like(size)
    conjugate = square * size / weight * (1 + units)
    return _TermBound(blocks, adjoint, error, conjugate)


def _grid_norm(term: DifferenceTerm) -> float:
    """Return an upper bound on the norm of weighted first or second differences."""
    square = 4 * sum(weight**2 for weight in term.weights_of_axes)
    return math.sqrt(4 * square if isinstance(term, Trend) else square)


def _divergences(blocks: Sequence[Tensor], like: Tensor) -> list[Tensor]:
    """Return −Dᵀu along each axis, so that Dᵀ of the results is the adjoint of second differences.

    Second differences along an axis are differences of differences: DDx = D'(Dx).
    """
    results = []
    for axis, block in enumerate(blocks):
        count = block.shape[2 + axis]
        shape = list(like.shape)
        shape[2 + axis] -= 1
        out = like.new_zeros(shape)
        if count:
            out.narrow(2 + axis, 1, count).add_(block)
            out.narrow(2 + axis, 0, count).sub_(block)
        results.append(out)
    return results


def _into_balls(u: Tensor, weight: Tensor, coupled: bool) -> Tensor:
    """Scale u into |u| ≤ weight, for every entry, or for every group of channels."""
    size = torch.linalg.vector_norm(u, dim=1, keepdim=True) if coupled else u.abs()
    limit = per_sample(weight, u) * (1 - (16 + u.shape[1]) * EPS)
    return u / (size / limit).clamp(min=1)  # the quotient is a normal number, or infinite


def _pairing(
    terms: Sequence[Term], parts: Sequence[_TermBound], x: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Σⱼ⟨uⱼ, Kⱼx⟩ = ⟨w, x⟩ of the terms, and a bound on its rounding error, (batch,) each.

    Differences of neighbours are nearly exact, also if ⟨w, x⟩ is a difference of large numbers.
    """
    total = torch.zeros_like(x.flatten(1)[:, 0])
    error = torch.zeros_like(total)
    for term, part in zip(terms, parts, strict=True):
        images = [x]
        if isinstance(term, TV | Roughness):
            images = [
                weight * x.diff(dim=2 + axis) for axis, weight in enumerate(term.weights_of_axes)
            ]
        elif isinstance(term, Trend):
            images = []
            for axis, (weight, u) in enumerate(zip(term.weights_of_axes, part.u, strict=True)):
                first = weight * x.diff(dim=2 + axis)
                count = u.shape[2 + axis]
                images.append(first.diff(dim=2 + axis) if count else u)
                size = first.narrow(2 + axis, 0, count).abs()
                size = size + first.narrow(2 + axis, first.shape[2 + axis] - count, count).abs()
                error = error + 4 * EPS * sum_per_sample(u.abs() * size)
        elif isinstance(term, L1) and term.operator is not None:
            images = [term.operator.A(x)]
            size = _norm_of(term.operator, x, term.norm) * norm(x) * norm(part.u[0])
            error = error + unit(max(images[0][0].numel(), x[0].numel())) * size
        for u, image in zip(part.u, images, strict=True):
            total = total + sum_per_sample(u * image)
            error = error + unit(u[0].numel()) * sum_per_sample((u * image).abs())
    return total, error


# Bounds.


def _direct(
    fit: SquaredError, domain: Domain, terms: Sequence[Term], parts: Sequence[_TermBound]
) -> Tensor:
    """Σ min_{x ∈ X} (c/2)(x − y)² + w(x − y), plus Σⱼ⟨uⱼ, Kⱼy⟩ − gⱼ*(uⱼ).

    The minimum is at t = x − y = −w/c, clipped. An error δ of w changes it by at most
    ‖δ‖‖t‖ + ‖δ‖²/(2c), because the function is strongly convex.
    """
    y = fit.y
    c = fit.curvature
    w = torch.zeros_like(y)
    error = torch.zeros_like(y.flatten(1)[:, 0])
    conjugates = torch.zeros_like(error)
    for part in parts:
        w = w + part.adjoint
        error = error + part.error + len(parts) * EPS * norm(part.adjoint)
        conjugates = conjugates + part.conjugate
    t = -w / c
    if isinstance(domain, PositiveOrthant):
        t = torch.maximum(t, -y)
    elif isinstance(domain, Box):
        t = torch.minimum(torch.maximum(t, domain.lower - y), domain.upper - y)
    square = c / 2 * t.square()
    linear = w * t
    pairing, pairing_error = _pairing(terms, parts, y)
    units = unit(y[0].numel())
    size = sum_per_sample(square + linear.abs()) + pairing.abs() + conjugates
    loss = error * norm(t) * (1 + units) + error.square() / (2 * c)
    return (
        sum_per_sample(square + linear) + pairing - conjugates - pairing_error - loss - units * size
    )


def _linearised(
    problem: Composite, terms: Sequence[Term], parts: Sequence[_TermBound], x: Tensor
) -> Tensor | None:
    """min_{x' ∈ X} of the model of f₀ at x, plus ⟨w, x'⟩ − Σⱼ gⱼ*(uⱼ)."""
    model = model_at(problem.smooth, x)
    if model is None:
        return None
    g = model.gradient
    error = model.error
    conjugates = torch.zeros_like(model.value)
    for part in parts:
        g = g + part.adjoint
        error = error + part.error
        conjugates = conjugates + part.conjugate
    error = error + (len(parts) + 1) * EPS * (norm(g) + norm(model.gradient))
    decrease = least_of_parabola(problem.domain, x, g, error, model.convexity)
    if decrease is None:
        return None
    pairing, pairing_error = _pairing(terms, parts, x)
    size = model.value.abs() + decrease.abs().nan_to_num(posinf=0.0) + pairing.abs() + conjugates
    return model.value + decrease + pairing - conjugates - pairing_error - 16 * EPS * size


def _dual(
    problem: Composite, terms: Sequence[Term], parts: Sequence[_TermBound], v: Tensor
) -> Tensor | None:
    """min_{x ∈ X} ⟨w, x⟩ − d*(v) − Σⱼ gⱼ*(uⱼ), where residuals of w are charged."""
    fit = cast(Fit, problem.smooth)
    zeros = _zeros(problem, len(v))
    masked = v if fit.mask is None else fit.mask * v
    w = masked
    error = torch.zeros_like(v.flatten(1)[:, 0])
    if fit.operator is not None:
        w = _adjoint(fit.operator, zeros, masked)
        units = unit(max(v[0].numel(), w[0].numel()))
        error = units * _norm_of(fit.operator, zeros, fit.operator_norm) * norm(masked)
    conjugates = torch.zeros_like(error)
    length = norm(w)
    for part in parts:
        w = w + part.adjoint
        length = length + norm(part.adjoint)
        error = error + part.error
        conjugates = conjugates + part.conjugate
    error = error + (len(parts) + 1) * EPS * length
    least = _least(problem, terms, w, error)
    if least is None:
        return None
    conjugate, size = _conjugate_of_data(fit, masked)
    rounding = unit(v[0].numel() + w[0].numel()) * (size + conjugates + least.abs())
    return least - conjugate - conjugates - rounding


def _conjugate_of_data(fit: Fit, v: Tensor) -> tuple[Tensor, Tensor]:
    """d*(v) for a v = Zv, and the sum of the magnitudes of its summands, (batch,) each.

    It is ‖v‖²/(2c) + ⟨y, v⟩ for a squared error, and Σ −y log(1 − v) − bv, v ≤ 1, for counts.
    """
    if isinstance(fit, SquaredError):
        square = v.square() / (2 * fit.curvature)
        return sum_per_sample(square + fit.y * v), sum_per_sample(square + (fit.y * v).abs())
    background = cast(Counts, fit).background
    logs = torch.special.xlog1py(fit.y, -v.clamp(max=1))
    value = sum_per_sample(-logs - background * v)
    outside = (v > 1).flatten(1).any(1)
    size = sum_per_sample(logs.abs() + background * v.abs())
    return torch.where(outside, torch.inf, value), size


def _least(problem: Composite, terms: Sequence[Term], w: Tensor, error: Tensor) -> Tensor | None:
    """Return a lower bound on ⟨w + δ, x⟩ at a minimiser x of f, for every ‖δ‖ ≤ error: (batch,)."""
    domain = problem.domain
    support = support_function(domain, -w)
    if domain.bounded and support is not None:
        units = unit(w[0].numel())
        return -support - (error + units * norm(w)) * radius(domain, w)
    if not isinstance(domain, WholeSpace | PositiveOrthant):
        return None
    level = _level(problem, w)
    one_sided = isinstance(domain, PositiveOrthant)
    deficit = (-w).clamp(min=0) if one_sided else w.abs()
    cost = (norm(deficit) + error) * _largest_minimiser(problem, terms, level, w)
    if one_sided:
        by_data = _cost_of_deficit(cast(Fit, problem.smooth), bool(terms), deficit, error, level)
        cost = torch.fmin(cost, by_data)
    nothing = (error == 0) & (norm(deficit) == 0)
    return torch.where(nothing, 0.0, -cost * (1 + 1e-6))


# Bounds on minimisers.


def _level(problem: Composite, like: Tensor) -> Tensor:
    """Return an upper bound on f(0) ≥ min f, (batch,)."""
    fit = cast(Fit, problem.smooth)
    value = problem.value(torch.zeros_like(like))
    size = torch.zeros_like(value)
    if isinstance(fit, Counts):
        # Near the minimum of KL, the value is a difference of large numbers.
        logs = torch.xlogy(fit.y, fit.y.clamp(min=1e-300) / fit.background)
        size = sum_per_sample(fit.y + fit.background + logs.abs())
    return value * (1 + 1e-6) + unit(fit.y[0].numel()) * size


def _largest_observation(fit: Fit, level: Tensor) -> Tensor:
    """Return a bound on ‖ZAx‖ over the points with f(x) ≤ level, (batch,).

    For a squared error it is ‖Zy‖ + √(2·level/c). For counts it is (√Σy + √level)²: no entry of A
    is negative, so that ‖Ax‖ ≤ Σ(Ax), and KL(y, z) ≥ (√Σy − √Σz)².
    """
    if isinstance(fit, SquaredError):
        observed = fit.y if fit.mask is None else fit.mask * fit.y
        return (norm(observed) + (2 * level / fit.curvature).sqrt()) * (1 + 1e-6)
    return (sum_per_sample(fit.y).sqrt() + level.sqrt()).square() * (1 + 1e-6)


def _largest_minimiser(
    problem: Composite, terms: Sequence[Term], level: Tensor, like: Tensor
) -> Tensor:
    """Return a bound on ‖x‖ over the points with f(x) ≤ level, (batch,).

    .. code-block:: none

        λ‖Kx‖₁, KᵀK = I       ‖x‖ ≤ level/λ
        (ρ/2)‖x‖²             ‖x‖ ≤ √(2·level/ρ)
        terms in Dx           ‖x − mean‖ ≤ ‖Dx‖/(2 sin(π/2n)), and the data bound the means
    """
    fit = cast(Fit, problem.smooth)
    best = torch.full_like(level, torch.inf)
    if fit.operator is None and fit.mask is None:
        best = _largest_observation(fit, level)
    for term in terms:
        weight = torch.as_tensor(term.scaled_weight, dtype=level.dtype, device=level.device)
        weight = weight.detach().reshape(-1)
        if isinstance(term, L1):
            orthonormal = term.operator is None or getattr(term.operator, "orthonormal", False)
            largest = level / weight if orthonormal else torch.full_like(level, torch.inf)
        elif isinstance(term, Ridge):
            largest = (2 * level / weight).sqrt()
        else:
            if isinstance(term, Trend):  # does not see linear points
                continue
            if isinstance(term, TV):
                groups = (like.ndim - 2) * like[0].numel()
                variation = level / weight + groups * term.huber / 2
            else:
                variation = (2 * level / weight).sqrt()
            side = max(like.shape[2:])
            least = min(cast(DifferenceTerm, term).weights_of_axes)
            deviation = torch.zeros_like(level)
            if side > 1:
                deviation = variation / (2 * least * math.sin(math.pi / (2 * side)))
            largest = deviation + _largest_mean(fit, level, deviation, like)
        best = torch.fmin(best, largest)
    return best * (1 + 1e-6)


def _largest_mean(fit: Fit, level: Tensor, deviation: Tensor, like: Tensor) -> Tensor:
    """Return a bound on the norm of the means of all channels, as an image: (batch,).

    ‖ZAc‖ ≤ ‖ZAx‖ + ‖ZA‖‖x − c‖ for the means c, and ‖ZAc‖ ≥ σ‖c‖.
    """
    columns = []
    pixels = math.prod(like.shape[2:])
    for channel in range(like.shape[1]):
        constant = torch.zeros_like(like)
        constant[:, channel] = 1 / math.sqrt(pixels)
        image = constant if fit.operator is None else fit.operator.A(constant)
        columns.append((image if fit.mask is None else fit.mask * image).flatten(1))
    basis = torch.stack(columns, 1)
    gram = basis @ basis.mT
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    size = 1.0 if fit.operator is None else _norm_of(fit.operator, like, fit.operator_norm)
    rounding = unit(sum(basis.shape[1:]) + pixels) * (trace + like.shape[1] * size**2)
    smallest = torch.linalg.eigvalsh(gram).amin(-1) - 4 * rounding
    seen = _largest_observation(fit, level) + size * deviation
    return torch.where(smallest > 0, seen / smallest.clamp(min=1e-300).sqrt(), torch.inf)


def _cost_of_deficit(
    fit: Fit, has_terms: bool, deficit: Tensor, error: Tensor, level: Tensor
) -> Tensor:
    """Return a bound on ⟨w, x⟩ over x ≥ 0 with f(x) ≤ level, for w ≤ deficit + error: (batch,).

    ⟨a, x⟩ ≤ t with a ≥ 0 gives ⟨w, x⟩ ≤ max(w/a)·t. For counts a = Aᵀ1 and t bounds Σ(Ax). For a
    squared error a = AᵀZA1 and t = ‖ZA1‖·‖ZAx‖. Entries that no data depend on have w = 0 exactly,
    if there are no terms.
    """
    total = _largest_observation(fit, level)
    operator = fit.operator
    weights = torch.ones_like(fit.y)
    if isinstance(fit, SquaredError):
        ones = torch.ones_like(deficit)
        image = ones if operator is None else operator.A(ones)
        weights = image if fit.mask is None else fit.mask * image
        total = norm(weights) * total * (1 + 1e-6)
    a = weights
    if operator is not None:
        a = _adjoint(operator, deficit, weights)
        units = unit(max(weights[0].numel(), deficit[0].numel()))
        slack = 2 * units * _norm_of(operator, deficit, fit.operator_norm) * norm(weights)
        a = a - per_sample(slack, a)
    needed = deficit + per_sample(error, deficit)
    ratio = torch.where(a > 0, needed / a.clamp(min=1e-300), torch.inf)
    if not has_terms:
        ratio = torch.where(_unseen(fit, deficit) & (deficit == 0), 0.0, ratio)
    return ratio.flatten(1).amax(1) * total


def _unseen(fit: Fit, like: Tensor) -> Tensor:
    """Tell for every entry of x whether it is known that no data depend on it."""
    if fit.operator is None and fit.mask is not None:
        return (fit.mask == 0).expand_as(like)
    if isinstance(fit.operator, Matrix):
        empty = (fit.operator.matrix == 0).all(-2)
        return empty.reshape(-1, *like.shape[1:]).expand_as(like)
    if isinstance(fit, Counts) and fit.operator is not None:  # no entry of A is negative
        return _adjoint(fit.operator, like, torch.ones_like(fit.y)) == 0
    return torch.zeros_like(like, dtype=torch.bool)


# Operators.


def _adjoint(operator: Any, x: Tensor, v: Tensor) -> Tensor:
    """Aᵀv, the derivative of ⟨Ax, v⟩ with respect to x."""
    with torch.inference_mode(False), torch.enable_grad():
        point = torch.zeros_like(x).requires_grad_()
        # The scalar product spares an import of torch's compiler, which a given gradient needs.
        product = (operator.A(point) * v.detach().clone()).sum()
        return torch.autograd.grad(product, point)[0]


def _norm_of(operator: Any, like: Tensor, stated: float) -> float:
    """Return an upper bound on ‖A‖; for an operator of a user's, a multiple of the stated norm."""
    if user_definition(operator, "A") is not None:
        return STATED_NORM * stated
    if isinstance(operator, Blur):
        return float(operator.kernel.detach().abs().sum((-2, -1)).max()) * (1 + 1e-9)
    if isinstance(operator, Matrix):
        squares = operator.matrix.detach().double().square().sum((-2, -1))
        return float(squares.max()) ** 0.5 * (1 + 1e-9)
    if isinstance(operator, Sampling | Fourier | Haar):
        return 1.0 + 1e-9
    if isinstance(operator, Multiple):
        inner = stated / abs(operator.factor or 1.0)
        return abs(operator.factor) * _norm_of(operator.operator, like, inner)
    if isinstance(operator, ParallelBeam):
        # ‖A‖² ≤ ‖A‖₁‖A‖_∞, and no entry is negative.
        ones = torch.ones_like(like[:1])
        image = operator.A(ones)
        back = _adjoint(operator, ones, torch.ones_like(image))
        return float(image.max() * back.max()) ** 0.5 * (1 + 1e-9)
    if isinstance(operator, Chain):
        middle = operator.first.A(like[:1])
        first = _norm_of(operator.first, like, math.inf)
        second = _norm_of(operator.second, middle, math.inf)
        if math.isfinite(first * second):
            return first * second
    return STATED_NORM * stated


def _is_nonnegative(operator: Any) -> bool:
    """Tell whether no entry of A is negative, or an operator of a user's is said to be so."""
    if operator is None or user_definition(operator, "A") is not None:
        return True
    if isinstance(operator, Blur):
        return bool((operator.kernel >= 0).all())
    if isinstance(operator, Matrix):
        return bool((operator.matrix >= 0).all())
    if isinstance(operator, Multiple):
        return operator.factor >= 0 and _is_nonnegative(operator.operator)
    if isinstance(operator, Chain):
        return _is_nonnegative(operator.first) and _is_nonnegative(operator.second)
    return isinstance(operator, ParallelBeam | Sampling)
