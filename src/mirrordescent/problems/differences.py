"""Differences of neighbouring pixels: D, its adjoint, and norms of the groups that a total
variation takes together.
"""

from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.trees import per_sample, sum_per_sample

Differences: TypeAlias = dict[str, Tensor]

DIRECTIONS = {"vertical": -2, "horizontal": -1}


def differences(x: Tensor) -> Differences:
    """Dx: forward differences down the columns and along the rows, none across the border."""
    return {name: _difference(dimension, x) for name, dimension in DIRECTIONS.items()}


def add_adjoint(out: Tensor, u: Differences, factor: float | Tensor = 1.0) -> Tensor:
    """Add factor·Dᵀu to a fresh tensor in place, and return it; there may be a factor for every
    sample.
    """
    for name, dimension in DIRECTIONS.items():
        _add_adjoint_along(dimension, out, u[name], factor)
    return out


def times(factor: float | Tensor, u: Differences) -> Differences:
    """factor·u; there may be a factor for every sample."""
    return {name: _fit(factor, u[name]) * u[name] for name in DIRECTIONS}


def _difference(dimension: int, x: Tensor) -> Tensor:
    last = x.shape[dimension] - 1
    return x.narrow(dimension, 1, last) - x.narrow(dimension, 0, last)


def _add_adjoint_along(dimension: int, out: Tensor, u: Tensor, factor: float | Tensor) -> None:
    if isinstance(factor, Tensor):
        u = u * per_sample(factor, u)
        factor = 1.0
    last = out.shape[dimension] - 1
    out.narrow(dimension, 1, last).add_(u, alpha=factor)
    out.narrow(dimension, 0, last).sub_(u, alpha=factor)


class Groups(NamedTuple):
    """Groups g of differences d, of which a total variation adds up the Euclidean norms |d_g|.

    A group is one difference; or both differences of a pixel, if ``isotropic``, at the last row or
    column the one that is there; and either of them in all channels, if ``coupled``. Widths, radii
    and heights below are numbers, or one for every sample.
    """

    isotropic: bool = False
    coupled: bool = False

    @property
    def single(self) -> bool:
        """Whether every difference is a group of its own."""
        return not (self.isotropic or self.coupled)

    def norms(self, d: Differences) -> list[Tensor]:
        """|d_g|: one tensor for each direction, or one for both."""
        if self.single:
            return [d[name].abs() for name in DIRECTIONS]
        squares = [d[name].square() for name in DIRECTIONS]
        if self.coupled:
            squares = [square.sum(1, keepdim=True) for square in squares]
        if self.isotropic:
            squares = [F.pad(squares[0], (0, 0, 0, 1)) + F.pad(squares[1], (0, 1))]
        return [_root(square) for square in squares]

    def largest(self, d: Differences) -> Tensor:
        """max |d_g| per sample: (batch,)."""
        norms = torch.cat([norm.flatten(1) for norm in self.norms(d)], 1)
        return F.pad(norms, (1, 0)).amax(1)  # a single pixel has no differences

    def total(self, d: Differences, width: float = 0.0) -> Tensor:
        """Σ h(|d_g|) per sample, with the Huber function h(r) = r²/(2·width) for r ≤ width, else r
        − width/2.
        """

        def huber(norm: Tensor) -> Tensor:
            near = norm.clamp(max=width)
            return near * (norm - near / 2) / width

        return torch.stack(
            [sum_per_sample(huber(norm) if width else norm) for norm in self.norms(d)]
        ).sum(0)

    def slopes(self, d: Differences, width: float | Tensor = 0.0) -> Differences:
        """d_g/max(|d_g|, width), the derivatives of h(|d_g|); 0 at 0."""
        if self.single:
            return {name: _slope(d[name], width) for name in DIRECTIONS}
        return self._over(d, [_at_least(norm, width) for norm in self.norms(d)])

    def add_gradient(
        self, out: Tensor, x: Tensor, height: float | Tensor, width: float | Tensor
    ) -> Tensor:
        """Add the gradient of height·Σ h(|d_g|), d = Dx, to a fresh tensor in place, and
        return it.
        """
        if not self.single:
            return add_adjoint(out, self.slopes(differences(x), width), height)
        for dimension in (
            DIRECTIONS.values()
        ):  # one after the other, while what was just computed is still in the cache
            d = _difference(dimension, x)
            if torch.is_grad_enabled() or _is_zero(width):
                _add_adjoint_along(dimension, out, _slope(d, width), height)
            else:  # the same in two passes fewer
                bound = width.item() if isinstance(width, Tensor) and width.numel() == 1 else width
                _add_adjoint_along(dimension, out, _clip(d, bound, out=d), height / bound)
        return out

    def project(self, u: Differences, radius: float | Tensor) -> Differences:
        """Return the nearest differences with |u_g| ≤ radius."""
        if self.single:
            return {name: _clip(u[name], radius) for name in DIRECTIONS}
        return self._over(
            u, [_at_least(norm, radius) / _fit(radius, norm) for norm in self.norms(u)]
        )

    def _over(self, d: Differences, divisors: list[Tensor]) -> Differences:
        """Divide every group by its number."""
        if not self.isotropic:
            return {
                name: d[name] / divisor for name, divisor in zip(DIRECTIONS, divisors, strict=True)
            }
        shared = divisors[0]
        return {
            name: d[name] / shared.narrow(k, 0, shared.shape[k] - 1)
            for name, k in DIRECTIONS.items()
        }


def _root(squares: Tensor) -> Tensor:
    """√, with the derivative 0 at 0."""
    if not torch.is_grad_enabled():
        return squares.sqrt()
    return torch.where(squares > 0, squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt(), 0.0)


def _slope(d: Tensor, width: float | Tensor) -> Tensor:
    return d.sign() if _is_zero(width) else (d / _fit(width, d)).clamp(-1, 1)


def _at_least(norm: Tensor, width: float | Tensor) -> Tensor:
    """max(norm, width), with ∞ for 0, by which 0 can be divided."""
    return (
        norm.masked_fill(norm == 0, torch.inf)
        if _is_zero(width)
        else norm.clamp(min=_fit(width, norm))
    )


def _clip(u: Tensor, bound: float | Tensor, out: Tensor | None = None) -> Tensor:
    most = cast(Tensor, _fit(bound, u))  # or a number
    return torch.clamp(u, -most, most, out=out)


def _fit(number: float | Tensor, like: Tensor) -> float | Tensor:
    return per_sample(number, like) if isinstance(number, Tensor) and number.ndim else number


def _is_zero(width: float | Tensor) -> bool:
    return not isinstance(width, Tensor) and width == 0
