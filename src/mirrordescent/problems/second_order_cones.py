"""Second-order cones in the last rows of a vector of constraints."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mirrordescent._internal.rounding import unit


class Cones:
    """The set of w with low ≤ w ≤ high in the first rows, and w − low ∈ K in the last ones.

    K is a product of cones {(t, s): ‖s‖ ≤ t}. Its polar cone is −K.

    Args:
        rows: Number of rows of w.
        sizes: Numbers of rows of the cones, which come last.

    >>> cones = Cones(3, [3])
    >>> zero = torch.zeros(1, 3)
    >>> cones.project(torch.tensor([[0.0, 3.0, 4.0]]), zero, zero)  # ‖s‖ = 5 and t = 0
    tensor([[2.5000, 1.5000, 2.0000]])
    """

    def __init__(self, rows: int, sizes: Sequence[int] = ()) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        if any(size < 1 for size in self.sizes) or sum(self.sizes) > rows:
            raise ValueError(
                f"cones must be sizes ≥ 1 that sum to at most the {rows} rows of A, got {sizes}"
            )
        self.rows = rows
        self.first = rows - sum(self.sizes)
        counts = torch.tensor(self.sizes, dtype=torch.long)
        self.cone_of_row = torch.repeat_interleave(torch.arange(len(counts)), counts)
        self.heads = counts.cumsum(0) - counts
        self.is_tail = torch.ones(len(self.cone_of_row), dtype=torch.bool)
        self.is_tail[self.heads] = False

    def __bool__(self) -> bool:
        return bool(self.sizes)

    @property
    def groups(self) -> Tensor:
        """For every row the number of its scalar row or cone, (rows,)."""
        return torch.cat([torch.arange(self.first), self.first + self.cone_of_row])

    def kept_rows(self, scalar: Tensor) -> Cones:
        """Return the cones after the scalar rows that are not marked were removed.

        Args:
            scalar: Which of the first rows are left, (first,) bool.
        """
        return Cones(int(scalar.sum()) + sum(self.sizes), self.sizes)

    def project(self, w: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Return the points of the set that are closest to w."""
        if not self:
            return torch.clamp(w, low, high)
        k = self.first
        scalars = torch.clamp(w[..., :k], low[..., :k], high[..., :k])
        shift = low[..., k:]
        return torch.cat([scalars, shift + self._nearest(w[..., k:] - shift)], -1)

    def polar(self, y: Tensor, largest: Tensor | None = None) -> Tensor:
        """Project the last rows onto −K, or onto its points with −t ≤ ``largest``.

        Args:
            y: Multipliers, (batch, rows).
            largest: Largest −t, (batch or 1, 1).
        """
        if not self:
            return y
        opposite = -y[..., self.first :]
        nearest = self._nearest(opposite)
        if largest is not None:
            # If t is too large, it is cut off, and s is projected onto the ball of this radius.
            _, length = self._split(opposite)
            size = largest.to(length).expand_as(length)
            shrunk = (size / length.clamp(min=_tiny(length))).clamp(max=1)
            cut = self._joined(size, self.spread(shrunk) * opposite)
            too_long = self.spread((nearest[..., self.heads] > size).to(y.dtype)) > 0
            nearest = torch.where(too_long, cut, nearest)
        return torch.cat([y[..., : self.first], -nearest], -1)

    def certainly_polar(self, y: Tensor) -> Tensor:
        """Shorten s until the last rows are in −K in spite of rounding errors."""
        if not self:
            return y
        ends = y[..., self.first :]
        t, length = self._split(-ends)
        longest = length * (1 + unit(2 * self.rows + 16, y.dtype))
        share = (t.clamp(min=0) / longest.clamp(min=_tiny(y))).clamp(max=1)
        share = torch.where(share < 1, share * (1 - unit(16, y.dtype)), share)
        # Denormal numbers have no relative precision.
        share = torch.where(longest < 1e3 * _tiny(y), 0.0, share)
        shortened = self._joined(-t.clamp(min=0), self.spread(share) * ends)
        return torch.cat([y[..., : self.first], shortened], -1)

    def violations(self, w: Tensor) -> Tensor:
        """Return max(‖s‖ − t, 0) in the first row of every cone, and 0 elsewhere, (batch, rows).

        Args:
            w: Points relative to ``low``, (batch, rows).
        """
        t, length = self._split(w[..., self.first :])
        over = self._joined((length - t).clamp(min=0), torch.zeros_like(w[..., self.first :]))
        return torch.cat([torch.zeros_like(w[..., : self.first]), over], -1)

    def slopes(self, w: Tensor, share: Tensor) -> Tensor:
        """Return the gradient of ‖s‖ − t times a share for every cone, (batch, cone rows).

        Args:
            w: Points relative to ``low``, (batch, rows).
            share: Factors, (batch, cones).
        """
        ends = w[..., self.first :]
        _, length = self._split(ends)
        inverse = torch.where(length > 0, share / length.clamp(min=_tiny(w)), 0.0)
        return self._joined(-share, self.spread(inverse) * ends)

    def excess(self, w: Tensor) -> Tensor:
        """Return ‖s‖ − t of every cone, (batch, cones)."""
        t, length = self._split(w[..., self.first :])
        return length - t

    def contains(self, w: Tensor, error: Tensor) -> Tensor:
        """Return whether ‖s‖ ≤ t in all cones for all points within an error of w, (batch,).

        Args:
            w: Points relative to ``low``, (batch, rows).
            error: Largest errors of the entries, (batch, rows).
        """
        t, length = self._split(w[..., self.first :])
        errors = error[..., self.first :]
        longest = (length + self._sums(errors)) * (1 + unit(2 * self.rows + 16, w.dtype))
        return (longest <= t - errors[..., self.heads]).all(-1)

    def largest_of_cones(self, sizes: Tensor) -> Tensor:
        """Replace the numbers of the rows of every cone by the largest one, (…, rows)."""
        if not self:
            return sizes
        ends = sizes[..., self.first :]
        index = self.cone_of_row.to(sizes.device).expand_as(ends)
        largest = ends.new_zeros(*ends.shape[:-1], len(self.sizes))
        largest = largest.scatter_reduce(-1, index, ends, "amax")
        return torch.cat([sizes[..., : self.first], self.spread(largest)], -1)

    def penalties_of_rows(self, penalties: Tensor) -> Tensor:
        """Return one penalty for every row, from one for every scalar row and cone."""
        return penalties[..., self.groups] if self else penalties

    def _nearest(self, w: Tensor) -> Tensor:
        """Project onto K: (t + ‖s‖)/2 · (1, s/‖s‖) if ‖s‖ > |t|, and 0 if ‖s‖ ≤ −t."""
        t, length = self._split(w)
        middle = ((t + length) / 2).clamp(min=0)
        inside = length <= t
        ratio = torch.where(inside, 1.0, middle / length.clamp(min=_tiny(w)))
        return self._joined(torch.where(inside, t, middle), self.spread(ratio) * w)

    def _split(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return t and ‖s‖ of every cone, (batch, cones) each, without overflow or underflow."""
        tails = torch.where(self.is_tail.to(w.device), w, 0.0)
        index = self.cone_of_row.to(w.device).expand_as(w)
        scale = w.new_zeros(*w.shape[:-1], len(self.sizes))
        scale = scale.scatter_reduce(-1, index, tails.detach().abs(), "amax")
        scale = torch.where(scale > 0, scale, 1.0)
        squares = self._sums((tails / self.spread(scale)).square())
        length = scale * squares.clamp(min=_tiny(w)).sqrt()
        return w[..., self.heads], torch.where(squares > 0, length, 0.0)

    def _sums(self, w: Tensor) -> Tensor:
        """Return the sums over the rows of every cone."""
        zeros = w.new_zeros(*w.shape[:-1], len(self.sizes))
        return zeros.index_add(-1, self.cone_of_row.to(w.device), w)

    def spread(self, of_cones: Tensor) -> Tensor:
        """Repeat a number of every cone in all of its rows."""
        return of_cones[..., self.cone_of_row]

    def _joined(self, heads: Tensor, tails: Tensor) -> Tensor:
        """Return ``tails`` with other first rows of the cones."""
        return torch.where(self.is_tail.to(tails.device), tails, self.spread(heads))


def _tiny(like: Tensor) -> float:
    return float(torch.finfo(like.dtype).tiny)
