"""Potentials made of p-norms, 1 < p < ∞."""

import math

import torch
from torch import Tensor

from mirrordescent._internal.reproducible import apply_padded
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.trees import sum_per_sample


class _NormPotential(MirrorMap):
    """A potential made of ‖x‖_p."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 1 < p < math.inf:
            raise ValueError(f"{type(self).__name__} needs 1 < p < ∞, got p={p}")
        self.p = float(p)


class PNorm(_NormPotential):
    """ψ(x) = ‖x‖_p^p / p:  ∇ψ(x) = sign(x)|x|^(p−1),  ∇ψ*(y) = sign(y)|y|^(1/(p−1)).

    ψ is strongly convex only for p = 2. Otherwise its curvature (p−1)|x|^(p−2) tends to 0, at
    infinity for p < 2 and at 0 for p > 2.

    Args:
        p: Exponent, 1 < p < ∞.
    """

    proven = elementwise = symmetric = True

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = 1 in ℓ₂ for p = 2, otherwise 0."""
        return StrongConvexity(1.0 if self.p == 2 else 0.0, 2.0)

    @property
    def smoothness(self) -> float:
        """1 for p = 2, otherwise infinite."""
        return 1.0 if self.p == 2 else math.inf

    def _potential(self, x: Tensor) -> Tensor:
        return sum_per_sample(_power(x.abs(), self.p)) / self.p

    def _to_dual(self, x: Tensor) -> Tensor:
        return _signed_power(x, self.p - 1)

    def _to_primal(self, y: Tensor) -> Tensor:
        return _signed_power(y, 1 / (self.p - 1))


class SquaredPNorm(_NormPotential):
    """ψ(x) = ½‖x‖_p²:  ∇ψ(x) = ‖x‖_p^(2−p) sign(x)|x|^(p−1),  ∇ψ* the same with q = p/(p−1).

    The norm is over all entries of a sample. For 1 < p ≤ 2, ψ is (p−1)-strongly convex in ℓ_p. For
    the ℓ₁ geometry on Rⁿ, choose p = 1 + 1/log n.

    Args:
        p: Exponent, 1 < p < ∞.
    """

    proven = symmetric = True

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = p − 1 in ℓ_p for 1 < p ≤ 2, otherwise 0."""
        return StrongConvexity(self.p - 1, self.p) if self.p <= 2 else StrongConvexity(0.0, 2.0)

    @property
    def smoothness(self) -> float:
        """p − 1 for p ≥ 2, otherwise infinite."""
        return self.p - 1 if self.p >= 2 else math.inf

    def _potential(self, x: Tensor) -> Tensor:
        return 0.5 * _norm(x, self.p).square().flatten()

    def _to_dual(self, x: Tensor) -> Tensor:
        return _gradient_of_half_squared_norm(x, self.p)

    def _to_primal(self, y: Tensor) -> Tensor:
        return _gradient_of_half_squared_norm(y, self.p / (self.p - 1))


def _power(x: Tensor, exponent: float) -> Tensor:
    return apply_padded(lambda entries: entries.pow(exponent), x)


def _signed_power(x: Tensor, exponent: float) -> Tensor:
    """sign(x)|x|^exponent, with finite derivatives at 0."""
    # For exponents below 1, the power has an infinite derivative at 0, and ∞ · sign(0) is NaN.
    nonzero = x != 0
    power = _power(torch.where(nonzero, x, 1.0).abs(), exponent)
    return torch.where(nonzero, x.sign() * power, 0.0)


def _norm(x: Tensor, p: float) -> Tensor:
    """‖x‖_p per sample, broadcastable to x.

    Entries are divided by the largest one first, so that powers do not overflow.
    """
    inner = tuple(range(1, x.ndim))
    if not x.numel():
        return x.new_zeros(x.shape[:1] + (1,) * len(inner))
    largest = x.abs().amax(inner, keepdim=True) if inner else x.abs()
    positive = largest > 0
    # All ones for x = 0, which keeps the derivative finite.
    scaled = torch.where(positive, x, 1.0) / torch.where(positive, largest, 1.0)
    powers = _power(scaled.abs(), p)
    return largest * _power(powers.sum(inner, keepdim=True) if inner else powers, 1 / p)


def _gradient_of_half_squared_norm(x: Tensor, p: float) -> Tensor:
    norm = _norm(x, p)
    return norm * _signed_power(x / torch.where(norm > 0, norm, 1.0), p - 1)
