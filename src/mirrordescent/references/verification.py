"""Verification of lower bounds: recompute them from a witness and the data of a problem.

Every function below is a second implementation, independent of the one that found the bound. It
reads the data of a problem and calls its ``value``; gradients and adjoints are derivatives that
autograd computes. All numbers are in double precision, and an estimate of the rounding error is
subtracted.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mirrordescent.domains import Box, Domain, PositiveOrthant, Simplex
from mirrordescent.problems import LeastSquares, MatrixGame, Problem, Quadratic, TVInpainting
from mirrordescent.trees import dot, norm, sum_per_sample

Kind = Literal["tangent", "dual point"]

PROOFS: dict[Kind, str] = {
    "tangent": (
        "f lies above its tangent, or above a parabola of curvature μ, at the point of the "
        "witness; the bound is the minimum of that function over the set"
    ),
    "dual point": (
        "for the dual point u of the witness, F(x) + ⟨Kx, u⟩ − G*(u) ≤ f(x) for every x; the bound "
        "is the minimum over x"
    ),
}
"""Methods of proof in words."""

EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Witness:
    """Numbers from which a lower bound can be recomputed.

    Attributes:
        kind: "tangent" for a point x; "dual point" for blocks of a dual variable.
        tensors: The point or the blocks by name, each (batch, …).
    """

    kind: Kind
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Verification:
    """The outcome of a verification.

    Attributes:
        lower: Recomputed lower bounds, (batch,); None if the bound cannot be recomputed.
        confirmed: Whether the recomputed bounds are at least those of the certificate.
        words: The outcome in words.
    """

    lower: Tensor | None
    confirmed: bool
    words: str

    def __str__(self) -> str:
        return self.words


def verify(
    witness: Witness | None, problem: Problem, lower: Tensor, start_value: Tensor
) -> Verification:
    """Recompute lower bounds from a witness, and compare them with those of a certificate.

    Args:
        witness: Witness, if there is one.
        problem: Batch of problems.
        lower: Lower bounds to verify, (batch,).
        start_value: Values at the start, which the size of differences is relative to.
    """
    if witness is None:
        return Verification(None, False, "cannot be checked: the certificate has no witness")
    found = recompute(witness, problem)
    if found is None:
        name = type(problem).__name__
        words = f"cannot be checked: there is no verification of a {witness.kind} for {name}"
        return Verification(None, False, words)
    found = found.to(lower.device)
    confirmed = bool((found >= lower).all())
    if confirmed:
        return Verification(found, True, f"confirmed: {PROOFS[witness.kind]}")
    missing = ((lower - found) / (start_value - lower).clamp(min=EPS)).max()
    words = (
        "not confirmed: the witness proves a bound that is lower by "
        f"{float(missing):.2g} of f(x₀) − lower"
    )
    return Verification(found, False, words)


def recompute(witness: Witness, problem: Problem) -> Tensor | None:
    """Return the lower bounds that a witness proves, (batch,); None if they are unknown."""
    precise = problem
    if any(b.is_floating_point() and b.dtype != torch.float64 for b in problem.buffers()):
        precise = copy.deepcopy(problem).double()
    tensors = {name: tensor.double() for name, tensor in witness.tensors.items()}
    if witness.kind == "tangent":
        x = tensors["x"]
        if type(precise) is Quadratic:
            return _quadratic(precise, x)
        if type(precise) is LeastSquares:
            return _least_squares(precise, x)
        return _tangent(precise, x)
    if type(precise) is MatrixGame:
        return _game(precise, tensors["u"])
    if isinstance(precise, TVInpainting) and precise.operator is None:
        return _total_variation(precise, tensors)
    return None


# Tangents.


def _tangent(problem: Problem, x: Tensor) -> Tensor | None:
    """min_{x' ∈ X} f(x) + ⟨g, x' − x⟩ + (μ/2)‖x' − x‖², with g by autograd.

    The rounding error of f(x) is estimated by the sensitivity Σ|∂f/∂θ||θ| to the data θ and to x.
    """
    if not problem.convex:
        return None
    convexity = problem.strong_convexity() or 0.0
    data = [b for b in problem.buffers() if b.is_floating_point() and not b.requires_grad]
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        for tensor in data:
            tensor.requires_grad_()
        try:
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
    unit = (64 + x[0].numel()) * EPS
    size = value.abs() + sum_per_sample((g * x).abs())
    for tensor, grad in zip(data, grads[1:], strict=True):
        if grad is not None:
            size = size + float((grad * tensor).abs().sum())
    smoothness = problem.smoothness() or 0.0
    gradient_error = norm(g)
    if math.isfinite(smoothness):
        gradient_error = gradient_error + smoothness * norm(x)
    decrease = _least_of_parabola(problem.domain, x, g, unit * gradient_error, convexity)
    return None if decrease is None else value + decrease - unit * size


def _least_of_parabola(
    domain: Domain, x: Tensor, g: Tensor, error: Tensor, convexity: float
) -> Tensor | None:
    """Return a lower bound on ⟨g + δ, x' − x⟩ + (μ/2)‖x' − x‖² over x' ∈ X and ‖δ‖ ≤ error.

    For μ > 0 it is (μ/2)·dist(z, X)² − ‖g‖²/(2μ) with z = x − g/μ. A hyperplane that separates z
    from X bounds the distance from below.
    """
    bounds = []
    unit = (64 + x[0].numel()) * EPS
    if convexity > 0:
        length = norm(g) + error
        bound = -length.square() / (2 * convexity) * (1 + unit)
        z = x - g / convexity
        normal = z - domain.project(z)  # type: ignore[operator]
        support = _support(domain, normal)
        if support is not None:
            blur = unit * norm(normal) * (norm(z) + norm(x)) + norm(normal) * error / convexity
            clearance = (dot(normal, z) - support - blur) / norm(normal).clamp(min=1e-300)
            distance = torch.where(norm(normal) > 0, clearance, 0.0).clamp(min=0)
            bound = bound + convexity / 2 * distance.square() * (1 - unit)
        bounds.append(bound)
    support = _support(domain, -g)
    if domain.bounded and support is not None:
        radius = _radius(domain, x)
        linear = -support - dot(g, x)
        size = norm(g) * (radius + norm(x))
        bounds.append(linear - unit * size - error * (radius + norm(x)))
    return torch.stack(bounds).amax(0) if bounds else None


def _support(domain: Domain, direction: Tensor) -> Tensor | None:
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


def _radius(domain: Domain, x: Tensor) -> float:
    """An upper bound on ‖x‖ over a bounded set."""
    if isinstance(domain, Box):
        return max(abs(domain.lower), abs(domain.upper)) * math.sqrt(x[0].numel())
    return math.sqrt(x[0].numel() / x.shape[-1])


# Least squares and quadratic functions, with explicit rounding errors.


def _least_squares(problem: LeastSquares, x: Tensor) -> Tensor | None:
    """Return the best of 0, the bound of strong convexity or of the set, and a dual point.

    The errors of the residual and of the gradient are bounded entry by entry.
    """
    A = problem.A if problem.A.ndim == 3 else problem.A.expand(len(x), -1, -1)
    b = problem.b.expand(len(x), -1)
    rows, columns = A.shape[-2:]
    unit = 4 * (rows + columns + 8) * EPS
    r = (A @ x.unsqueeze(-1)).squeeze(-1) - b
    r_error = unit * ((A.abs() @ x.abs().unsqueeze(-1)).squeeze(-1) + b.abs())
    g = (A.mT @ r.unsqueeze(-1)).squeeze(-1)
    g_error = (A.abs().mT @ (unit * r.abs() + 2 * r_error).unsqueeze(-1)).squeeze(-1)
    value = 0.5 * r.square().sum(-1)
    value_error = (r.abs() * r_error + r_error.square()).sum(-1) + unit * value
    bounds = [torch.zeros_like(value)]  # f is a sum of squares
    convexity = 0.0
    if rows >= columns:
        singular = torch.linalg.svdvals(problem.A)
        least = singular[..., -1] - unit * singular[..., 0]
        convexity = float(least.min().clamp(min=0)) ** 2
    decrease = _least_of_parabola(problem.domain, x, g, norm(g_error), convexity)
    if decrease is not None:
        bounds.append(value - value_error + decrease)
    if isinstance(problem.domain, PositiveOrthant):
        bounds.append(_orthant_dual(A, b, -r, unit))
    return torch.stack(bounds).amax(0)


def _orthant_dual(A: Tensor, b: Tensor, r: Tensor, unit: float) -> Tensor:
    """⟨b, u⟩ − ½‖u‖² for u = r − cA1 with Aᵀu ≤ 0, also after rounding; −∞ if there is none."""
    ones = A.sum(-1)

    def slopes(u: Tensor) -> Tensor:
        """Upper bounds on Aᵀu."""
        columns = (A.mT @ u.unsqueeze(-1)).squeeze(-1)
        return columns + unit * (A.abs().mT @ u.abs().unsqueeze(-1)).squeeze(-1)

    gain = (A.mT @ ones.unsqueeze(-1)).squeeze(-1)
    needed = torch.where(slopes(r) > 0, slopes(r) / gain.clamp(min=0), 0.0)
    c = needed.amax(-1, keepdim=True) * (1 + 1e-9)
    u = r - c.nan_to_num(posinf=0.0) * ones
    feasible = (slopes(u) <= 0).all(-1) & c.squeeze(-1).isfinite()
    linear = b * u
    square = 0.5 * u.square()
    bound = (linear - square).sum(-1) - unit * (linear.abs() + square).sum(-1)
    return torch.where(feasible, bound, -torch.inf)


def _quadratic(problem: Quadratic, x: Tensor) -> Tensor | None:
    """f(x) − ‖g‖²/(2μ), or 0 for a diagonal matrix without negative entries."""
    A = problem.A
    residual = x - problem.centre
    if A.ndim == 1:
        if not bool((A >= 0).all()):
            return None
        return torch.zeros(len(x), dtype=x.dtype, device=x.device)
    unit = 4 * (A.shape[-1] + 8) * EPS
    eigenvalues = torch.linalg.eigvalsh(A)
    convexity = float((eigenvalues[..., 0] - unit * eigenvalues.abs().amax(-1)).min())
    asymmetry = float((A - A.mT).abs().sum(-1).max())
    convexity = convexity - asymmetry
    if convexity <= 0:
        return None
    shared = A if A.ndim == 3 else A.expand(len(x), -1, -1)
    g = (shared @ residual.unsqueeze(-1)).squeeze(-1)
    error = norm((shared.abs() @ residual.abs().unsqueeze(-1)).squeeze(-1)) * unit
    value = 0.5 * dot(residual, g)
    size = 0.5 * (residual.abs() * g.abs()).sum(-1) + norm(residual) * (error + asymmetry)
    error = error + asymmetry * norm(residual)
    return torch.clamp(value - unit * size - (norm(g) + error).square() / (2 * convexity), max=0.0)


# Dual points.


def _game(problem: MatrixGame, u: Tensor) -> Tensor:
    """minⱼ (Aᵀu)ⱼ for a mixed reply u ≥ 0, divided by its sum."""
    A = problem.A if problem.A.ndim == 3 else problem.A.expand(len(u), -1, -1)
    reply = u.clamp(min=0)
    reply = reply / reply.sum(-1, keepdim=True)
    payoffs = (A.mT @ reply.unsqueeze(-1)).squeeze(-1)
    unit = 4 * (A.shape[-2] + 8) * EPS
    return (payoffs - unit * (A.abs().mT @ reply.unsqueeze(-1)).squeeze(-1)).amin(-1)


def _total_variation(problem: TVInpainting, u: dict[str, Tensor]) -> Tensor:
    """Σ min_{low ≤ x ≤ high} s·z(x − y)² + (Dᵀu)x − (η/(2sλ))‖u‖², after scaling u into |u_g| ≤ sλ.

    The range of the observed pixels of a channel contains the minimisers, because clipping an image
    to it increases neither term.
    """
    y = problem.y
    mask = torch.ones_like(y) if problem.mask is None else problem.mask.expand_as(y)
    observed = mask > 0
    low = y.masked_fill(~observed, torch.inf).amin((-2, -1), keepdim=True)
    high = y.masked_fill(~observed, -torch.inf).amax((-2, -1), keepdim=True)
    scale = problem.scale
    weight = torch.as_tensor(problem.weight, dtype=y.dtype, device=y.device).reshape(-1, 1, 1, 1)
    height = scale * weight
    down, along = _into_groups(
        u["vertical"], u["horizontal"], height, problem.isotropic, problem.coupled
    )
    w = torch.zeros_like(y)
    w[..., 1:, :] += down
    w[..., :-1, :] -= down
    w[..., 1:] += along
    w[..., :-1] -= along
    centre = (y - w / (2 * scale)).clamp(low, high)
    hidden = torch.where(w > 0, low, high).expand_as(y)
    x = torch.where(observed, centre, hidden)
    # Σw = 0, so that x − low may replace x.
    linear = w * (x - low)
    square = scale * mask * (x - y).square()
    unit = (64 + y[0].numel()) * EPS
    # Rounding of w is at most a few units of 4sλ, which the width of the range multiplies.
    rounding = unit * sum_per_sample(linear.abs() + square + 4 * height * (high - low))
    bound = sum_per_sample(linear + square) - rounding
    if problem.huber:
        total = sum_per_sample(down.square()) + sum_per_sample(along.square())
        conjugate = problem.huber / (2 * height.reshape(-1)) * total
        bound = bound - conjugate * (1 + unit)
    return bound


def _into_groups(
    down: Tensor, along: Tensor, height: Tensor, isotropic: bool, coupled: bool
) -> tuple[Tensor, Tensor]:
    """Scale every group of a dual point into the ball of radius ``height``."""
    batch, channels = down.shape[:2]
    rows = down.shape[2] + 1
    columns = along.shape[3] + 1
    squares_down = torch.zeros(batch, channels, rows, columns, dtype=down.dtype).to(down)
    squares_along = torch.zeros_like(squares_down)
    squares_down[..., :-1, :] = down.square()
    squares_along[..., :-1] = along.square()
    if coupled:
        squares_down = squares_down.sum(1, keepdim=True).expand_as(squares_down)
        squares_along = squares_along.sum(1, keepdim=True).expand_as(squares_along)
    if isotropic:
        squares_down = squares_down + squares_along
        squares_along = squares_down
    limit = height * (1 - 16 * EPS)
    factor_down = (limit / squares_down.sqrt().clamp(min=1e-300)).clamp(max=1)
    factor_along = (limit / squares_along.sqrt().clamp(min=1e-300)).clamp(max=1)
    return down * factor_down[..., :-1, :], along * factor_along[..., :-1]
