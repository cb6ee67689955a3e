"""Dual points of total-variation problems with missing pixels, where nothing holds Dᵀu back."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent import kernels
from mirrordescent.problems.differences import Differences, Groups, add_adjoint

DEEPEST = 64  # how deep into a hole a pixel is looked for
SETTLED = 1e-2  # of what Dᵀu was in the holes, when enough is done


@torch.no_grad()
def closed(u: Differences, observed: Tensor, groups: Groups, radius: float | Tensor) -> Differences:
    """Return a dual point near u with |u_g| ≤ r and Dᵀu near 0 on H, the pixels that were not
    observed.

    .. code-block:: none

        u ← P(u − (ω/n_p) (Dᵀu)_p De_p)    for all p in H, those of one colour of a checkerboard, then the others

    with n_p the number of neighbours, De_p the differences that touch p, and P the projection onto
    |u_g| ≤ r. These are projections onto (Dᵀu)_p = 0, over-relaxed, and onto the bound in turn.
    Pixels of one colour have no difference in common, so half of them move at once. ω = 2/(1 +
    sin(π/(4d + 1))) for holes d pixels deep, as for Poisson's equation; it ends after 20 + 8d
    turns, or when little of Dᵀu is left. Every u on the way is feasible: how small Dᵀu becomes
    decides only how good a bound it proves.

    References: Gubin, Polyak, Raik, USSR Comput. Math. Math. Phys. 7 (1967), for projections in
        turn; Young, Trans. Amer. Math. Soc. 76 (1954), for ω.

    Args:
        u: the dual point.
        observed: 1 where a pixel was observed, 0 where not, four-dimensional and broadcastable to
            the images.
        groups: which differences are limited together.
        radius: r, a number or one for every sample.
    """
    u = groups.project(u, radius)
    if not (kernels.supports(observed) and kernels.available()):
        return _closed(u, observed, groups, radius)
    bound = torch.as_tensor(radius, dtype=torch.float64).reshape(-1)
    kernels.close_holes(
        (u["vertical"], u["horizontal"]),
        observed,
        bound,
        DEEPEST,
        isotropic=groups.isotropic,
        coupled=groups.coupled,
    )
    return u


def _closed(
    u: Differences, observed: Tensor, groups: Groups, radius: float | Tensor
) -> Differences:
    batch, channels, height, width = (*u["horizontal"].shape[:3], u["vertical"].shape[3])
    hidden = (1 - observed).expand(batch, channels, height, width)
    depth = _depths(observed.expand(batch, channels, height, width))  # (batch, channels, 1, 1)
    together = (1, 2, 3) if groups.coupled else (2, 3)
    depth = depth.amax(1, keepdim=True) if groups.coupled else depth
    row, column = (torch.arange(n, device=hidden.device) for n in (height, width))
    neighbours = _degree(row)[:, None] + _degree(column)
    weight = 2 / (1 + (math.pi / (4 * depth + 1)).sin()) * hidden / neighbours.clamp(min=1)
    colour = (row[:, None] + column) % 2
    first = left = torch.full_like(depth, math.inf)
    for turn in range(20 + 8 * int(depth.max())):
        going = (left > SETTLED * first) | (turn == 0)
        going = going & (turn < 20 + 8 * depth)
        if not bool(going.any()):
            break
        left = torch.zeros_like(left)
        for one in (0, 1):
            there = (colour == one) * hidden
            residual = add_adjoint(torch.zeros_like(hidden), u)
            left = left + (residual * there).abs().sum(together, keepdim=True)
            move = residual * weight * (colour == one) * going
            moved = {
                "vertical": u["vertical"] + move[..., :-1, :] - move[..., 1:, :],
                "horizontal": u["horizontal"] + move[..., :-1] - move[..., 1:],
            }
            u = groups.project(moved, radius)
        first = left if turn == 0 else first
    return u


def _degree(index: Tensor) -> Tensor:
    """Return how many neighbours an index has in a row."""
    return (index > 0).int() + (index < len(index) - 1)


def _depths(observed: Tensor) -> Tensor:
    """Return how deep the deepest hole of every plane is, in rounds of growth to eight
    neighbours.
    """
    depth = torch.zeros_like(observed[..., :1, :1])
    for _ in range(DEEPEST):
        deeper = (observed == 0).any(-1, keepdim=True).any(-2, keepdim=True)
        if not bool(deeper.any()):
            break
        depth = depth + deeper
        observed = F.max_pool2d(observed, 3, stride=1, padding=1)
    return depth
