"""Maps of images that are diagonal in frequency: equivariant by construction, with exact inverses.

The orthonormal cosine transform (DCT-II) C diagonalises operators that commute with the symmetries
of an image continued by reflection: flips, and translations away from the border. If σ treats all
frequencies of one length alike, the map Cᵀ σ C also commutes with rotations by 90°. If σ is the
same for every channel, the map commutes with permutations of the channels. In double precision,
the defects under flips, rotations and permutations are at the level of rounding.
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

    C is the orthonormal two-dimensional DCT-II of every channel. The coefficient (i, j) of an image
    of n × p pixels has the frequency |ω| = √((i/n)² + (j/p)²), in half cycles per pixel, so one
    spectrum applies to images of all sizes.

    log m is piecewise linear between learned values at 0 and at cutoff/2^(knots−1), …, cutoff/4,
    cutoff/2. It is 0 from the cut-off on, because another constant would only scale the step sizes.
    Only low frequencies are transformed:

        ∇ψ*(y) = y + C_lowᵀ((m − 1) · C_low y).

    Args:
        cutoff: Frequency from which on m = 1.
        knots: Number of learned values.

    >>> import torch
    >>> mirror = Spectral(cutoff=0.5, knots=2)
    >>> _ = mirror.log_spectrum.data.fill_(1.0)
    >>> x = torch.ones(1, 3, 8, 8)  # a constant has frequency 0 only
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
        correction = self.spectrum(*x.shape[-2:]).reciprocal() - 1
        low = low_frequencies(x, self.cutoff)
        return 0.5 * (sum_per_sample(x.square()) + sum_per_sample(correction * low.square()))

    def _to_dual(self, x: Tensor) -> Tensor:
        return self._filter(x, self.spectrum(*x.shape[-2:]).reciprocal())

    def _to_primal(self, y: Tensor) -> Tensor:
        return self._filter(y, self.spectrum(*y.shape[-2:]))

    def _filter(self, x: Tensor, factors: Tensor) -> Tensor:
        return add_low(x, (factors - 1) * low_frequencies(x, self.cutoff))


class SpectralSpline(MirrorMap):
    """∇ψ(x) = x + C_lowᵀ(σ(C_low x) − C_low x), with a learned spline σ per frequency band.

    C_low is the block of low frequencies of :class:`Spectral`. The bands of |ω| end at
    cutoff/2^(bands−1), …, cutoff/2 and the corner of the block. For higher frequencies the map is
    the identity. σ is increasing, and odd because flips change the signs of coefficients. The
    inverse is exact, like that of :class:`Spline`. The map commutes with flips and rotations, but
    not with translations, which change the coefficients of a wave: σ is not linear.

    Args:
        cutoff: Largest frequency of the block.
        bands: Number of bands.
        knots: Number of knots of every spline, on each side of 0.
        reach: Outermost knot. A coefficient of an image in [0, 1] can be as large as
            √(height · width).
        slope, floor: See :class:`Spline`.
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
        padded = torch.zeros_like(F.pad(low.flatten(-2), (0, 1)))
        padded = padded.index_copy(-1, positions.flatten(), function(arranged).flatten(-2))
        mapped = padded[..., :-1].reshape(low.shape)
        return add_low(x, mapped - low)

    def _by_band(self, x: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coefficients by band, padded with zeros, and their positions in the block.

        The coefficients are (…, longest band, bands).
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
@torch.inference_mode(False)  # the cached tensor may be needed for a derivative later
def _positions(height: int, width: int, cutoff: float, bands: int, device: torch.device) -> Tensor:
    """Return the indices of the coefficients of every band in the flattened block.

    Short bands are padded with the index behind the block.
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
    """Return the weights of the learned values in log m: (rows · columns, knots).

    They are the hat functions of the knots at every low frequency.
    """
    ends = _octaves(cutoff, knots)
    lengths = low_lengths(height, width, cutoff).reshape(-1, 1)
    covered = ((lengths - ends[:-1]) / ends.diff()).clamp(0, 1)
    # A hat rises over the interval before its knot and falls over the one after it. The value at
    # the cut-off is 0.
    return (F.pad(covered, (1, 0), value=1.0)[:, :-1] - covered).to(device, dtype)
