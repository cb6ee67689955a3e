"""Differences of neighbouring pixels: D, its adjoint, and the group norms of total variation."""

from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.trees import per_sample, sum_per_sample

Differences: TypeAlias = dict[str, Tensor]
"""Dx, or a dual point of the same shape, by direction."""

DIRECTIONS = {"vertical": -2, "horizontal": -1}
"""The dimension of an image along which each direction takes differences."""


def differences(x: Tensor) -> Differences:
    """Dx: forward differences along columns and rows, without wrapping at the border."""
    return {name: _difference(dimension, x) for name, dimension in DIRECTIONS.items()}


def add_adjoint(out: Tensor, u: Differences, factor: float | Tensor = 1.0) -> Tensor:
    """Add factor·Dᵀu to ``out`` in place, and return it.

    The factor is a number, or a tensor (batch,).
    """
    for name, dimension in DIRECTIONS.items():
        _add_adjoint_along(dimension, out, u[name], factor)
    return out


def times(factor: float | Tensor, u: Differences) -> Differences:
    """factor·u, for a number or a tensor (batch,)."""
    return {name: broadcast(factor, u[name]) * u[name] for name in DIRECTIONS}


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
    """Groups g of differences d, whose Euclidean norms |d_g| a total variation adds.

    By default every difference is a group. If ``isotropic``, the two differences of a pixel are
    one group; a pixel of the last row or column has only one. If ``coupled``, a group extends over
    all channels. Widths, radii and weights below are numbers, or tensors (batch,).
    """

    isotropic: bool = False
    coupled: bool = False

    @property
    def single(self) -> bool:
        """Whether every difference is a group of its own."""
        return not (self.isotropic or self.coupled)

    def norms(self, d: Differences) -> list[Tensor]:
        """|d_g|: one tensor per direction; a single tensor if ``isotropic``."""
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
        """Σ h(|d_g|) per sample, with the Huber function h: (batch,).

        h(r) = r²/(2·width) for r ≤ width, and r − width/2 beyond.
        """

        def huber(norm: Tensor) -> Tensor:
            if not width:
                return norm
            near = norm.clamp(max=width)
            return near * (norm - near / 2) / width

        return torch.stack([sum_per_sample(huber(norm)) for norm in self.norms(d)]).sum(0)

    def slopes(self, d: Differences, width: float | Tensor = 0.0) -> Differences:
        """d_g/max(|d_g|, width), the gradient of Σ h(|d_g|) with respect to d; 0 at d_g = 0."""
        if self.single:
            return {name: _slope(d[name], width) for name in DIRECTIONS}
        return self._divide(d, [_divisor(norm, width) for norm in self.norms(d)])

    def add_gradient(
        self, out: Tensor, x: Tensor, weight: float | Tensor, width: float | Tensor
    ) -> Tensor:
        """Add the gradient of weight·Σ h(|(Dx)_g|) to ``out`` in place, and return it."""
        if not self.single:
            return add_adjoint(out, self.slopes(differences(x), width), weight)
        # Treat one direction after the other, while its differences are still in the cache.
        for dimension in DIRECTIONS.values():
            d = _difference(dimension, x)
            if torch.is_grad_enabled() or _is_zero(width):
                _add_adjoint_along(dimension, out, _slope(d, width), weight)
                continue
            # The same gradient, with two passes over the data fewer.
            bound = width.item() if isinstance(width, Tensor) and width.numel() == 1 else width
            _add_adjoint_along(dimension, out, _clip(d, bound, out=d), weight / bound)
        return out

    def project(self, u: Differences, radius: float | Tensor) -> Differences:
        """Project u onto |u_g| ≤ radius."""
        if self.single:
            return {name: _clip(u[name], radius) for name in DIRECTIONS}
        divisors = [_divisor(norm, radius) / broadcast(radius, norm) for norm in self.norms(u)]
        return self._divide(u, divisors)

    def _divide(self, d: Differences, divisors: list[Tensor]) -> Differences:
        """Divide every group by its divisor."""
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
    """The square root, with derivative 0 at 0."""
    if not torch.is_grad_enabled():
        return squares.sqrt()
    return torch.where(squares > 0, squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt(), 0.0)


def broadcast(number: float | Tensor, like: Tensor) -> float | Tensor:
    """Return a number unchanged; reshape a tensor (batch,) so that it broadcasts to ``like``."""
    return per_sample(number, like) if isinstance(number, Tensor) and number.ndim else number


def _slope(d: Tensor, width: float | Tensor) -> Tensor:
    return d.sign() if _is_zero(width) else (d / broadcast(width, d)).clamp(-1, 1)


def _divisor(norm: Tensor, width: float | Tensor) -> Tensor:
    """max(norm, width), with 0 replaced by ∞, so that 0 divided by it is 0."""
    if _is_zero(width):
        return norm.masked_fill(norm == 0, torch.inf)
    return norm.clamp(min=broadcast(width, norm))


def _clip(u: Tensor, bound: float | Tensor, out: Tensor | None = None) -> Tensor:
    limit = cast(Tensor, broadcast(bound, u))  # a tensor or a number
    return torch.clamp(u, -limit, limit, out=out)


def _is_zero(width: float | Tensor) -> bool:
    return not isinstance(width, Tensor) and width == 0
