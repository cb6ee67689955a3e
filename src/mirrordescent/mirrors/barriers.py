"""Potentials whose gradient is infinite at the boundary: iterates stay inside by themselves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mirrordescent.domains import Box, NegativeOrthant, PositiveOrthant
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.trees import sum_per_sample


class Burg(MirrorMap):
    """ψ(x) = −Σ log x on x > 0:  ∇ψ(x) = −1/x,  ∇ψ*(y) = −1/y on y < 0.

    B(x, x0) = Σ x/x0 − log(x/x0) − 1, the Itakura–Saito divergence. Not strongly convex, and the
    dual domain is not all of Rⁿ: too long a step leaves it.
    """

    proven = True
    elementwise = True
    primal_domain = PositiveOrthant()
    dual_domain = NegativeOrthant()

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = 0: the curvature has no positive lower bound."""
        return StrongConvexity(0.0, 2.0)

    @property
    def smoothness(self) -> float:
        """Infinite at 0."""
        return math.inf

    def _potential(self, x: Tensor) -> Tensor:
        return -sum_per_sample(x.log())

    def _to_dual(self, x: Tensor) -> Tensor:
        return -1 / x

    def _to_primal(self, y: Tensor) -> Tensor:
        return -1 / y

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        return x / (1 + t * x * v)

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        excess = (x - x0) / x0
        return sum_per_sample(excess - excess.log1p())


class Logit(MirrorMap):
    """ψ(x) = Σ (x−a)log(x−a) + (b−x)log(b−x):  ∇ψ(x) = log((x−a)/(b−x)),  ∇ψ*(y) = a + (b−a)·sigmoid y.

    The map of a box (a, b) in every entry; 4/(b−a)-strongly convex in ℓ₂.
    """

    proven = True
    elementwise = True

    def __init__(self, lower: float = 0.0, upper: float = 1.0) -> None:
        super().__init__()
        self.primal_domain: Box = Box(lower, upper)
        self.lower, self.upper = self.primal_domain.lower, self.primal_domain.upper

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = 4/(b−a) in ℓ₂."""
        return StrongConvexity(4 / (self.upper - self.lower), 2.0)

    @property
    def smoothness(self) -> float:
        """Infinite at the ends."""
        return math.inf

    def _distances(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x - self.lower, self.upper - x

    def _potential(self, x: Tensor) -> Tensor:
        below, above = self._distances(x)
        return sum_per_sample(torch.xlogy(below, below) + torch.xlogy(above, above))

    def _to_dual(self, x: Tensor) -> Tensor:
        below, above = self._distances(x)
        return (below / above).log()

    def _to_primal(self, y: Tensor) -> Tensor:
        a, b = self.lower, self.upper
        return (a + (b - a) * y.sigmoid()).clamp(a, b)  # rounding may carry a saturated entry past b

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        (below, above), (below0, above0) = self._distances(x), self._distances(x0)
        return sum_per_sample(torch.xlogy(below, below / below0) + torch.xlogy(above, above / above0))

    def extra_repr(self) -> str:
        """Show the box."""
        return f"{self.lower:g}, {self.upper:g}"
