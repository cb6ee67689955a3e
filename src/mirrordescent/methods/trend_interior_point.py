"""An interior-point method for trend filtering of signals."""

from __future__ import annotations

import torch
from torch import Tensor

from mirrordescent.methods.signals import SignalMethod, require_signals
from mirrordescent.problems.base import Problem
from mirrordescent.problems.trends import TrendFiltering

TOLERANCE = 1e-9
"""Relative duality gap at which a series is solved."""

NEWTON_STEPS = 100
"""Largest number of Newton steps."""


class TrendInteriorPoint(SignalMethod):
    """Solve trend filtering of signals in one step, by Newton steps on the dual problem.

    For z = v/r the dual problem is min ½‖Dᵀz‖² − ⟨z, Dy/r⟩ over |z| ≤ 1, with second differences D.
    A primal-dual interior-point method solves a system with the matrix DDᵀ + diag(d) in every
    Newton step, whose five bands take time O(length). About twenty steps are enough.

    The problem is a :class:`~mirrordescent.problems.TrendFiltering` on signals (batch, channels,
    length).

    >>> import torch
    >>> import mirrordescent as md
    >>> problem = md.TrendFiltering(torch.tensor([[[0.0, 1.0, 0.0]]]), weight=100.0)
    >>> md.solve(problem, md.methods.TrendInteriorPoint(), iterations=1).x
    tensor([[[0.3333, 0.3333, 0.3333]]])

    Reference: Kim, Koh, Boyd and Gorinevsky, SIAM Rev. 51 (2009).
    """

    cli_names = ("trend-interior-point",)

    def require(self, problem: Problem | None) -> TrendFiltering:
        return require_signals(type(self).__name__, problem, TrendFiltering)

    def denoise(self, y: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        if y.shape[1] < 3:
            return y.clone(), y.new_zeros(len(y), 0)
        D = _second_differences(y.shape[1])
        z = torch.stack([_dual_point(D, row / r) for row, r in zip(y, radius, strict=True)])
        v = radius.unsqueeze(-1) * z
        return y - v @ D, v


def _dual_point(D: Tensor, y: Tensor) -> Tensor:
    """Return the minimiser of ½‖Dᵀz‖² − ⟨z, Dy⟩ over |z| ≤ 1."""
    gram = D @ D.mT
    b = D @ y
    z = torch.zeros_like(b)
    upper = torch.ones_like(b)
    lower = torch.ones_like(b)
    t = 1e-10
    step = 1.0
    for _ in range(NEWTON_STEPS):
        image = gram @ z
        value = z @ image / 2 + (b - image).abs().sum()
        gap = value - (z @ b - z @ image / 2)
        if not gap > TOLERANCE * value:
            break
        complementary = upper @ (1 - z) + lower @ (1 + z)
        if step >= 0.2:
            t = max(1.2 * t, 4 * len(b) / max(float(gap), float(complementary)))
        d = upper / (1 - z) + lower / (1 + z)
        right = b - image - 1 / (t * (1 - z)) + 1 / (t * (1 + z))
        move = torch.linalg.solve(gram + d.diag(), right)
        raised = (1 / t + move * upper) / (1 - z) - upper
        lowered = (1 / t - move * lower) / (1 + z) - lower
        ratios = [
            _longest(upper, raised),
            _longest(lower, lowered),
            _longest(1 - z, -move),
            _longest(1 + z, move),
        ]
        step = min(1.0, *(0.99 * ratio for ratio in ratios))
        before = _residual(gram, b, z, upper, lower, t)
        for _ in range(20):
            moved = (z + step * move, upper + step * raised, lower + step * lowered)
            if _residual(gram, b, *moved, t) <= (1 - 0.01 * step) * before:
                break
            step /= 2
        z, upper, lower = z + step * move, upper + step * raised, lower + step * lowered
    return z


def _residual(gram: Tensor, b: Tensor, z: Tensor, upper: Tensor, lower: Tensor, t: float) -> Tensor:
    """Return the norm of the residual of the optimality conditions."""
    parts = (gram @ z - b + upper - lower, upper * (1 - z) - 1 / t, lower * (1 + z) - 1 / t)
    return torch.cat(parts).norm()


def _longest(numbers: Tensor, change: Tensor) -> float:
    """Return the largest step that keeps positive numbers non-negative."""
    return float(torch.where(change < 0, -numbers / change, torch.inf).min())


def _second_differences(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64).diff(dim=0).diff(dim=0)
