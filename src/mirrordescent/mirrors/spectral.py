"""Maps for images that are diagonal in the frequencies: equivariant by construction, with exact inverses.

The group argument for networks, that a map tied along the orbits of a symmetry is equivariant whatever it learns,
carried over to images. The orthonormal cosine transform (DCT-II) C diagonalises what commutes with the symmetries of a
picture continued by reflection: flips, and translations away from the border. A map Cᵀ σ C whose σ treats all
frequencies of one length alike commutes with rotations by 90° as well, and the same σ for every channel makes it
blind to the order of the colours. Measured in double precision, the defects under flips, rotations and colours are
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from mirrordescent.cosine import add_low, low_count, low_frequencies, low_lengths
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.mirrors.spline import Spline
from mirrordescent.parts import Config
from mirrordescent.trees import sum_per_sample


class Spectral(MirrorMap):
    """ψ(x) = ½ Σ_ω |Cx|²_ω / m(|ω|):  ∇ψ(x) = Cᵀ(Cx / m),  ∇ψ*(y) = Cᵀ(m · Cy).

    C is the orthonormal two-dimensional DCT-II of every channel. The frequency of the coefficient (i, j) of an image
    of n × p pixels is |ω| = √((i/n)² + (j/p)²), in half cycles per pixel, so that one spectrum serves all sizes.
    log m is piecewise linear between learned values at 0 and at cutoff/2^(knots−1), …, cutoff/4, cutoff/2; it is 0 from
    the cut-off on, where another constant would only scale the step sizes. Only the low frequencies are transformed:

        ∇ψ*(y) = y + C_lowᵀ((m − 1) · C_low y).

    Args:
        cutoff: the frequency from which on m = 1.
        knots: how many values are learned.

    >>> import torch
    >>> mirror = Spectral(cutoff=0.5, knots=2)
    >>> _ = mirror.log_spectrum.data.fill_(1.0)
    >>> x = torch.ones(1, 3, 8, 8)  # a constant has no frequency but 0
    >>> bool(torch.allclose(mirror.to_primal(x), torch.e * x))
    True
    """

    proven = True
    linear = True

    def __init__(self, cutoff: float = 0.25, knots: int = 6) -> None:
        super().__init__()
        if not 0 < cutoff <= 1 or knots < 1:
            raise ValueError(f"Spectral needs 0 < cutoff ≤ 1 and knots ≥ 1, got cutoff={cutoff}, knots={knots}")
        self.cutoff, self.knots = float(cutoff), knots
        self.log_spectrum = nn.Parameter(torch.zeros(knots))

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = 1 / max m in ℓ₂."""
        return StrongConvexity(float((-self.log_spectrum.detach().max().clamp(min=0)).exp()), 2.0)

    def spectrum(self, height: int, width: int) -> Tensor:
        """Return m at the low frequencies of an image: (rows, columns)."""
        rows, columns = low_count(height, self.cutoff), low_count(width, self.cutoff)
        like = self.log_spectrum
        hats = _hats(height, width, self.cutoff, self.knots, like.dtype, like.device)
        return (hats @ like).exp().reshape(rows, columns)

    def _potential(self, x: Tensor) -> Tensor:
        low = self._low(x)
        excess = self.spectrum(*x.shape[-2:]).reciprocal() - 1
        return 0.5 * (sum_per_sample(x.square()) + sum_per_sample(excess * low.square()))

    def _to_dual(self, x: Tensor) -> Tensor:
        return self._filter(x, self.spectrum(*x.shape[-2:]).reciprocal())

    def _to_primal(self, y: Tensor) -> Tensor:
        return self._filter(y, self.spectrum(*y.shape[-2:]))

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        return self._potential(x - x0)

    def _filter(self, x: Tensor, factors: Tensor) -> Tensor:
        return add_low(x, (factors - 1) * self._low(x))

    def _low(self, x: Tensor) -> Tensor:
        return low_frequencies(x, self.cutoff)

    def extra_repr(self) -> str:
        """Show the cut-off."""
        return f"cutoff={self.cutoff:g}, knots={self.knots}"


class SpectralSpline(MirrorMap):
    """∇ψ(x) = x + C_lowᵀ(σ(C_low x) − C_low x) with an odd, increasing spline σ for every band of frequencies |ω|.

    C_low is the block of low frequencies of :class:`Spectral`; its bands end at cutoff/2^(bands−1), …, cutoff/2 and the
    corner of the block. Above, the map is the identity. Odd, because a wave turned upside down is the same wave. The inverse is
    exact, as that of :class:`Spline`. Flips and rotations commute with this map as well; translations do not, even far
    from the border, since they change the coefficients of a wave, and σ is not linear.

    Args:
        cutoff: of the block.
        bands: how many.
        knots: of every spline, on each side of 0.
        reach: the outermost knot. A coefficient of an image in [0, 1] may be as large as √(height · width).
        slope, floor: see :class:`Spline`.
    """

    proven = True

    def __init__(
        self,
        cutoff: float = 0.25,
        bands: int = 4,
        knots: int = 10,
        reach: float = 4.0,
        slope: float = 1.0,
        floor: float = 1e-3,
    ) -> None:
        super().__init__()
        if not 0 < cutoff <= 1 or bands < 1:
            raise ValueError(f"SpectralSpline needs 0 < cutoff ≤ 1 and bands ≥ 1, got {cutoff} and {bands}")
        self.cutoff, self.bands = float(cutoff), bands
        self.spline = _OddSpline(torch.arange(bands), knots, reach, slope, floor)

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = min(1, min σ') in ℓ₂."""
        return StrongConvexity(min(1.0, self.spline.strong_convexity.alpha), 2.0)

    def _potential(self, x: Tensor) -> Tensor:
        low = low_frequencies(x, self.cutoff)
        high = 0.5 * (sum_per_sample(x.square()) - sum_per_sample(low.square()))
        return high + self.spline._potential(_take_bands(low, self._positions(x)))

    def _to_dual(self, x: Tensor) -> Tensor:
        return self._change(x, self.spline._to_dual)

    def _to_primal(self, y: Tensor) -> Tensor:
        return self._change(y, self.spline._to_primal)

    def _change(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        low, positions = low_frequencies(x, self.cutoff), self._positions(x)
        changed = function(_take_bands(low, positions))
        back = torch.zeros_like(F.pad(low.flatten(-2), (0, 1)))
        back = back.index_copy(-1, positions.flatten(), changed.flatten(-2))[..., :-1].reshape(low.shape)
        return add_low(x, back - low)

    def config(self) -> Config:
        """Return the bands, and what their splines are made with."""
        rule = self.spline.config()
        return {"cutoff": self.cutoff, "bands": self.bands, **{name: rule[name] for name in rule if name != "groups"}}

    def _positions(self, x: Tensor) -> Tensor:
        return _by_band(*x.shape[-2:], self.cutoff, self.bands, x.device)

    def extra_repr(self) -> str:
        """Show the bands."""
        return f"cutoff={self.cutoff:g}, bands={self.bands}"


class _OddSpline(Spline):
    """Splines with σ(−x) = −σ(x): K slopes each, the same on both sides of 0."""

    def __init__(self, groups: Tensor, knots: int, reach: float, slope: float, floor: float) -> None:
        super().__init__(groups, knots, reach, slope, floor)
        self.raw_slopes = nn.Parameter(self.raw_slopes.detach()[:, :knots].clone())

    @property
    def slopes(self) -> Tensor:
        right = super().slopes
        return torch.cat([right.flip(1), right], 1)


def _take_bands(low: Tensor, positions: Tensor) -> Tensor:
    """Arrange coefficients by bands, filled up with zeros: (…, longest, bands)."""
    return F.pad(low.flatten(-2), (0, 1))[..., positions]


@lru_cache(maxsize=64)
def _by_band(height: int, width: int, cutoff: float, bands: int, device: torch.device) -> Tensor:
    """Positions of the coefficients of every band in the flattened block, filled up with one beyond it."""
    lengths = low_lengths(height, width, cutoff).flatten()
    band = torch.bucketize(lengths, _octaves(cutoff, bands), right=True).sub(1).clamp(max=bands - 1)
    members = [(band == b).nonzero().flatten() for b in range(bands)]
    return pad_sequence(members, padding_value=len(lengths)).to(device)


def _octaves(cutoff: float, count: int) -> Tensor:
    """0, cutoff/2^(count−1), …, cutoff/2, cutoff."""
    return torch.tensor([0.0, *(cutoff * 2.0 ** (k - count + 1) for k in range(count))], dtype=torch.float64)


@lru_cache(maxsize=64)
def _hats(height: int, width: int, cutoff: float, knots: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Weights of the learned values in log m at every low frequency: (rows · columns, knots)."""
    frequency, ends = low_lengths(height, width, cutoff).flatten(), _octaves(cutoff, knots)
    interval = torch.bucketize(frequency, ends, right=True).sub(1).clamp(max=knots - 1)
    share = ((frequency - ends[interval]) / (ends[interval + 1] - ends[interval])).clamp(max=1)
    hats = torch.zeros(len(frequency), knots + 1, dtype=torch.float64)
    hats.scatter_(1, interval[:, None], 1 - share[:, None])
    hats.scatter_add_(1, interval[:, None] + 1, share[:, None])
    return hats[:, :-1].to(device, dtype)  # the value at the cut-off is 0
