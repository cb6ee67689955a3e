"""Lower bounds of quadratic and cone programs from multipliers.

This is a second implementation, for the verification of certificates.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from mirrordescent.problems import QP
from mirrordescent.references.tangents import EPS

SHARES = (1.0, 1 - 1e-9, 1 - 1e-6, 1 - 1e-4)
"""Multiples of the multipliers of a witness that are tried."""


def program_bound(problem: QP, x: Tensor, y: Tensor) -> Tensor | None:
    """Return the best bound of a point and its multipliers; None if P or A is sparse."""
    if problem.sparse:
        return None
    bounds = [_bound(problem, x, share * y) for share in SHARES]
    return torch.stack(bounds).amax(0)


def _bound(problem: QP, x: Tensor, y: Tensor) -> Tensor:
    """Return the minimum of a model that lies below the objective at all feasible points.

    With y ≥ 0 where only u is finite, y ≤ 0 where only l is, and s = Σ max(uᵢyᵢ, lᵢyᵢ), feasible x'
    satisfy ⟨y, Ax'⟩ ≤ s and Ex' = e for the equalities. So the objective is at least

    .. code-block:: none

        h(x') = ½⟨x', Px'⟩ + ⟨q, x'⟩ + ⟨y, Ax'⟩ − s + (ρ/2)‖Ex' − e‖²

    The Hessian of h is H = P + ρEᵀE. Its smallest eigenvalue μ gives min h ≥ h(x) − ‖∇h(x)‖²/(2μ).
    If μ = 0, rows with a single entry bound x', and min h ≥ h(x) − max ⟨∇h(x), x − x'⟩. Then a
    negative eigenvalue within rounding of 0 is charged, if x' is bounded on all sides.

    In the rows of a cone, ⟨y, w⟩ ≤ ⟨y, l⟩ for all w − l ∈ K if −y ∈ K.
    """
    batch = len(x)
    A = cast(Tensor, problem.A).expand(batch, -1, -1)
    q = problem.q.expand(batch, -1)
    lower = problem.l.expand(batch, -1)
    upper = problem.u.expand(batch, -1)
    rows, columns = A.shape[-2:]
    P = x.new_zeros(batch, columns, columns)
    if problem.P is not None:
        P = cast(Tensor, problem.P).expand(batch, -1, -1)
    in_cone = torch.arange(A.shape[-2], device=A.device) >= A.shape[-2] - sum(problem.cones)
    signed = torch.where(upper.isfinite(), y, y.clamp(max=0))
    signed = torch.where(lower.isfinite(), signed, signed.clamp(min=0))
    y = torch.where(in_cone, _in_polar_cones(problem, y), signed)
    equal = lower == upper
    E = A * equal.unsqueeze(-1)
    e = torch.where(equal, lower, 0.0)
    size_of_P = torch.linalg.matrix_norm(P)
    rho = torch.where(size_of_P > 0, size_of_P, 1.0)
    rho = rho / torch.linalg.matrix_norm(E).square().clamp(min=1e-300)
    rho = torch.where(equal.any(-1), rho, 0.0).reshape(-1, 1)
    units = 8 * (rows + columns + 16) * EPS

    r = _times(E, x) - e
    r_size = _times(E.abs(), x.abs()) + e.abs()
    Px = _times(P, x)
    Px_size = _times(P.abs(), x.abs())
    Ax = _times(A, x)
    Ax_size = _times(A.abs(), x.abs())
    above = torch.where((y > 0) & ~in_cone, upper, lower)
    support = torch.where(y == 0, 0.0, above * y)
    value = (x * (0.5 * Px + q)).sum(-1) + (y * Ax - support + 0.5 * rho * r.square()).sum(-1)
    size = (x.abs() * (Px_size + q.abs())).sum(-1)
    size = size + (y.abs() * Ax_size + support.abs() + rho * r_size * r.abs()).sum(-1)
    size = size + units * (rho * r_size.square()).sum(-1)

    slope = Px + q + _times(A.mT, y) + _times(E.mT, rho * r)
    slope_size = Px_size + q.abs() + _times(A.abs().mT, y.abs()) + _times(E.abs().mT, rho * r_size)
    slope_error = units * slope_size
    H = P + rho.unsqueeze(-1) * (E.mT @ E)
    H_size = size_of_P + rho.squeeze(-1) * torch.linalg.matrix_norm(E).square()
    mu = torch.linalg.eigvalsh((H + H.mT) / 2)[..., 0] - units * columns * H_size
    length = (slope.abs() + slope_error).square().sum(-1)
    by_curvature = torch.where(mu > 0, length / (2 * mu), torch.inf)
    low, high = _single_entry_bounds(A, *_interval_rows(problem, A, lower, upper))
    down = _times_bound((slope + slope_error).clamp(min=0), (x - low).clamp(min=0))
    up = _times_bound((slope_error - slope).clamp(min=0), (high - x).clamp(min=0))
    reach = torch.maximum((x - low).abs(), (high - x).abs()).square().sum(-1)
    concave = (units * columns * size_of_P - torch.linalg.eigvalsh(P)[..., 0]).clamp(min=0)
    charge = torch.where(reach.isfinite(), concave / 2 * reach, 0.0)
    by_box = torch.maximum(down, up).sum(-1) + charge
    decrease = torch.minimum(by_curvature, by_box)
    return value - 2 * units * size - decrease * (1 + units)


def _in_polar_cones(problem: QP, y: Tensor) -> Tensor:
    """Lower the first multiplier of every cone until −y ∈ K in spite of rounding."""
    y = y.clone()
    begin = y.shape[-1] - sum(problem.cones)
    for size in problem.cones:
        length = torch.linalg.vector_norm(y[:, begin + 1 : begin + size], dim=-1)
        length = length * (1 + (size + 16) * EPS)
        y[:, begin] = torch.minimum(y[:, begin], -length)
        begin += size
    return y


def _interval_rows(problem: QP, A: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return bounds of all rows; those of a cone are bounded by its t if that does not depend on x.

    They are rounded outwards.
    """
    lower = lower.clone()
    upper = upper.clone()
    begin = lower.shape[-1] - sum(problem.cones)
    for size in problem.cones:
        constant = (A[:, begin] == 0).all(-1, keepdim=True)
        t = torch.where(constant, -lower[:, begin : begin + 1], torch.inf)
        tail = slice(begin + 1, begin + size)
        margin = 4 * EPS * (lower[:, tail].abs() + t.abs())
        upper[:, tail] = lower[:, tail] + t + margin
        lower[:, tail] = lower[:, tail] - t - margin
        begin += size
    return lower, upper


def _single_entry_bounds(A: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return bounds on every variable from rows aⱼxⱼ with one entry, rounded outwards."""
    single = ((A != 0).sum(-1, keepdim=True) == 1) & (A != 0)
    entries = torch.where(single, A, 1.0)
    ends = torch.stack([lower.unsqueeze(-1) / entries, upper.unsqueeze(-1) / entries])
    margin = 4 * EPS * ends.abs().nan_to_num(posinf=0.0)
    low = torch.where(single, (ends - margin).amin(0), -torch.inf)
    high = torch.where(single, (ends + margin).amax(0), torch.inf)
    missing = A.new_full((len(A), 1, A.shape[-1]), torch.inf)
    return torch.cat([low, -missing], 1).amax(1), torch.cat([high, missing], 1).amin(1)


def _times(matrix: Tensor, x: Tensor) -> Tensor:
    """Return Mx for matrices (batch, m, n) and vectors (batch, n)."""
    return (matrix @ x.unsqueeze(-1)).squeeze(-1)


def _times_bound(slope: Tensor, distance: Tensor) -> Tensor:
    """Return slope · distance, with 0 for a slope of 0 even if the distance is infinite."""
    return torch.where(slope == 0, 0.0, slope * distance)
