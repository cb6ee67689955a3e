"""Lower bounds from dual points: games, support vector machines, transport, total variation.

These are second implementations, for the verification of certificates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mirrordescent.problems import SVM, EntropicTransport, MatrixGame, TVInpainting
from mirrordescent.references.tangents import EPS, unit
from mirrordescent.trees import sum_per_sample


def game_bound(problem: MatrixGame, u: Tensor) -> Tensor:
    """minⱼ (Aᵀu)ⱼ for a mixed reply u ≥ 0, divided by its sum."""
    A = problem.A if problem.A.ndim == 3 else problem.A.expand(len(u), -1, -1)
    reply = u.clamp(min=0)
    reply = reply / reply.sum(-1, keepdim=True)
    payoffs = (A.mT @ reply.unsqueeze(-1)).squeeze(-1)
    units = 4 * (A.shape[-2] + 8) * EPS
    return (payoffs - units * (A.abs().mT @ reply.unsqueeze(-1)).squeeze(-1)).amin(-1)


def machine_bound(problem: SVM, alpha: Tensor) -> Tensor:
    """Σα − ½‖Σ αᵢyᵢφᵢ‖² − B|Σ αᵢyᵢ|, after clipping to 0 ≤ α ≤ C/n.

    The hinge of a margin m is at least αᵢ(1 − m)/c with c = C/n. At some minimiser the bias is at
    most B = 1 + ‖w‖ max‖φ‖ in magnitude, since beyond it moving the bias towards 0 increases no
    hinge; and ½‖w‖² ≤ f(0) = C.
    """
    signed = problem.signed
    signed = signed if signed.ndim == 3 else signed.expand(len(alpha), -1, -1)
    count, columns = signed.shape[-2:]
    units = unit(count + columns)
    alpha = alpha.clamp(0, problem.C / count * (1 - 4 * EPS))
    rows = signed[..., :-1]
    labels = signed[..., -1]
    total = alpha.sum(-1)
    w = (alpha.unsqueeze(-2) @ rows).squeeze(-2)
    w_error = units * (alpha.unsqueeze(-2) @ rows.abs()).squeeze(-2)
    square = (w.abs() + w_error).square().sum(-1) / 2
    longest = rows.square().sum(-1).sqrt().amax(-1)
    bias = (1 + (2 * problem.C) ** 0.5 * longest) * (1 + units)
    imbalance = (alpha * labels).sum(-1).abs() + units * total
    bound = total - square - bias * imbalance - units * (total + square)
    return bound.clamp(min=0)  # f is a sum of squares and hinges


def transport_bound(problem: EntropicTransport, x: Tensor) -> Tensor:
    """−⟨C, P⟩ − ε KL(P | αβᵀ) − (R/2)‖P1 − α‖₁ for the plan P of a potential x.

    Column j of P is βⱼ times a distribution qⱼ, and ε log Σᵢ αᵢ exp(zᵢ/ε) ≥ ⟨z, q⟩ − ε KL(q | α)
    for every z. So f(x') is at least the first two terms plus ⟨x', P1 − α⟩. There is a minimiser
    with entries in [−R/2, R/2], where R is the largest range of a column of C.
    """
    C = problem.C if problem.C.ndim == 3 else problem.C.expand(len(x), -1, -1)
    rows, columns = C.shape[-2:]
    epsilon = problem.epsilon
    alpha = (problem.a / problem.a.sum(-1, keepdim=True)).expand(len(x), -1)
    beta = (problem.b / problem.b.sum(-1, keepdim=True)).expand(len(x), -1)
    z = (x.unsqueeze(-1) - C) / epsilon
    q = alpha.unsqueeze(-1) * torch.exp(z - z.amax(-2, keepdim=True))
    q = q / q.sum(-2, keepdim=True)
    ratio = torch.where(q > 0, q / alpha.unsqueeze(-1), 1.0).log()
    P = q * beta.unsqueeze(-2)
    cost = (P * (C + epsilon * ratio)).sum((-2, -1))
    size = (P * (C.abs() + epsilon * (ratio.abs() + 1))).sum((-2, -1))
    spread = (C.amax(-2) - C.amin(-2)).amax(-1)
    residual = (P.sum(-1) - alpha).abs().sum(-1) + 8 * unit(rows + columns)
    return -cost - spread / 2 * residual - 8 * unit(rows + columns) * size


def total_variation_bound(problem: TVInpainting, u: dict[str, Tensor]) -> Tensor:
    """Σ min_{low ≤ x ≤ high} s·z(x − y)² + (Dᵀu)x − (η/(2sλ))‖u‖², after scaling u into |u_g| ≤ sλ.

    The range of the observed pixels of a channel contains the minimisers, because clipping an image
    to it increases neither term.
    """
    y = problem.y
    observed = torch.ones_like(y, dtype=torch.bool)
    if problem.mask is not None:
        observed = (problem.mask > 0).expand_as(y)
    low = y.masked_fill(~observed, torch.inf).amin((-2, -1), keepdim=True)
    high = y.masked_fill(~observed, -torch.inf).amax((-2, -1), keepdim=True)
    scale = problem.scale
    weight = torch.as_tensor(problem.weight, dtype=y.dtype, device=y.device).reshape(-1, 1, 1, 1)
    height = scale * weight
    down, along = into_groups(
        [u["vertical"], u["horizontal"]], height, problem.isotropic, problem.coupled
    )
    w = divergence([down, along])
    # Pixels move by t = x − y. Σw = 0, so that x − low may replace x in ⟨w, x⟩. In this form no
    # difference is smaller than the rounding error of a bright pixel.
    t = torch.minimum(torch.maximum(-w / (2 * scale), low - y), high - y)
    moved = torch.where(observed, t + (y - low), torch.where(w > 0, 0.0, high - low))
    linear = w * moved
    square = torch.where(observed, scale * t.square(), 0.0)
    units = unit(y[0].numel())
    # Rounding of w is at most a few units of 4sλ, which the width of the range multiplies.
    rounding = units * sum_per_sample(linear.abs() + square + 4 * height * (high - low))
    bound = sum_per_sample(linear + square) - rounding
    if problem.huber:
        total = sum_per_sample(down.square()) + sum_per_sample(along.square())
        conjugate = problem.huber / (2 * height.reshape(-1)) * total
        bound = bound - conjugate * (1 + units)
    return bound


def into_groups(
    blocks: Sequence[Tensor], height: Tensor, isotropic: bool, coupled: bool
) -> list[Tensor]:
    """Scale every group of a dual point into the ball of radius ``height``.

    Args:
        blocks: Blocks of the axes of a grid, (batch, channels, …) each.
        height: Radius, which broadcasts to the blocks.
        isotropic: Whether the differences of a point are one group.
        coupled: Whether the channels are one group.
    """
    axes = len(blocks)
    squares = []
    for axis, block in enumerate(blocks):
        shape = list(block.shape)
        shape[2 + axis] += 1
        padded = block.new_zeros(shape)
        padded.narrow(2 + axis, 0, block.shape[2 + axis]).copy_(block.square())
        if coupled:
            padded = padded.sum(1, keepdim=True).expand_as(padded)
        squares.append(padded)
    if isotropic:
        squares = [torch.stack(squares).sum(0)] * axes
    limit = height * (1 - (16 + axes * blocks[0].shape[1]) * EPS)
    scaled = []
    for axis, (block, square) in enumerate(zip(blocks, squares, strict=True)):
        # The quotient is at least 1, so it is a normal number, or infinite for huge entries.
        quotient = (square.sqrt() / limit).clamp(min=1)
        scaled.append(block / quotient.narrow(2 + axis, 0, block.shape[2 + axis]))
    return scaled


def divergence(blocks: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """Dᵀu for the blocks u of the axes of a grid, with a weight for every axis."""
    shape = list(blocks[0].shape)
    shape[2] += 1
    w = blocks[0].new_zeros(shape)
    for axis, block in enumerate(blocks):
        scaled = block if weights is None else weights[axis] * block
        count = block.shape[2 + axis]
        w.narrow(2 + axis, 1, count).add_(scaled)
        w.narrow(2 + axis, 0, count).sub_(scaled)
    return w
