"""Restoration with a learned prior, for whole images and for tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.problems import Problem, RidgePrior, prior_denoising, prior_restoration
from mirrordescent.restore.deep_holes import fill_holes
from mirrordescent.restore.degradation import Degradation
from mirrordescent.restore.objectives import WholeGap
from mirrordescent.restore.tiling import Window

STRIP = 256  # rows of a large image whose gradient is computed at a time


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
        return prior_restoration(y, self.sigma, self.prior, operator, mask, self.start())

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

        f(x) − min f ≤ ‖∇f(x)‖²/(2μ), where μ is the modulus of strong convexity. Value and gradient
        are computed some rows at a time. The rounding errors of the gradient are added to its norm.

        Args:
            x: Restored images with their borders, (batch, channels, height, width).
        """
        if not self.framed:
            return None
        y = self.y
        values = []
        gaps = []
        for sample in range(len(y)):
            value, first, bound = self._bound(x[sample], y[sample], self.sigma[sample])
            values.append(value)
            gaps.append(bound / max(first - value + bound, 1e-300))
        return WholeGap(x.new_tensor(values), x.new_tensor(gaps))

    def _bound(self, x: Tensor, y: Tensor, sigma: Tensor) -> tuple[float, float, float]:
        """Return f(x), f(y) and a bound on f(x) − min f of a continued image."""
        border = self.prior.border
        height = y.shape[1]
        problem = prior_denoising(y[None, :, : border + 1, : border + 1], float(sigma), self.prior)
        convexity = problem.strong_convexity() or 0.0
        value = 0.0
        first = 0.0
        squares = 0.0
        for top in range(0, height, STRIP):
            bottom = min(height, top + STRIP)
            low = min(height, bottom + border)
            value += _strip_value(x, y, top, bottom, low, self.prior, sigma)
            first += _strip_value(y, y, top, bottom, low, self.prior, sigma)
            high = max(0, top - border)
            part = prior_denoising(y[None, :, high:low], float(sigma), self.prior)
            gradient = part.grad(x[None, :, high:low])[0, :, top - high : bottom - high]
            squares += float(gradient.double().square().sum())
        charge = self._rounding(sigma) * (y.numel() ** 0.5)
        norm = squares**0.5 + charge
        return value, first, norm**2 / (2 * convexity)

    def _rounding(self, sigma: Tensor) -> float:
        """Return a bound on the rounding error of an entry of the gradient of values in [−1, 2].

        A response sums one term for each entry of a filter. An entry of the gradient sums one term
        for each entry of all filters of its channel.
        """
        filters = self.prior.filters
        count, channels, rows, columns = filters.shape
        unit = torch.finfo(filters.dtype).eps
        profile = self.prior.term(float(sigma)).profile
        size = filters.abs().sum((1, 2, 3))  # largest response of values up to 1
        response_error = 2 * channels * rows * columns * unit * size
        slope = float(profile.slopes().abs().max())
        largest = profile.values.abs().amax(-1).reshape(-1)
        terms = count * rows * columns * unit * largest + slope * response_error
        absolute = filters.abs().sum((2, 3)).amax(1)
        return float((absolute * terms).sum()) + 8 * unit

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


def _strip_value(
    x: Tensor, y: Tensor, top: int, bottom: int, low: int, prior: RidgePrior, sigma: Tensor
) -> float:
    """Return the part of f(x) of some rows: their data, and the filters that begin in them."""
    value = float((x[:, top:bottom] - y[:, top:bottom]).double().square().sum()) / 2
    if low - top <= prior.border:
        return value
    term = prior.term(float(sigma))
    return value + float(term.value(x[None, :, top:low]).double())


def _continue(y: Tensor, border: int) -> Tensor:
    """Continue images beyond their borders by reflection; small ones by their last pixels."""
    mode = "reflect" if min(y.shape[-2:]) > border else "replicate"
    return F.pad(y, (border,) * 4, mode=mode)
