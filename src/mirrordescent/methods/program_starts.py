"""Learned starts of ADMM on a class of programs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mirrordescent.problems.active_sets import trajectory
from mirrordescent.problems.reduced_programs import ReducedProgram

LARGEST_RANK = 32
"""Number of directions in which vectors of programs are told apart."""

RIDGE = 1e-3
"""Weight of the squared coefficients of a fit, relative to the squared deviations."""


class AffineStart(nn.Module):
    """Predict images z and multipliers y of solutions from the vectors of reduced programs.

    With p = (g, low, high), where infinite bounds count as 0, the prediction is

    .. code-block:: none

        (z, y) = b + W U(p − m)

    clipped to the bounds of z and to the signs that multipliers may have. The rows of U are the
    principal directions of p in the class, and m is the mean. W and b are learned. Solutions of
    parametric programs are piecewise affine in p.

    Args:
        features: Number of entries of p.
        rank: Number of directions.
        rows: Number of inequalities.

    >>> AffineStart(5, 2, 3).weight.shape
    torch.Size([6, 2])
    """

    mean: Tensor
    basis: Tensor

    def __init__(self, features: int, rank: int, rows: int) -> None:
        super().__init__()
        self.features = int(features)
        self.rank = int(rank)
        self.rows = int(rows)
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("basis", torch.zeros(rank, features))
        self.weight = nn.Parameter(torch.zeros(2 * rows, rank))
        self.bias = nn.Parameter(torch.zeros(2 * rows))

    def forward(self, program: ReducedProgram, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the predicted z and y of programs, (batch, rows) each."""
        vectors = _vectors(program).to(self.mean)
        if vectors.shape[-1] != self.features or program.rows != self.rows:
            raise ValueError(
                f"the start was learned for {self.rows} inequalities and {self.features} entries "
                f"of their vectors, got {program.rows} and {vectors.shape[-1]}"
            )
        coordinates = (vectors - self.mean) @ self.basis.mT
        predicted = torch.addmm(self.bias, coordinates, self.weight.mT).to(dtype)
        z, y = torch.split(predicted, self.rows, -1)
        low = program.low.to(dtype)
        high = program.high.to(dtype)
        signed = torch.where(high.isfinite(), y, y.clamp(max=0))
        signed = torch.where(low.isfinite(), signed, signed.clamp(min=0))
        k = program.cones.first
        y = torch.cat([signed[..., :k], program.cones.polar(y)[..., k:]], -1)
        return {"z": program.cones.project(z, low, high), "y": y}


@torch.no_grad()
def fitted_start(program: ReducedProgram, dtype: torch.dtype = torch.float32) -> AffineStart:
    """Return the start that fits the solutions of some programs best, by ridge regression.

    Args:
        program: Programs of the class, without their equalities.
        dtype: Type of the parameters.
    """
    vectors = _vectors(program)
    mean = vectors.mean(0)
    _, sizes, basis = torch.linalg.svd(vectors - mean, full_matrices=False)
    rank = min(int((sizes > 1e-6 * sizes.max()).sum()), LARGEST_RANK, max(1, len(vectors) // 4))
    basis = basis[:rank]
    coordinates = (vectors - mean) @ basis.mT
    z, y = _solutions(program)
    targets = torch.cat([z, y], -1)
    centre = targets.mean(0)
    gram = coordinates.mT @ coordinates
    ridge = RIDGE * torch.diagonal(gram).mean() * torch.eye(rank).to(gram)
    weight = torch.linalg.solve(gram + ridge, coordinates.mT @ (targets - centre))
    start = AffineStart(vectors.shape[-1], rank, program.rows).to(dtype)
    start.mean.copy_(mean)
    start.basis.copy_(basis)
    start.weight.copy_(weight.mT)
    start.bias.copy_(centre)
    return start


def _vectors(program: ReducedProgram) -> Tensor:
    """Return (g, low, high) of programs, with 0 for infinite bounds."""
    low = torch.where(program.low.isfinite(), program.low, 0.0)
    high = torch.where(program.high.isfinite(), program.high, 0.0)
    return torch.cat([program.g, low, high], -1)


def _solutions(program: ReducedProgram, rounds: int = 10) -> tuple[Tensor, Tensor]:
    """Return images and multipliers of all inequalities after a run in double precision."""
    matrices = program.matrices
    steps = trajectory(program)
    for _ in range(rounds):
        x, multipliers = next(steps)
    return program.image_of(x), multipliers[:, matrices.kept] / matrices.scale
