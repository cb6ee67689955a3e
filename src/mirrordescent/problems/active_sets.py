"""The last step to an exact solution of a quadratic program: the system of its active set."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mirrordescent.problems.quadratics import matvec
from mirrordescent.problems.reduced_programs import ReducedProgram, Schur

FEASIBLE = 1e-9
"""Largest violation of an optimality condition of an accepted solution, relative to its size."""


def polish_active_set(
    schur: Schur,
    program: ReducedProgram,
    y: Tensor,
    z: Tensor,
    rho: Tensor,
    rounds: int,
    samples: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Predict active sets, solve their systems and correct them, for all problems at once.

    With S = CH⁻¹Cᵀ and c = −CH⁻¹g, the solution with active rows a at the bounds b has

    .. code-block:: none

        S_aa y_a = c_a − b_a,   y = 0 elsewhere,   Cv = c − Sy

    Rows with Cv + y/ρ outside of their bounds are the next active set: this is the primal-dual
    active-set method, a semismooth Newton method. A solution is accepted if Cv is within its
    bounds and all multipliers have the right signs, up to rounding.

    Args:
        schur: S and c.
        program: Reduced program.
        y: Multipliers, (batch, rows).
        z: Images of the iterate, (batch, rows).
        rho: Penalties, (rows,).
        rounds: Number of corrections.
        samples: Samples to solve, (batch,) bool; all by default.

    Returns:
        Multipliers, images and the samples for which they are solutions.
    """
    solved = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    best_y = y.clone()
    best_z = z.clone()
    left = torch.arange(len(y), device=y.device)
    shifted = z + y / rho
    if samples is not None:
        left = left[samples]
        shifted = shifted[samples]
    for _ in range(rounds + 1 if len(left) else 0):
        low = program.low
        high = program.high
        part = schur
        if len(left) < len(y):
            low = low[left]
            high = high[left]
            S = schur.S if schur.S.ndim == 2 else schur.S[left]
            part = Schur(S, schur.centre[left])
        above = shifted >= high
        below = shifted <= low
        new_y = _solve_active(part, above | below, torch.where(above, high, low))
        image = part.centre - matvec(part.S, new_y)
        size = (image.abs() + part.centre.abs()).amax(-1)
        accepted = _verified(low, high, image, size, new_y, above, below)
        done = left[accepted]
        best_y[done] = new_y[accepted]
        best_z[done] = torch.clamp(image, low, high)[accepted]
        solved[done] = True
        left = left[~accepted]
        if not len(left):
            break
        shifted = (image + new_y / rho)[~accepted]
    return best_y, best_z, solved


def trajectory(
    program: ReducedProgram, every: int = 50, steps: int = 20_000
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield points and multipliers of all rows along a run of ADMM in double precision.

    Active sets are polished before every pair. The penalty is raised or lowered by a factor of 5
    if the changes of z and y are far from balanced.

    Args:
        program: Reduced program.
        every: Number of steps between two pairs.
        steps: Number of steps in all.
    """
    size = program.unit
    z = torch.zeros_like(program.low)
    y = torch.zeros_like(z)
    for _ in range(0, steps, every):
        rho = torch.full((program.rows,), size, dtype=torch.float64, device=z.device)
        K, M = program.matrices.factor(rho)
        bias = -matvec(program.matrices.C, matvec(K, program.g))
        primal = dual = 0.0
        for _ in range(every if program.rows else 0):
            v = 1.6 * (bias + matvec(M, rho * z - y)) - 0.6 * z
            z_new = program.cones.project(v + y / rho, program.low, program.high)
            y_new = y + rho * (v - z_new)
            primal = float((y_new - y).norm()) / size
            dual = float((z_new - z).norm())
            z = z_new
            y = y_new
        if program.schur is not None and program.rows:
            polished_y, polished_z, solved = polish_active_set(program.schur, program, y, z, rho, 8)
            y = torch.where(solved.unsqueeze(-1), polished_y, y)
            z = torch.where(solved.unsqueeze(-1), polished_z, z)
        x = program.point(K, rho * z - y)
        yield x, program.multipliers(x, y)
        if primal > 10 * dual > 0:
            size *= 5
        elif dual > 10 * primal > 0:
            size /= 5


def _solve_active(schur: Schur, active: Tensor, target: Tensor) -> Tensor:
    """Return the multipliers that put the active rows at their bounds, (batch, rows)."""
    count = int(active.sum(-1).max())
    if count == 0:
        return torch.zeros_like(target)
    # The active rows of each sample come first; others are padding.
    chosen = active.to(torch.int8).topk(count, -1, sorted=True).indices
    used = active.gather(-1, chosen)
    S = schur.S
    if S.ndim == 2:
        block = S[chosen.unsqueeze(-1), chosen.unsqueeze(-2)]
    else:
        rows = torch.arange(len(S), device=S.device)[:, None, None]
        block = S[rows, chosen.unsqueeze(-1), chosen.unsqueeze(-2)]
    both = used.unsqueeze(-1) & used.unsqueeze(-2)
    identity = torch.eye(count, dtype=block.dtype, device=block.device)
    size = torch.diagonal(block, dim1=-2, dim2=-1).amax(-1)[:, None, None]
    block = torch.where(both, block, 0.0) + (1e-13 * size) * identity
    block = block + torch.diag_embed((~used).to(block))
    gap = torch.where(used, (schur.centre - target).gather(-1, chosen), 0.0)
    solution, _ = torch.linalg.solve_ex(block, gap)
    solution = torch.where(used, solution, 0.0).nan_to_num(0.0, 0.0, 0.0)
    return torch.zeros_like(target).scatter(-1, chosen, solution)


def _verified(
    low: Tensor,
    high: Tensor,
    image: Tensor,
    size: Tensor,
    y: Tensor,
    above: Tensor,
    below: Tensor,
) -> Tensor:
    """Return the samples that satisfy all optimality conditions up to rounding, (batch,).

    Args:
        low: Lower bounds of the rows.
        high: Upper bounds of the rows.
        image: Images of the solution.
        size: Magnitude of the terms of which the images are sums, (batch,).
        y: Multipliers.
        above: Whether a row is active at its upper bound.
        below: Whether a row is active at its lower bound.
    """
    scale = FEASIBLE * size
    outside = torch.maximum(image - high, low - image).amax(-1)
    at_bound = torch.where(above, high, low)
    missed = torch.where(above | below, (image - at_bound).abs(), 0.0).amax(-1)
    wrong = torch.where(above, -y, torch.where(below, y, y.abs()))
    wrong = torch.where(low == high, 0.0, wrong).amax(-1)
    return (outside <= scale) & (missed <= scale) & (wrong <= FEASIBLE * y.abs().amax(-1))
