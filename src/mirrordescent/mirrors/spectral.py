"""Maps for images that are diagonal in the frequencies: equivariant by construction, with exact
inverses.

A map of a network's parameters that is tied along the orbits of a symmetry is equivariant whatever
it learns; here is the same for images. The orthonormal cosine transform (DCT-II) C diagonalises
what commutes with the symmetries of a picture continued by reflection: flips, and translations away
from the border. A map Cᵀ σ C whose σ treats all frequencies of one length alike also commutes with
rotations by 90°, and with the same σ for every channel it commutes with permutations of the
colours. Measured in double precision, the defects under flips, rotations and permutations are at
the level of rounding.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from mirrordescent._internal.dct import add_low, low_count, low_frequencies, low_lengths
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.mirrors.spline import Spline
from mirrordescent.trees import sum_per_sample


class Spectral(MirrorMap):
    """ψ(x) = ½ Σ_ω |Cx|²_ω / m(|ω|):  ∇ψ(x) = Cᵀ(Cx / m),  ∇ψ*(y) = Cᵀ(m · Cy).

    C is the orthonormal two-dimensional DCT-II of every channel. The frequency of the coefficient
    (i, j) of an image of n × p pixels is |ω| = √((i/n)² + (j/p)²), in half cycles per pixel, so
    that one spectrum serves all sizes. log m is piecewise linear between learned values at 0 and at
    cutoff/2^(knots−1), …, cutoff/4, cutoff/2, and 0 from the cut-off on, since another constant
    there would only scale the step sizes. Only low frequencies are transformed:

        ∇ψ*(y) = y + C_lowᵀ((m − 1) · C_low y).

    Args:
        cutoff: the frequency from which on m = 1.
        knots: the number of learned values.

    >>> import torch
    >>> mirror = Spectral(cutoff=0.5, knots=2)
    >>> _ = mirror.log_spectrum.data.fill_(1.0)
    >>> x = torch.ones(1, 3, 8, 8)  # a constant has no frequency but 0
    >>> bool(torch.allclose(mirror.to_primal(x), torch.e * x))
    True
    """

    proven = linear = True

    def __init__(self, cutoff: float = 0.25, knots: int = 6) -> None:
        super().__init__()
        if not 0 < cutoff <= 1 or knots < 1:
            raise ValueError(
                f"Spectral needs 0 < cutoff ≤ 1 and knots ≥ 1, got cutoff={cutoff}, knots={knots}"
            )
        self.cutoff = float(cutoff)
        self.knots = knots
        self.log_spectrum = nn.Parameter(torch.zeros(knots))

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = 1 / max m in ℓ₂."""
        return StrongConvexity(float((-self.log_spectrum.detach().max().clamp(min=0)).exp()), 2.0)

    def spectrum(self, height: int, width: int) -> Tensor:
        """Return m at the low frequencies of an image: (rows, columns)."""
        rows = low_count(height, self.cutoff)
        columns = low_count(width, self.cutoff)
        like = self.log_spectrum
        hats = _hats(height, width, self.cutoff, self.knots, like.dtype, like.device)
        return (hats @ like).exp().reshape(rows, columns)

    def _potential(self, x: Tensor) -> Tensor:
        excess = self.spectrum(*x.shape[-2:]).reciprocal() - 1
        low = low_frequencies(x, self.cutoff)
        return 0.5 * (sum_per_sample(x.square()) + sum_per_sample(excess * low.square()))

    def _to_dual(self, x: Tensor) -> Tensor:
        return self._filter(x, self.spectrum(*x.shape[-2:]).reciprocal())

    def _to_primal(self, y: Tensor) -> Tensor:
        return self._filter(y, self.spectrum(*y.shape[-2:]))

    def _filter(self, x: Tensor, factors: Tensor) -> Tensor:
        return add_low(x, (factors - 1) * low_frequencies(x, self.cutoff))


class SpectralSpline(MirrorMap):
    """∇ψ(x) = x + C_lowᵀ(σ(C_low x) − C_low x) with an odd, increasing spline σ for every band of
    frequencies |ω|.

    C_low is the block of low frequencies of :class:`Spectral`; its bands end at cutoff/2^(bands−1),
    …, cutoff/2 and the corner of the block. Above them the map is the identity. σ is odd, because
    flips change the signs of coefficients. The inverse is exact, like that of :class:`Spline`. This
    map also commutes with flips and rotations, but not with translations, even far from the border:
    they change the coefficients of a wave, and σ is not linear.

    Args:
        cutoff: that of the block.
        bands: the number of bands.
        knots: those of every spline, on each side of 0.
        reach: the outermost knot. A coefficient of an image in [0, 1] can be as large as √(height ·
            width). slope, floor: see :class:`Spline`.
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
            raise ValueError(
                f"SpectralSpline needs 0 < cutoff ≤ 1 and bands ≥ 1, got {cutoff} and {bands}"
            )
        self.spline = _OddSpline(torch.arange(bands), knots, reach, slope, floor)
        self.cutoff = float(cutoff)
        self.bands = bands
        self.knots = knots
        self.reach = float(reach)
        self.slope = float(slope)
        self.floor = float(floor)

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = min(1, min σ') in ℓ₂."""
        return StrongConvexity(min(1.0, self.spline.strong_convexity.alpha), 2.0)

    def _potential(self, x: Tensor) -> Tensor:
        low = low_frequencies(x, self.cutoff)
        high = 0.5 * (sum_per_sample(x.square()) - sum_per_sample(low.square()))
        return high + self.spline._potential(self._by_band(x, low)[0])

    def _to_dual(self, x: Tensor) -> Tensor:
        return self._change(x, self.spline._to_dual)

    def _to_primal(self, y: Tensor) -> Tensor:
        return self._change(y, self.spline._to_primal)

    def _change(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        low = low_frequencies(x, self.cutoff)
        arranged, positions = self._by_band(x, low)
        back = torch.zeros_like(F.pad(low.flatten(-2), (0, 1)))
        back = back.index_copy(-1, positions.flatten(), function(arranged).flatten(-2))[
            ..., :-1
        ].reshape(low.shape)
        return add_low(x, back - low)

    def _by_band(self, x: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
        """Arrange coefficients by band, filled up with zeros: (…, longest, bands); return also
        where they were.
        """
        positions = _positions(*x.shape[-2:], self.cutoff, self.bands, x.device)
        return F.pad(low.flatten(-2), (0, 1))[..., positions], positions


class _OddSpline(Spline):
    """Splines with σ(−x) = −σ(x): K slopes each, the same on both sides of 0."""

    def __init__(
        self, groups: Tensor, knots: int, reach: float, slope: float, floor: float
    ) -> None:
        super().__init__(groups, knots, reach, slope, floor)
        self.raw_slopes = nn.Parameter(self.raw_slopes.detach()[:, :knots].clone())

    @property
    def slopes(self) -> Tensor:
        right = super().slopes
        return torch.cat([right.flip(1), right], 1)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # it is kept, and may be needed for a derivative later
def _positions(height: int, width: int, cutoff: float, bands: int, device: torch.device) -> Tensor:
    """Find the coefficients of every band in the flattened block; short bands are filled up with
    one beyond it.
    """
    lengths = low_lengths(height, width, cutoff).flatten()
    band = torch.bucketize(lengths, _octaves(cutoff, bands), right=True).sub(1).clamp(max=bands - 1)
    members = [(band == b).nonzero().flatten() for b in range(bands)]
    return pad_sequence(members, padding_value=len(lengths)).to(device)


def _octaves(cutoff: float, count: int) -> Tensor:
    """0, cutoff/2^(count−1), …, cutoff/2, cutoff."""
    return torch.tensor(
        [0.0, *(cutoff * 2.0 ** (k - count + 1) for k in range(count))], dtype=torch.float64
    )


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _hats(
    height: int, width: int, cutoff: float, knots: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Weights of the learned values in log m at every low frequency: (rows · columns, knots)."""
    ends = _octaves(cutoff, knots)
    covered = ((low_lengths(height, width, cutoff).reshape(-1, 1) - ends[:-1]) / ends.diff()).clamp(
        0, 1
    )
    # A hat rises over the interval before its knot and falls over the one behind; the value at the
    # cut-off is 0.
    return (F.pad(covered, (1, 0), value=1.0)[:, :-1] - covered).to(device, dtype)
