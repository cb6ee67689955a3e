"""Trend filtering: a term in second differences, and denoising by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from mirrordescent._internal.rounding import positive_sum_error, unit
from mirrordescent.problems.differences import Groups, broadcast, differences, directions
from mirrordescent.problems.grid_denoising import GridDenoising
from mirrordescent.problems.terms import Blocks
from mirrordescent.problems.variation import DifferenceTerm, require_grid
from mirrordescent.trees import sum_per_sample


class Trend(DifferenceTerm):
    """λ Σₖ wₖ‖Dₖ²x‖₁ with the second differences xᵢ − 2xᵢ₊₁ + xᵢ₊₂ along every axis k.

    It favours points that are piecewise linear along every axis.

    Args:
        weight: Weight λ.
        axis_weights: Weights wₖ of the axes; None if all are 1.

    >>> import torch
    >>> Trend(2.0).value(torch.tensor([[[0.0, 1.0, 2.0, 5.0]]]))
    tensor([4.])
    """

    can_solve_adjoint = False

    def prepare(self, like: Tensor) -> None:
        self._axes = require_grid(type(self).__name__, like, self.axis_weights)
        self.blocks = tuple(directions(self._axes))

    @property
    def norm(self) -> float:
        """√(16 Σ wₖ²)."""
        return 2 * super().norm

    def value(self, x: Tensor) -> Tensor:
        sizes = [sum_per_sample(block.abs()) for block in self.K(x).values()]
        return self.scaled_weight * torch.stack(sizes).sum(0)

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the error: every second difference has one of the two differences in it."""
        terms = self._axes * x[0].numel()
        sizes = [sum_per_sample(d.abs()) for d in differences(x, self.axis_weights).values()]
        cancelled = self.scaled_weight * torch.stack(sizes).sum(0)
        return positive_sum_error(value, terms) + 2 * unit(0, x.dtype) * cancelled

    def K(self, x: Tensor) -> Blocks:
        out = {}
        for name, dimension in directions(x.ndim - 2).items():
            if x.shape[dimension] < 3:
                out[name] = x.narrow(dimension, 0, 0)
                continue
            second = torch.diff(torch.diff(x, dim=dimension), dim=dimension)
            out[name] = self._weight_of(dimension) * second
        return out

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        for name, dimension in directions(out.ndim - 2).items():
            block = u[name]
            count = block.shape[dimension]
            for offset, factor in enumerate((1.0, -2.0, 1.0)):
                weight = factor * self._weight_of(dimension)
                if count:
                    out.narrow(dimension, offset, count).add_(block, alpha=weight)
        return out

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add λKᵀu with u = d/max(|d|, width); u = 0 where d = 0."""
        slopes = Groups().slopes(self.K(x), width)
        scaled = {name: broadcast(self.scaled_weight, u) * u for name, u in slopes.items()}
        return self.add_adjoint(out, scaled)

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """Project onto |u| ≤ λ."""
        return Groups().project(u, self.scaled_weight)

    def conjugate(self, u: Blocks) -> Tensor:
        """0."""
        first = next(iter(u.values()))
        return first.new_zeros(len(first))

    def dual_gauge(self, u: Blocks) -> Tensor:
        """max |u|/λ."""
        return Groups().largest(u) / self.scaled_weight

    def _weight_of(self, dimension: int) -> float:
        return 1.0 if self.axis_weights is None else self.axis_weights[dimension]


class TrendFiltering(GridDenoising):
    """f(x) = s·(‖x − y‖² + λ Σₖ wₖ‖Dₖ²x‖₁): denoising by piecewise linear points.

    Signals (batch, channels, length) are solved fastest by
    :class:`~mirrordescent.methods.TrendInteriorPoint`, images and volumes by PDHG.

    Args:
        y: Observed points, (batch, channels, …).
        weight: Weight λ, a number or a tensor (batch,).
        scale: Scale s.
        axis_weights: Weights wₖ of the axes; None if all are 1.

    >>> import torch
    >>> line = torch.arange(4.0).reshape(1, 1, 4)
    >>> TrendFiltering(line, 0.5).value(line)
    tensor([0.])

    Reference: Kim, Koh, Boyd and Gorinevsky, SIAM Rev. 51 (2009).
    """

    largest_difference: ClassVar[float] = 4.0

    def __init__(
        self,
        y: Tensor,
        weight: float | Tensor = 0.15,
        scale: float = 0.5,
        *,
        axis_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(y, Trend(weight, axis_weights), scale)
