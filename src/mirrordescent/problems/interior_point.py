"""A primal-dual interior-point method for the support vector machine, with lower bounds."""

from collections.abc import Callable

import torch
from torch import Tensor

from mirrordescent._internal.rounding import sum_error
from mirrordescent.problems.quadratics import matvec

ITERATIONS = 200
BOUNDARY = 0.995  # largest step, relative to the distance to the boundary


def interior_point(
    S: Tensor, J: Tensor, c: float, value: Callable[[Tensor], Tensor], tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Minimise the SVM objective by Mehrotra's primal-dual interior-point method.

    With θ = (w, b), rows sᵢ = yᵢ(φᵢ, 1), J = diag(1, …, 1, 0) and c = C/n, the optimality
    conditions are

        Jθ = Sᵀα,   Sθ − 1 = p − q,   αp = 0,   (c − α)q = 0,   0 ≤ α ≤ c,   p, q ≥ 0.

    The last row of the first equation is Σ αᵢyᵢ = 0, the condition for the unregularised bias. Any
    α that satisfies it proves min f ≥ Σα − ½‖Σ αᵢyᵢφᵢ‖². Every step solves a linear system of the
    size of θ (a Schur complement). The computation is in double precision, which it needs.

    Args:
        S: Rows sᵢ, (n, d + 1) or (batch, n, d + 1).
        J: Diagonal of J, (d + 1,).
        c: Upper bound C/n of α.
        value: Objective f, which maps θ (batch, d + 1) to (batch,).
        tolerance: Gap at which to stop, relative to that of θ = 0. The method also stops if the
            linear system is singular to rounding.

    Returns:
        The best θ, (batch, d + 1), lower bounds on min f, (batch,), and the α that prove them,
        (batch, n).
    """
    S = (S if S.ndim == 3 else S.unsqueeze(0)).double()
    J = J.double()
    theta = S.new_zeros(S.shape[0], S.shape[2])
    alpha = S.new_full(S.shape[:2], c / 2)
    p = torch.ones_like(alpha)
    q = torch.ones_like(alpha)
    best = theta
    proof = torch.zeros_like(alpha)
    lower = torch.full_like(theta[:, 0], -torch.inf)
    start_value = value(theta)
    best_value = start_value
    for _ in range(ITERATIONS):
        old = theta, alpha, p, q
        new = _newton_step(S, J, c, *old)
        solved = torch.stack([each.isfinite().all(1) for each in new]).all(0)
        theta, alpha, p, q = (
            torch.where(solved[:, None], n, o) for n, o in zip(new, old, strict=True)
        )
        new_value = value(theta)
        best = torch.where((new_value < best_value).unsqueeze(-1), theta, best)
        best_value = torch.fmin(best_value, new_value)
        balanced = _balanced(S, alpha, c)
        bound = _dual_value(S, balanced, c)
        proof = torch.where((bound > lower).unsqueeze(-1), balanced, proof)
        lower = torch.fmax(lower, bound)
        converged = best_value - lower <= tolerance * (start_value - lower)
        if bool((~solved | converged).all()):
            break
    return best, lower, proof


def _newton_step(
    S: Tensor, J: Tensor, c: float, theta: Tensor, alpha: Tensor, p: Tensor, q: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Take one predictor-corrector step from (θ, α, p, q), and return the new point.

    The predictor aims at complementarity 0. Its result determines the centring of the corrector.
    """
    room = c - alpha
    weight = 1 / (p / alpha + q / room)
    schur = torch.diag(J) + torch.einsum("bni,bn,bnj->bij", S, weight, S)
    LD, pivots, singular = torch.linalg.ldl_factor_ex(schur)
    # A singular system gives NaN, so that the caller takes no step.
    LD = torch.where(singular[:, None, None] != 0, torch.nan, LD)
    primal = matvec(S.mT, alpha) - J * theta
    dual = 1 + p - q - matvec(S, theta)

    def direction(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Solve αp = low and (c − α)q = high to first order."""
        right = dual + (low - alpha * p) / alpha - (high - room * q) / room
        reduced = primal + matvec(S.mT, weight * right)
        step = torch.linalg.ldl_solve(LD, pivots, reduced.unsqueeze(-1)).squeeze(-1)
        d_alpha = weight * (right - matvec(S, step))
        d_p = (low - alpha * p - p * d_alpha) / alpha
        d_q = (high - room * q + q * d_alpha) / room
        return step, d_alpha, d_p, d_q

    def largest_step(d_alpha: Tensor, d_p: Tensor, d_q: Tensor) -> Tensor:
        """Return the largest step ≤ 1 that keeps α, c − α, p and q positive: (batch, 1)."""
        shrink = torch.stack([-d_alpha / alpha, d_alpha / room, -d_p / p, -d_q / q]).amax((0, 2))
        return (1 / shrink.clamp(min=1)).unsqueeze(1)

    centre = (alpha * p + room * q).mean(1, keepdim=True) / 2
    zero = torch.zeros_like(alpha)
    _, d_alpha, d_p, d_q = direction(zero, zero)
    length = largest_step(d_alpha, d_p, d_q)
    predicted = (alpha + length * d_alpha) * (p + length * d_p) + (room - length * d_alpha) * (
        q + length * d_q
    )
    target = (predicted.mean(1, keepdim=True) / (2 * centre)) ** 3 * centre
    step, d_alpha, d_p, d_q = direction(target - d_alpha * d_p, target + d_alpha * d_q)
    length = BOUNDARY * largest_step(d_alpha, d_p, d_q)
    return theta + length * step, alpha + length * d_alpha, p + length * d_p, q + length * d_q


def _balanced(S: Tensor, alpha: Tensor, c: float) -> Tensor:
    """Clip to 0 ≤ α ≤ c, and scale down the heavier class, so that Σ αᵢyᵢ = 0."""
    alpha = alpha.clamp(0, c)
    labels = S[..., -1]
    plus = (alpha * (labels > 0)).sum(1, keepdim=True)
    minus = (alpha * (labels < 0)).sum(1, keepdim=True)
    lighter = torch.minimum(plus, minus)
    return alpha * torch.where(
        labels > 0, lighter / plus.clamp(min=1e-300), lighter / minus.clamp(min=1e-300)
    )


def _dual_value(S: Tensor, alpha: Tensor, c: float) -> Tensor:
    """Evaluate the dual at an α with Σ αᵢyᵢ = 0, rounded down.

    For 0 ≤ α ≤ c, the hinge is at least αᵢ(1 − mᵢ)/c, and min over w and b of the sum is
    Σα − ½‖Σ αᵢyᵢφᵢ‖² if Σ αᵢyᵢ = 0.
    """
    rows = S[..., :-1]
    count = S.shape[1]
    w = matvec(rows.mT, alpha)
    sizes = matvec(rows.abs().mT, alpha)
    # An error e of Σ αᵢyᵢ = 0 changes the bound by at most |b|·e. At a minimiser,
    # |b| ≤ 1 + ‖w‖ max‖φ‖ with ½‖w‖² ≤ f(0) = C. The rounding error of a sum of n summands is at
    # most n units in the last place of the sum of their magnitudes.
    bias = 1 + (2 * c * count) ** 0.5 * torch.linalg.vector_norm(rows, dim=-1).amax(1)
    size = alpha.sum(1) * (1 + bias) + sizes.square().sum(1)
    value = alpha.sum(1) - 0.5 * w.square().sum(1)
    # f ≥ 0, which α = 0 proves.
    return (value - 4 * sum_error(size, count + S.shape[2])).clamp(min=0)
