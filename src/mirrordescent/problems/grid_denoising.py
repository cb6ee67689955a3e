"""Denoising on grids: a squared error and one term in differences."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor

from mirrordescent._internal.arrays import as_tensor
from mirrordescent._internal.checks import require_positive
from mirrordescent._internal.rounding import rounded_down, sum_error, unit
from mirrordescent.parts import Config, Part
from mirrordescent.problems.composite import Composite
from mirrordescent.problems.differences import AxisWeights
from mirrordescent.problems.fits import SquaredError
from mirrordescent.problems.terms import Blocks
from mirrordescent.problems.variation import DifferenceTerm


class GridDenoising(Composite):
    """f(x) = s·‖x − y‖² + g(Kx) for points (batch, channels, …) and a term in their differences.

    A subclass constructs the term. The term must not see constants.

    Args:
        y: Observed points, (batch, channels, …).
        term: Term in differences, whose weight is multiplied by s.
        scale: Scale s.
    """

    smooth: SquaredError

    largest_difference: ClassVar[float] = 2.0
    """Sum of the magnitudes of the coefficients of a difference, without the weight of its axis."""

    def __init__(self, y: Tensor, term: DifferenceTerm, scale: float) -> None:
        require_positive(scale=scale)
        term.factor = float(scale)
        super().__init__(SquaredError(as_tensor(y, "y"), curvature=2 * term.factor), [term])
        self.scale = term.factor

    def config(self) -> Config:
        return Part.config(self)

    def __repr__(self) -> str:
        """Show the constructor arguments instead of the submodules."""
        return f"{type(self).__name__}({self.extra_repr()})"

    @property
    def y(self) -> Tensor:
        """The observed points."""
        return self.smooth.y

    @property
    def term(self) -> DifferenceTerm:
        """The term in differences."""
        return cast(DifferenceTerm, self.parts[0])

    @property
    def weight(self) -> float | Tensor:
        """The weight λ."""
        return self.term.weight

    @property
    def axis_weights(self) -> AxisWeights:
        """The weights of the axes; None if all are 1."""
        return self.term.axis_weights

    @property
    def kink(self) -> float | Tensor:
        """sλ: a number, or (batch,)."""
        return self.term.scaled_weight

    @property
    def ratio(self) -> float:
        """τ‖K‖ for the step size τ = 0.09/(2s), which suits weights of all sizes and grids."""
        return 0.09 * self.K_norm / (2 * self.scale)

    def lower_bound(self, u: Blocks) -> Tensor:
        """Return Σ w(y − c) − w²/(4s) − g*(u) ≤ min f for w = Kᵀu, after projecting u: (batch,).

        The entries of w add up to 0 in every channel, so that any constant c may be subtracted from
        y. The bound is computed in double precision and rounded down. An error δ of each of the n
        entries of w changes it by at most δ Σ(|y − c| + |w|/(2s)) + nδ²/(4s).
        """
        sums, conjugate = self.bound_sums({name: u[name] for name in self.term.blocks})
        axes = self.term.weights_of_axes
        entry = self.largest_difference * sum(axes) * self.radius().to(sums)
        entry_error = 2 * unit(3 * len(axes) + self.y.shape[1]) * entry
        squares = entry_error * (entry_error / (2 * self.scale)) * self.y[0].numel()
        error = entry_error * sums[:, 2] + squares
        count = (sum(self.y.shape[2:]) + len(axes) + 1) * self.y.shape[1]
        bound = sums[:, 0] - conjugate - error - sum_error(sums[:, 1] + conjugate, count)
        bound = torch.where(bound.isfinite(), bound.clamp(min=0), -torch.inf)
        return rounded_down(self.term.charged(bound), self.y.dtype)

    def bound_of_pair(self, x: Tensor, u: Blocks) -> Tensor:
        return self.lower_bound(u)

    def bound_sums(self, u: Blocks) -> tuple[Tensor, Tensor]:
        """Return three sums (batch, 3) for w = Kᵀu, with u projected, and g*(u).

        They are the sums of w(y − c) − w²/(4s), of the magnitudes of these terms, and of
        |y − c| + |w|/(2s).
        """
        y = self.y.double()
        feasible = self.term.prox_conjugate({name: b.double() for name, b in u.items()}, 0.0)
        w = self.term.add_adjoint(torch.zeros_like(y), feasible)
        centre = self.centre().double()
        offset = y - centre.reshape(*centre.shape, *[1] * (y.ndim - 2))
        linear = w * offset
        square = w * (w / (4 * self.scale))  # w² may underflow
        extent = offset.abs() + w.abs() / (2 * self.scale)
        parts = (linear - square, linear.abs() + square, extent)
        return torch.stack([_sum_by_axes(p) for p in parts], 1), self.term.conjugate(feasible)

    def radius(self) -> Tensor:
        """sλ in double precision, (batch,)."""
        kink = torch.as_tensor(self.kink, dtype=torch.float64).reshape(-1)
        return kink.expand(len(self.y))

    def centre(self) -> Tensor:
        """Return numbers near the entries of every channel of y, (batch, channels)."""
        return self.y.detach().flatten(2).mean(-1)


def _sum_by_axes(x: Tensor) -> Tensor:
    """Sum over one dimension after the other, so that few roundings add up: (batch,)."""
    while x.ndim > 1:
        x = x.sum(-1)
    return x
