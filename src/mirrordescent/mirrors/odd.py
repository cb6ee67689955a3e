"""Odd, increasing maps of one variable whose ∇ψ* saturates, for mapping gradients."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent._internal.checks import require_positive
from mirrordescent.domains import Box
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.trees import sum_per_sample


class SoftSign(MirrorMap):
    """ψ(x) = Σ δ − δ√(1 − x²) on |x| < 1:  ∇ψ(x) = δx/√(1 − x²),  ∇ψ*(y) = y/√(y² + δ²).

    ψ* = Σ √(y² + δ²) − δ is a smoothed ℓ₁ norm, so ∇ψ*(y) is a sign that is damped near 0. Applied
    to gradients it gives sign descent. Applied to singular values
    (:class:`~mirrordescent.mirrors.SingularValues`) it gives the polar factor of a matrix. The
    curvature δ(1 − x²)^(−3/2) is smallest at 0.

    Args:
        delta: Damping δ > 0.

    >>> import torch
    >>> SoftSign(1e-3).to_primal(torch.tensor([[-2.0, 0.0, 0.5]]))
    tensor([[-1.0000,  0.0000,  1.0000]])
    """

    proven = elementwise = symmetric = True
    primal_domain = Box(-1.0, 1.0)

    def __init__(self, delta: float = 1e-3) -> None:
        super().__init__()
        require_positive(delta=delta)
        self.delta = float(delta)

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = δ in ℓ₂."""
        return StrongConvexity(self.delta, 2.0)

    @property
    def smoothness(self) -> float:
        """Infinite, because the curvature is unbounded towards |x| = 1."""
        return math.inf

    def _potential(self, x: Tensor) -> Tensor:
        return self.delta * sum_per_sample(1 - (1 - x.square()).sqrt())

    def _to_dual(self, x: Tensor) -> Tensor:
        return self.delta * x / ((1 - x) * (1 + x)).sqrt()

    def _to_primal(self, y: Tensor) -> Tensor:
        return y / torch.hypot(y, torch.full_like(y, self.delta))


class Saturating(MirrorMap):
    """∇ψ*(y) = σ(y) = floor·y + Σ_k w_k min(|y|/τ_k, 1) sign y, a learned saturating function.

    The thresholds are τ_k = ratio^−k for k = 0, …, K, and w > 0. σ is odd, increasing and piecewise
    linear: a learned mixture of clipped identities, from the identity on [−1, 1] (τ₀ = 1) to nearly
    the sign. With w = e₀ it is the identity on [−1, 1]. The inverse is exact, and

    .. code-block:: none

        ∇ψ(x) = σ⁻¹(x)        ψ(x) = Σ ∫₀^xᵢ σ⁻¹        α = 1/max σ′,   L_ψ = 1/floor

    The learned parameters are log w.

    Args:
        weights: Initial weights w, K + 1 numbers > 0; the identity on [−1, 1] by default.
        ratio: Ratio of consecutive thresholds, > 1.
        floor: Slope beyond τ₀, > 0, which makes σ invertible.

    >>> import torch
    >>> mirror = Saturating([0.5, 0.5], ratio=4.0, floor=1e-6)
    >>> mirror.to_primal(torch.tensor([[-1.0, 0.25, 0.125]])).detach()
    tensor([[-1.0000,  0.6250,  0.3125]])
    """

    proven = elementwise = symmetric = True

    def __init__(
        self, weights: Sequence[float] | Tensor = (1.0,), ratio: float = 3.4, floor: float = 1e-3
    ) -> None:
        super().__init__()
        weights = torch.as_tensor(weights)
        positive = bool(((weights > 0) & weights.isfinite()).all())
        if weights.ndim != 1 or not len(weights) or not positive:
            raise ValueError(f"Saturating needs a list of finite weights > 0, got {weights}")
        if not 1 < ratio < math.inf:
            raise ValueError(f"Saturating needs a ratio > 1, got {ratio}")
        require_positive(floor=floor)
        self.ratio = float(ratio)
        self.floor = float(floor)
        self.log_weights = nn.Parameter(weights.detach().float().log())

    @property
    def weights(self) -> Tensor:
        """w: (K + 1,)."""
        return self.log_weights.exp()

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = 1/σ′(0) in ℓ₂, because σ is steepest at 0."""
        return StrongConvexity(1 / float(self._pieces()[1][0].detach()), 2.0)

    @property
    def smoothness(self) -> float:
        """1/floor, because σ is flattest beyond τ₀."""
        return 1 / self.floor

    def _pieces(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the linear pieces of σ on y ≥ 0, (K + 2,) each.

        These are the starts 0 = e₀ < e₁ < … < 1 of the intervals, the slopes of σ there, and the
        values of σ at the starts.
        """
        w = self.weights.flip(0)
        ends = self.ratio ** -torch.arange(len(w) - 1, -1, -1, dtype=w.dtype, device=w.device)
        # The slope is the sum over the ramps that have not saturated yet.
        slopes = self.floor + F.pad((w / ends).flip(0).cumsum(0).flip(0), (0, 1))
        ends = F.pad(ends, (1, 0))
        return ends, slopes, F.pad((slopes[:-1] * ends.diff()).cumsum(0), (1, 0))

    def _potential(self, x: Tensor) -> Tensor:
        ends, slopes, values = self._pieces()
        trapezia = 0.5 * (ends[1:] + ends[:-1]) * values.diff()
        areas = F.pad(trapezia.cumsum(0), (1, 0))  # ∫₀ of σ⁻¹
        size = x.abs()
        at = _interval(size, values)
        beyond = size - values[at]
        return sum_per_sample(areas[at] + beyond * (ends[at] + 0.5 * beyond / slopes[at]))

    def _to_dual(self, x: Tensor) -> Tensor:
        ends, slopes, values = self._pieces()
        at = _interval(x.abs(), values)
        return x.sign() * (ends[at] + (x.abs() - values[at]) / slopes[at])

    def _to_primal(self, y: Tensor) -> Tensor:
        ends, slopes, values = self._pieces()
        at = _interval(y.abs(), ends)
        return y.sign() * (values[at] + (y.abs() - ends[at]) * slopes[at])


def _interval(size: Tensor, starts: Tensor) -> Tensor:
    """Return the index of the interval that contains each size ≥ 0; the last is unbounded."""
    at = torch.bucketize(size.detach(), starts.detach().to(size.dtype), right=True) - 1
    return at.clamp(0, len(starts) - 1)  # a valid index for NaN too
