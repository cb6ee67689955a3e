"""Restoration with a learned prior, for whole images and for tiles."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.problems import Problem, RidgePrior, prior_denoising, prior_restoration
from mirrordescent.problems.prior_problems import ANCHOR, UNDOING_ANCHOR
from mirrordescent.restore.deep_holes import fill_holes
from mirrordescent.restore.degradation import Degradation
from mirrordescent.restore.objectives import WholeGap
from mirrordescent.restore.tiling import Window

STRIP = 2**19
"""Number of entries of a large image whose gradient is computed at a time."""

MARGIN = 1e-9
"""Relative margin for rounding errors of sums in double precision."""


@dataclass(frozen=True, eq=False)
class PriorObjective:
    """½‖x − y‖² + R_σ(x) for noisy images; ½‖Z(Ax − y)‖² + R_σ(x) + (ρ/2)‖x − c‖² for others.

    The prior R_σ leaves out positions at which a filter does not fit. So the unknown image is
    larger than the photograph: noisy images are continued by reflection, and in other tasks the
    pixels beyond the border are missing.

    Args:
        y: Observed images, (batch, channels, height, width).
        mask: 1 or True at known pixels, (batch, 1, height, width), or None.
        degradation: The operator A.
        sigma: Noise level of the prior, (batch,).
        prior: The prior.
        framed: Whether y has been continued beyond its borders already.
    """

    y: Tensor
    mask: Tensor | None
    degradation: Degradation
    sigma: Tensor
    prior: RidgePrior
    framed: bool = False

    @property
    def noisy(self) -> bool:
        """Whether all pixels are known and nothing but noise happened to them."""
        return self.mask is None and self.degradation.trivial

    def window(self, sample: int, window: Window) -> PriorObjective:
        """Return the objective of a window of one image."""
        place = (slice(sample, sample + 1), slice(None), *window)
        mask = None if self.mask is None else self.mask[place].contiguous()
        sigma = self.sigma[sample : sample + 1]
        y = self.y[place].contiguous()
        return PriorObjective(y, mask, self.degradation, sigma, self.prior, self.framed)

    def for_tiles(self) -> PriorObjective:
        """Return the objective of the noisy images with their borders."""
        return replace(self, y=self.start(), framed=True) if self.noisy else self

    def problem(self) -> Problem:
        """Return the problem on the unknown image, which is larger than y."""
        if self.noisy:
            return prior_denoising(self.start(), self.sigma, self.prior)
        operator = self.degradation.operator(self.y)
        y = self.y
        mask = self.mask
        if self.degradation.factor > 1:
            y = _continue(y, self._border)
        else:
            known = y.new_ones(len(y), 1, *y.shape[2:]) if mask is None else mask.to(y)
            y = F.pad(y, self._sides)
            mask = F.pad(known, self._sides)
        anchor = ANCHOR if self.degradation.trivial else UNDOING_ANCHOR
        return prior_restoration(y, self.sigma, self.prior, operator, mask, self.start(), anchor)

    def start(self) -> Tensor:
        """Return y with filled holes, continued at its border or enlarged."""
        y = self.y if self.mask is None else fill_holes(self.y, self.mask)
        if self.noisy:
            return y if self.framed else _continue(y, self._border)
        if self.degradation.factor > 1:
            return self.degradation.start(_continue(y, self._border))
        return F.pad(y, self._sides, mode="replicate")

    def answer(self, x: Tensor) -> Tensor:
        """Return the part of x that the photograph shows."""
        if self.framed:
            return x
        left, right, top, bottom = self._sides
        if self.degradation.factor > 1:
            left = right = top = bottom = self.degradation.factor * self._border
        return x[..., top : x.shape[-2] - bottom, left : x.shape[-1] - right]

    def whole(self, x: Tensor) -> WholeGap | None:
        """Return the gap of whole noisy images, by the gradient of the whole objective.

        f(x) − min f ≤ ‖∇f(x)‖²/(2μ), where μ is the modulus of strong convexity. Values and the
        gradient are computed in double precision, some rows at a time, and charged for their
        rounding errors.

        Args:
            x: Restored images with their borders, (batch, channels, height, width).
        """
        if not self.framed:
            return None
        prior = copy.deepcopy(self.prior).double()
        values = []
        gaps = []
        for sample in range(len(x)):
            sigma = float(self.sigma[sample])
            y = self.y[sample : sample + 1]
            here = _evaluate_strips(x[sample : sample + 1], y, prior, sigma)
            start = _evaluate_strips(y, y, prior, sigma)
            bound = here.gradient_norm**2 / (2 * _convexity(y, prior, sigma))
            decrease = start.value - start.error - here.value - here.error
            values.append(here.value)
            gaps.append(bound / max(decrease + bound, 1e-300))
        return WholeGap(x.new_tensor(values), x.new_tensor(gaps))

    @property
    def _border(self) -> int:
        """Pixels by which the photograph is continued."""
        return -(-self.prior.border // self.degradation.factor)

    @property
    def _sides(self) -> tuple[int, int, int, int]:
        """Pixels beyond the left, right, upper and lower border of the photograph."""
        down, across = self.degradation.margin
        rows = down + self.prior.border
        columns = across + self.prior.border
        return columns, columns, rows, rows


class _Evaluation(NamedTuple):
    """f(x), a bound on its rounding error, and an upper bound on ‖∇f(x)‖."""

    value: float
    error: float
    gradient_norm: float


def _evaluate_strips(x: Tensor, y: Tensor, prior: RidgePrior, sigma: float) -> _Evaluation:
    """Evaluate ½‖x − y‖² + R_σ(x) and its gradient, some rows at a time.

    A strip contains the filters whose first row is one of its rows. They also contribute to the
    gradient of the rows below, which is completed by the next strip.

    Args:
        x: Image with its borders, (1, channels, height, width).
        y: Noisy image of the same shape.
        prior: Prior in double precision.
        sigma: Noise level of the prior.
    """
    border = prior.border
    term = prior.term(sigma)
    _, channels, height, width = x.shape
    rows = max(STRIP // (channels * width), border + 1)
    value = 0.0
    error = 0.0
    squares = 0.0
    gradient_error = 0.0
    carried = x.new_zeros(1, channels, 0, width, dtype=torch.float64)
    for top in range(0, height, rows):
        bottom = min(height, top + rows)
        near = x[:, :, top : bottom + border].double()
        gradient = torch.zeros_like(near)
        if near.shape[2] > border:
            ridges = term.value(near)
            value += float(ridges)
            error += float(term.value_error(near, ridges))
            gradient = term.add_gradient(gradient, near, 0.0)
            gradient_error += float(term.gradient_error(near))
        gradient[:, :, : carried.shape[2]] += carried
        carried = gradient[:, :, bottom - top :]
        difference = near[:, :, : bottom - top] - y[:, :, top:bottom].double()
        value += float(difference.square().sum()) / 2
        squares += float((gradient[:, :, : bottom - top] + difference).square().sum())
    # Sums of the data and of squares have relative errors far below this margin.
    error += MARGIN * value
    return _Evaluation(value, error, squares**0.5 * (1 + MARGIN) + gradient_error)


def _convexity(y: Tensor, prior: RidgePrior, sigma: float) -> float:
    """Return the modulus of strong convexity, which does not depend on the size of an image."""
    side = prior.border + 1
    problem = prior_denoising(y[:, :, :side, :side].double(), sigma, prior)
    return problem.strong_convexity() or 0.0


def _continue(y: Tensor, border: int) -> Tensor:
    """Continue images beyond their borders by reflection; small ones by their last pixels."""
    mode = "reflect" if min(y.shape[-2:]) > border else "replicate"
    return F.pad(y, (border,) * 4, mode=mode)
