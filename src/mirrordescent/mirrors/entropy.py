"""Entropies: on the positive orthant, on the simplex, and the hyperbolic one on all of Rⁿ."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mirrordescent.domains import PositiveOrthant, Simplex
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.trees import sum_per_sample


class NegativeEntropy(MirrorMap):
    """ψ(x) = Σ x log x − x on x > 0:  ∇ψ(x) = log x,  ∇ψ*(y) = exp y.

    B(x, x0) = Σ x log(x/x0) − x + x0. Not strongly convex: the curvature 1/x tends to 0.
    """

    proven = True
    elementwise = True
    primal_domain = PositiveOrthant()

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = 0: the curvature has no positive lower bound."""
        return StrongConvexity(0.0, 2.0)

    @property
    def smoothness(self) -> float:
        """Infinite at 0."""
        return math.inf

    def _potential(self, x: Tensor) -> Tensor:
        return sum_per_sample(torch.xlogy(x, x) - x)

    def _to_dual(self, x: Tensor) -> Tensor:
        return x.log()

    def _to_primal(self, y: Tensor) -> Tensor:
        return y.exp()

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        return x * (-t * v).exp()

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        return sum_per_sample(torch.xlogy(x, x / x0) - (x - x0))


class SimplexEntropy(MirrorMap):
    """ψ(x) = Σ x log x − x on the simplex:  ∇ψ(x) = log x,  ∇ψ*(y) = softmax y, last dimension.

    Mirror descent with this map is exponentiated gradient. 1-strongly convex in ℓ₁ (Pinsker).
    Dual points that differ by a constant are the same linear form on the simplex, so
    ∇ψ(∇ψ*(y)) is y up to a constant.
    """

    proven = True
    primal_domain = Simplex()

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = 1 in ℓ₁."""
        return StrongConvexity(1.0, 1.0)

    @property
    def smoothness(self) -> float:
        """Infinite at 0."""
        return math.inf

    def _potential(self, x: Tensor) -> Tensor:
        return sum_per_sample(torch.xlogy(x, x) - x)

    def _to_dual(self, x: Tensor) -> Tensor:
        return x.log()

    def _to_primal(self, y: Tensor) -> Tensor:
        return y.softmax(-1)

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        return sum_per_sample(torch.xlogy(x, x / x0) - (x - x0))


class HyperbolicEntropy(MirrorMap):
    """ψ(x) = Σ x arsinh(x/β) − √(x²+β²):  ∇ψ(x) = arsinh(x/β),  ∇ψ*(y) = β sinh y.

    Between the Euclidean geometry (β large) and a signed entropy (β small). Not strongly convex:
    the curvature 1/√(x²+β²) tends to 0.
    """

    proven = True
    elementwise = True

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        if not beta > 0:
            raise ValueError(f"HyperbolicEntropy needs beta > 0, got beta={beta}")
        self.beta = float(beta)

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = 0: the curvature has no positive lower bound."""
        return StrongConvexity(0.0, 2.0)

    @property
    def smoothness(self) -> float:
        """1/β, at 0."""
        return 1 / self.beta

    def _potential(self, x: Tensor) -> Tensor:
        return sum_per_sample(x * (x / self.beta).asinh() - (x.square() + self.beta**2).sqrt())

    def _to_dual(self, x: Tensor) -> Tensor:
        return (x / self.beta).asinh()

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.beta * y.sinh()

    def extra_repr(self) -> str:
        """Show β."""
        return f"beta={self.beta:g}"
