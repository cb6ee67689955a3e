"""Restoration with a learned prior, for whole images and for tiles."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from mirrordescent.problems import Problem, RidgePrior, prior_denoising, prior_restoration
from mirrordescent.restore.deep_holes import fill_holes
from mirrordescent.restore.degradation import Degradation
from mirrordescent.restore.tiling import Window


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
    """

    y: Tensor
    mask: Tensor | None
    degradation: Degradation
    sigma: Tensor
    prior: RidgePrior

    @property
    def noisy(self) -> bool:
        """Whether all pixels are known and nothing but noise happened to them."""
        return self.mask is None and self.degradation.trivial

    def window(self, sample: int, window: Window) -> PriorObjective:
        """Return the objective of a window of one image."""
        place = (slice(sample, sample + 1), slice(None), *window)
        mask = None if self.mask is None else self.mask[place].contiguous()
        sigma = self.sigma[sample : sample + 1]
        return PriorObjective(self.y[place].contiguous(), mask, self.degradation, sigma, self.prior)

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
            return _continue(y, self._border)
        if self.degradation.factor > 1:
            return self.degradation.start(_continue(y, self._border))
        return F.pad(y, self._sides, mode="replicate")

    def answer(self, x: Tensor) -> Tensor:
        """Return the part of x that the photograph shows."""
        left, right, top, bottom = self._sides
        if self.degradation.factor > 1:
            left = right = top = bottom = self.degradation.factor * self._border
        return x[..., top : x.shape[-2] - bottom, left : x.shape[-1] - right]

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


def _continue(y: Tensor, border: int) -> Tensor:
    """Continue images beyond their borders by reflection; small ones by their last pixels."""
    mode = "reflect" if min(y.shape[-2:]) > border else "replicate"
    return F.pad(y, (border,) * 4, mode=mode)
