"""Monotone splines: learned maps of one real variable, applied entry by entry."""

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent.mirrors.base import StrongConvexity
from mirrordescent.mirrors.tied import Tied
from mirrordescent.trees import sum_per_sample


class Spline(Tied):
    """∇ψ(x)ᵢ = σ_g(i)(xᵢ), with an increasing, piecewise linear σ per group of entries, σ(0) = 0.

    .. code-block:: none

        knots       t_j = j·reach/K,  j = −K, …, K
        between     σ(x)   = b_j + s_j x                  on [t_j, t_j+1], and beyond the last knots
        inverse     σ⁻¹(y) = (y − b_j)/s_j                on [σ(t_j), σ(t_j+1)], and beyond
        potential   ∫₀^x σ = a_j + b_j x + ½ s_j x²

    The learned parameters are the 2K slopes s_j = floor + softplus(·) > 0 of each group. Continuity
    and σ(0) = 0 determine b and a. The inverse is exact, and ψ is (min s)-strongly convex. The
    initial map is σ(x) = slope·x.

    Args:
        groups: Groups of tied entries; see :class:`~mirrordescent.mirrors.tied.Tied`.
        knots: Number K of knots on each side of 0.
        reach: Outermost knot.
        slope: Initial slope of σ.
        floor: Lower bound on all slopes.

    >>> import torch
    >>> mirror = Spline(torch.tensor(0), slope=2.0)
    >>> mirror.to_dual(torch.tensor([[-3.0, 0.1, 0.5]])).detach()
    tensor([[-6.0000,  0.2000,  1.0000]])
    """

    proven = True

    def __init__(
        self,
        groups: Tensor,
        knots: int = 20,
        reach: float = 1.0,
        slope: float = 1.0,
        floor: float = 1e-3,
    ) -> None:
        super().__init__(groups)
        if knots < 1 or not 0 < reach < math.inf:
            raise ValueError(
                f"Spline needs knots ≥ 1 and a finite reach > 0, got knots={knots}, reach={reach}"
            )
        if not 0 < floor < slope < math.inf:
            raise ValueError(
                f"Spline needs 0 < floor < slope < ∞, got floor={floor}, slope={slope}"
            )
        self.knots = knots
        self.reach = float(reach)
        self.slope = float(slope)
        self.floor = float(floor)
        above = slope - floor
        raw = above + math.log(-math.expm1(-above))  # the inverse of softplus
        self.raw_slopes = nn.Parameter(
            torch.full((self.count, 2 * knots), raw, device=self.groups.device)
        )

    @property
    def slopes(self) -> Tensor:
        """s: (count, 2K), from the leftmost interval to the rightmost."""
        return self.floor + F.softplus(self.raw_slopes)

    @property
    def values(self) -> Tensor:
        """σ(t_j): (count, 2K+1)."""
        return self._pieces()[2]

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = min s in ℓ₂."""
        return StrongConvexity(float(self.slopes.detach().min()), 2.0)

    def regrouped(self, groups: Tensor) -> Self:
        """Return the map for other groups; if their number changes, all get the mean σ."""
        other = type(self)(groups, self.knots, self.reach, 1 + self.floor, self.floor)
        above = self._for_groups_of(other, self.slopes) - self.floor
        other.raw_slopes = nn.Parameter(above + (-(-above).expm1()).log())
        return other

    @property
    def smoothness(self) -> float:
        return float(self.slopes.detach().max())

    @torch.no_grad()
    def linear_pieces(self) -> Tensor | None:
        """Return the linear pieces of σ⁻¹ and σ if all entries share one σ, else None.

        In one row of 12K − 2 numbers: interval ends, intercepts and slopes of σ⁻¹, then those
        of σ.
        """
        if self.count > 1:
            return None
        slopes, intercepts, values = self._pieces()
        inverse = (values[:, 1:-1], -intercepts / slopes, slopes.reciprocal())
        return torch.cat([*inverse, self._knots()[None, 1:-1], intercepts, slopes], 1).flatten()

    def _pieces(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the slopes s and intercepts b, (count, 2K), and the values σ(t), (count, 2K+1)."""
        slopes = self.slopes
        values = self._sum_from_zero(slopes * (self.reach / self.knots))
        # b is exactly 0 on both sides of 0, which keeps all digits of small x.
        intercepts = self._inner_ends(values) - slopes * self._inner_ends(self._knots())
        return slopes, intercepts, values

    def _sum_from_zero(self, increments: Tensor) -> Tensor:
        """Sum increments of the intervals, (count, 2K), from 0 outwards: (count, 2K+1) at knots."""
        left, right = increments.chunk(2, 1)
        below = -left.flip(1).cumsum(1).flip(1)
        return torch.cat([below, torch.zeros_like(left[:, :1]), right.cumsum(1)], 1)

    def _inner_ends(self, at_knots: Tensor) -> Tensor:
        """Return the values at the end of every interval nearer to 0: (…, 2K+1) to (…, 2K)."""
        return torch.cat([at_knots[..., 1 : self.knots + 1], at_knots[..., self.knots : -1]], -1)

    def _knots(self) -> Tensor:
        j = torch.arange(
            -self.knots, self.knots + 1, dtype=self.raw_slopes.dtype, device=self.raw_slopes.device
        )
        return j * (self.reach / self.knots)

    def _interval(self, x: Tensor) -> Tensor:
        """Return the interval of x, as an index into flattened tables (count, 2K)."""
        k = self.knots
        j = (x.detach() * (k / self.reach)).floor().clamp(-k, k - 1).int()
        # Clamp again, because NaN becomes an arbitrary integer.
        return 2 * k * self.groups.int() + k + j.clamp(-k, k - 1)

    def _interval_of_value(self, y: Tensor, values: Tensor) -> Tensor:
        """Return the interval whose values contain y, as an index into flattened tables.

        The search is a bisection in all groups at once. 32-bit integers, and a table padded to a
        power of 2, reduce each round to four cheap passes over y.
        """
        intervals = 2 * self.knots
        rounds = (2 * self.knots - 1).bit_length()
        padding = (1 << rounds) - intervals
        ends = F.pad(values.detach()[:, 1:-1], (1, padding), value=math.inf).flatten()
        groups = self.groups.int()
        entries = y.detach().flatten()
        at = ((groups << rounds).expand(y.shape)).flatten()
        for ahead in (1 << bit for bit in reversed(range(rounds))):
            at = torch.add(at, entries >= ends.index_select(0, at + ahead), alpha=ahead)
        return at.reshape(y.shape) - padding * groups

    def _potential(self, x: Tensor) -> Tensor:
        self._check(x)
        slopes, intercepts, values = self._pieces()
        at = self._interval(x)
        t = self._inner_ends(self._knots())
        # The area under σ up to a knot is a sum of trapezia, which determines a.
        trapezia = (values[:, :-1] + values[:, 1:]) * (0.5 * self.reach / self.knots)
        areas = self._sum_from_zero(trapezia)
        constants = self._inner_ends(areas) - t * (intercepts + 0.5 * slopes * t)
        a = _take(constants, at)
        b = _take(intercepts, at)
        s = _take(slopes, at)
        return sum_per_sample(a + x * (b + 0.5 * s * x))

    def _to_dual(self, x: Tensor) -> Tensor:
        self._check(x)
        slopes, intercepts, _ = self._pieces()
        return _evaluate(intercepts, slopes, self._interval(x), x)

    def _to_primal(self, y: Tensor) -> Tensor:
        self._check(y)
        slopes, intercepts, values = self._pieces()
        at = self._interval_of_value(y, values)
        return _evaluate(-intercepts / slopes, slopes.reciprocal(), at, y)


def _evaluate(intercepts: Tensor, slopes: Tensor, at: Tensor, x: Tensor) -> Tensor:
    """Evaluate the linear piece with index ``at`` of each entry."""
    return torch.addcmul(_take(intercepts, at), _take(slopes, at), x)


def _take(table: Tensor, at: Tensor) -> Tensor:
    """Return the entries of a flattened table at some indices."""
    return table.flatten().index_select(0, at.flatten()).reshape(at.shape)
