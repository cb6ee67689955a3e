"""A stencil as a mirror map: the cheapest map that is diagonal in frequency."""

import torch
from torch import Tensor, nn

from mirrordescent._internal.dct import add_low, low_frequencies
from mirrordescent._internal.reproducible import apply_per_sample
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.parts import Config
from mirrordescent.schedules import Schedule
from mirrordescent.trees import spread, sum_per_sample


class Stencil(MirrorMap):
    """∇ψ*(y) = S y Sᵀ of every channel, with the stencil S = (q/4, 1 − q/2, q/4).

    The stencil applies to columns and rows. The image is continued by reflection at its border, so
    S is diagonal in the DCT-II, with the spectrum

        m(ω₁, ω₂) = (1 − q sin²(ω₁/2)) (1 − q sin²(ω₂/2)),    0 < q < 1,  ω = πi/n.

    The map preserves low frequencies and damps the highest ones, for which smoothed total variation
    has the largest curvature. The only learned parameter is q. A step takes a few passes over the
    image. The inverse ∇ψ(x) = Cᵀ(Cx / m) is not local.

    Args:
        damping: Initial q; or a schedule whose first value is q. With
            :class:`~mirrordescent.conditioning.ConditionalLaws` and a bound of 1, every sample has
            its own q.

    >>> import torch
    >>> stripes = torch.tensor([1.0, -1.0]).repeat(1, 1, 4, 2)  # ω = (0, about π)
    >>> Stencil(damping=0.8).to_primal(stripes)[0, 0, 0].detach()
    tensor([ 0.6000, -0.2000,  0.2000, -0.6000])
    """

    proven = linear = True
    strong_convexity = StrongConvexity(1.0, 2.0)  # 1 / max m

    def __init__(self, damping: float | Schedule = 0.8) -> None:
        super().__init__()
        self.law = damping if isinstance(damping, Schedule) else None
        if isinstance(damping, Schedule):
            return
        if not 0 < damping < 1:
            raise ValueError(f"Stencil needs 0 < damping < 1, got {damping}")
        self.raw_damping = nn.Parameter(torch.tensor(damping).logit())

    @property
    def damping(self) -> Tensor:
        """q: a number, or (batch,)."""
        return self.raw_damping.sigmoid() if self.law is None else torch.as_tensor(self.law(1))

    @property
    def side(self) -> Tensor:
        """q/4 in the shape of step tables: (1, 1), or (1, batch)."""
        return self.damping.detach().double().cpu().reshape(1, -1) / 4

    def spectrum(self, height: int, width: int) -> Tensor:
        """Return m at all frequencies: (height, width), or (batch, 1, height, width)."""
        q = self.damping

        def along(n: int) -> Tensor:
            half = torch.arange(n, dtype=q.dtype, device=q.device) * (torch.pi / (2 * n))
            return 1 - q[..., None] * half.sin().square()

        spectrum = along(height)[..., :, None] * along(width)[..., None, :]
        return spectrum[:, None] if q.ndim else spectrum

    def config(self) -> Config:
        """Return the schedule, if there is one; a single q is stored as a parameter."""
        return {} if self.law is None else {"damping": self.law}

    def _potential(self, x: Tensor) -> Tensor:
        coefficients = low_frequencies(x, 1.0)
        return 0.5 * sum_per_sample(coefficients.square() / self.spectrum(*x.shape[-2:]))

    def _to_dual(self, x: Tensor) -> Tensor:
        # Speed does not matter here, because a run calls this once.
        coefficients = apply_per_sample(lambda sample: low_frequencies(sample, 1.0), x)
        scaled = coefficients / self.spectrum(*x.shape[-2:])
        return apply_per_sample(lambda sample: add_low(torch.zeros_like(x[:1]), sample), scaled)

    def _to_primal(self, y: Tensor) -> Tensor:
        side = spread(self.damping / 4, y)
        if torch.is_grad_enabled() or side.ndim:
            return _smooth(-1, _smooth(-2, y, side), side)
        return _smooth_fast(-1, _smooth_fast(-2, y, float(side)), float(side))


def _smooth(dimension: int, y: Tensor, side: Tensor) -> Tensor:
    """S y = y − (q/4) DᵀD y along one dimension, with side = q/4."""
    flux = side * y.diff(dim=dimension)
    edge = torch.zeros_like(y.narrow(dimension, 0, 1))
    return y + torch.cat([flux, edge], dimension) - torch.cat([edge, flux], dimension)


def _smooth_fast(dimension: int, y: Tensor, side: float) -> Tensor:
    """Compute :func:`_smooth` in two passes, without derivatives.

    The first pass averages both neighbours, the second averages the result and the pixel.
    """
    n = y.shape[dimension]
    if n == 1:
        return y
    out = torch.empty_like(y)
    for edge, neighbour in ((0, 1), (n - 1, n - 2)):
        torch.lerp(
            y.select(dimension, edge),
            y.select(dimension, neighbour),
            side,
            out=out.select(dimension, edge),
        )
    inner = out.narrow(dimension, 1, n - 2)
    torch.lerp(y.narrow(dimension, 0, n - 2), y.narrow(dimension, 2, n - 2), 0.5, out=inner)
    inner.lerp_(y.narrow(dimension, 1, n - 2), 1 - 2 * side)
    return out
