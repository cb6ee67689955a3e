"""Dual points of total-variation problems with missing pixels.

At a missing pixel, a dual point proves a good lower bound only if (Dᵀu)_p is close to 0.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent import kernels
from mirrordescent.problems.differences import Differences, Groups, add_adjoint

MAX_DEPTH = 64
"""Depth in pixels at which holes are cut off; deeper holes are treated as this deep."""

TOLERANCE = 1e-2
"""The iteration stops when Σ|Dᵀu| over the missing pixels has fallen to this share."""


@torch.no_grad()
def reduce_divergence(
    u: Differences, observed: Tensor, groups: Groups, radius: float | Tensor
) -> Differences:
    """Return a dual point near u with |u_g| ≤ r and Dᵀu near 0 at the missing pixels H.

    .. code-block:: none

        u ← P(u − (ω/n_p) (Dᵀu)_p De_p)    for all p in H

    Here n_p is the number of neighbours of p, De_p are the differences that touch p, and P is the
    projection onto |u_g| ≤ r. The iteration alternates over-relaxed projections onto (Dᵀu)_p = 0
    with projections onto the bound. Pixels of one colour of a checkerboard share no difference, so
    each half of the pixels is updated at once. The relaxation is ω = 2/(1 + sin(π/(4d + 1))) for
    holes d pixels deep, as for Poisson's equation. The iteration stops after 20 + 8d rounds, or
    when Dᵀu is small. Every iterate is feasible; the size of Dᵀu only decides how good its bound
    is.

    References: Gubin, Polyak, Raik, USSR Comput. Math. Math. Phys. 7 (1967), for alternating
        projections; Young, Trans. Amer. Math. Soc. 76 (1954), for ω.

    Args:
        u: Dual point.
        observed: 1 where a pixel was observed and 0 elsewhere; four-dimensional, and must broadcast
            to the images.
        groups: Groups of differences that share a bound.
        radius: Bound r, a number or a tensor (batch,).
    """
    u = groups.project(u, radius)
    if not (kernels.supports(observed) and kernels.available()):
        return _reduce_divergence(u, observed, groups, radius)
    bound = torch.as_tensor(radius, dtype=torch.float64).reshape(-1)
    u = {name: block.contiguous() for name, block in u.items()}
    kernels.close_holes(
        (u["vertical"], u["horizontal"]),
        observed.contiguous(),
        bound,
        MAX_DEPTH,
        isotropic=groups.isotropic,
        coupled=groups.coupled,
    )
    return u


def _reduce_divergence(
    u: Differences, observed: Tensor, groups: Groups, radius: float | Tensor
) -> Differences:
    """Iterate in plain torch; u must be feasible."""
    batch, channels, height = u["horizontal"].shape[:3]
    width = u["vertical"].shape[3]
    missing = (1 - observed).expand(batch, channels, height, width)
    depth = _depths(observed.expand(batch, channels, height, width))  # (batch, channels, 1, 1)
    plane: tuple[int, ...] = (2, 3)
    if groups.coupled:
        plane = (1, 2, 3)
        depth = depth.amax(1, keepdim=True)
    row = torch.arange(height, device=missing.device)
    column = torch.arange(width, device=missing.device)
    neighbours = _degree(row)[:, None] + _degree(column)
    relaxation = 2 / (1 + (math.pi / (4 * depth + 1)).sin())
    weight = relaxation * missing / neighbours.clamp(min=1)
    colour = (row[:, None] + column) % 2
    first_error = torch.full_like(depth, math.inf)
    error = first_error
    for iteration in range(20 + 8 * int(depth.max())):
        active = (error > TOLERANCE * first_error) | (iteration == 0)
        active = active & (iteration < 20 + 8 * depth)
        if not bool(active.any()):
            break
        error = torch.zeros_like(error)
        for parity in (0, 1):
            residual = add_adjoint(torch.zeros_like(missing), u)
            of_parity = (colour == parity) * missing
            error = error + (residual * of_parity).abs().sum(plane, keepdim=True)
            move = residual * weight * (colour == parity) * active
            moved = {
                "vertical": u["vertical"] + move[..., :-1, :] - move[..., 1:, :],
                "horizontal": u["horizontal"] + move[..., :-1] - move[..., 1:],
            }
            u = groups.project(moved, radius)
        if iteration == 0:
            first_error = error
    return u


def _degree(index: Tensor) -> Tensor:
    """Return the number of neighbours of every index in a row."""
    return (index > 0).int() + (index < len(index) - 1)


def _depths(observed: Tensor) -> Tensor:
    """Return the depth of the deepest hole of every channel: (batch, channels, 1, 1).

    Depth is the number of dilations by a 3 × 3 window that fill a hole.
    """
    depth = torch.zeros_like(observed[..., :1, :1])
    for _ in range(MAX_DEPTH):
        deeper = (observed == 0).any(-1, keepdim=True).any(-2, keepdim=True)
        if not bool(deeper.any()):
            break
        depth = depth + deeper
        observed = F.max_pool2d(observed, 3, stride=1, padding=1)
    return depth
