"""The data of total-variation problems on images."""

from typing import NamedTuple

import torch
from torch import Tensor


class Pixels(NamedTuple):
    """The data of f(x) = s·(‖Z(x − y)‖² + λ Σ_g h(|(Dx)_g|))."""

    y: Tensor
    """Observed images y."""

    mask: Tensor | None
    """Mask Z of the observed pixels; None means all."""

    low: Tensor
    """Lower ends of a box that contains the minimisers, one per channel of an image."""

    high: Tensor
    """Upper ends of that box."""

    fidelity: float
    """Curvature 2s of the data term."""

    kink: float | Tensor
    """Weight sλ of the total variation."""

    isotropic: bool = False
    """Whether the two differences of a pixel are one group g."""

    coupled: bool = False
    """Whether a group extends over all channels."""

    huber: float = 0.0
    """Width of the Huber function h."""

    @property
    def bound(self) -> float | Tensor:
        """``kink`` in the shape of step tables: a number, or (1, batch)."""
        return self.kink[None] if isinstance(self.kink, Tensor) else self.kink

    def rounded(self, curvature: Tensor) -> Tensor:
        """Return the curvature of smoothed kinks, at most that of the Huber function: (steps, 1).

        Args:
            curvature: Curvature to which a schedule smooths the kinks, (steps, 1).
        """
        limit = self.bound / self.huber if self.huber else torch.inf
        return torch.minimum(curvature, torch.as_tensor(limit, dtype=curvature.dtype))

    def shrink(self, sigma: float | Tensor) -> float | Tensor:
        """1/(1 + σ·huber/kink), the factor of the prox of G* that the Huber function adds."""
        return 1 / (1 + sigma * self.huber / self.bound)
