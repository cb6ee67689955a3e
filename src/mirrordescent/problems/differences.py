"""Differences of neighbours on a grid: D, its adjoint, and the group norms of total variation.

Points are (batch, channels, …) with any number of trailing dimensions: signals have one, images
two, volumes and video three.
"""

from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.trees import per_sample, sum_per_sample

Differences: TypeAlias = dict[str, Tensor]
"""Dx, or a dual point of the same shape, by direction."""

AxisWeights: TypeAlias = tuple[float, ...] | None
"""Weights of the differences along every axis of the grid; None if all are 1."""

NAMES = ("horizontal", "vertical", "depth")
"""Names of the directions along the last dimension, the one before it, and the third to last."""


def directions(axes: int) -> dict[str, int]:
    """Return the dimension along which each direction of a grid takes differences.

    >>> directions(1), directions(3)
    ({'horizontal': -1}, {'depth': -3, 'vertical': -2, 'horizontal': -1})
    """
    return {direction_name(dimension): dimension for dimension in range(-axes, 0)}


def direction_name(dimension: int) -> str:
    """Return the name of the direction along a dimension, which is counted from the last, −1."""
    return NAMES[-1 - dimension] if -dimension <= len(NAMES) else f"axis {dimension}"


DIRECTIONS = directions(2)
"""The directions of an image."""


def differences(x: Tensor, axis_weights: AxisWeights = None) -> Differences:
    """Dx: forward differences along every axis, without wrapping at the border.

    Args:
        x: Points (batch, channels, …).
        axis_weights: Factors of the differences along each axis.
    """
    return {
        name: _difference(dimension, x, axis_weights)
        for name, dimension in directions(x.ndim - 2).items()
    }


def add_adjoint(
    out: Tensor, u: Differences, factor: float | Tensor = 1.0, axis_weights: AxisWeights = None
) -> Tensor:
    """Add factor·Dᵀu to ``out`` in place, and return it.

    The factor is a number, or a tensor (batch,).
    """
    for name, dimension in directions(out.ndim - 2).items():
        _add_adjoint_along(dimension, out, u[name], factor, axis_weights)
    return out


def times(factor: float | Tensor, u: Differences) -> Differences:
    """factor·u, for a number or a tensor (batch,)."""
    return {name: broadcast(factor, block) * block for name, block in u.items()}


def axis_weight(axis_weights: AxisWeights, dimension: int) -> float:
    """Return the weight of a dimension, which is counted from the last, −1."""
    return 1.0 if axis_weights is None else axis_weights[dimension]


def _difference(dimension: int, x: Tensor, axis_weights: AxisWeights) -> Tensor:
    last = x.shape[dimension] - 1
    d = x.narrow(dimension, 1, last) - x.narrow(dimension, 0, last)
    weight = axis_weight(axis_weights, dimension)
    return d if weight == 1 else weight * d


def _add_adjoint_along(
    dimension: int,
    out: Tensor,
    u: Tensor,
    factor: float | Tensor,
    axis_weights: AxisWeights,
) -> None:
    if isinstance(factor, Tensor):
        u = u * per_sample(factor, u)
        factor = 1.0
    factor = factor * axis_weight(axis_weights, dimension)
    last = out.shape[dimension] - 1
    out.narrow(dimension, 1, last).add_(u, alpha=factor)
    out.narrow(dimension, 0, last).sub_(u, alpha=factor)


class Groups(NamedTuple):
    """Groups g of differences d, whose Euclidean norms |d_g| a total variation adds.

    By default every difference is a group. If ``isotropic``, the differences of a pixel are one
    group; a pixel of the last row or column has fewer. If ``coupled``, a group extends over all
    channels. Widths, radii and weights below are numbers, or tensors (batch,).
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
            return [block.abs() for block in d.values()]
        squares = [block.square() for block in d.values()]
        if self.coupled:
            squares = [square.sum(1, keepdim=True) for square in squares]
        if self.isotropic:
            total = _pad_last(squares[0], -len(squares))
            for dimension in range(1 - len(squares), 0):
                total = total + _pad_last(squares[dimension], dimension)
            squares = [total]
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
            return {name: _slope(block, width) for name, block in d.items()}
        return self._divide(d, [_divisor(norm, width) for norm in self.norms(d)])

    def add_gradient(
        self,
        out: Tensor,
        x: Tensor,
        weight: float | Tensor,
        width: float | Tensor,
        axis_weights: AxisWeights = None,
    ) -> Tensor:
        """Add the gradient of weight·Σ h(|(Dx)_g|) to ``out`` in place, and return it."""
        if not self.single:
            slopes = self.slopes(differences(x, axis_weights), width)
            return add_adjoint(out, slopes, weight, axis_weights)
        # Treat one direction after the other, while its differences are still in the cache.
        for dimension in range(2 - x.ndim, 0):
            d = _difference(dimension, x, axis_weights)
            if torch.is_grad_enabled() or _is_zero(width):
                _add_adjoint_along(dimension, out, _slope(d, width), weight, axis_weights)
                continue
            # The same gradient, with two passes over the data fewer.
            bound = width.item() if isinstance(width, Tensor) and width.numel() == 1 else width
            clipped = _clip(d, bound, out=d)
            _add_adjoint_along(dimension, out, clipped, weight / bound, axis_weights)
        return out

    def project(self, u: Differences, radius: float | Tensor) -> Differences:
        """Project u onto |u_g| ≤ radius."""
        if self.single:
            return {name: _clip(block, radius) for name, block in u.items()}
        divisors = [_divisor(norm, radius) / broadcast(radius, norm) for norm in self.norms(u)]
        return self._divide(u, divisors)

    def _divide(self, d: Differences, divisors: list[Tensor]) -> Differences:
        """Divide every group by its divisor."""
        if not self.isotropic:
            return {
                name: block / divisor
                for (name, block), divisor in zip(d.items(), divisors, strict=True)
            }
        shared = divisors[0]
        return {
            name: block / shared.narrow(k, 0, shared.shape[k] - 1)
            for (name, block), k in zip(d.items(), range(-len(d), 0), strict=True)
        }


def _pad_last(x: Tensor, dimension: int) -> Tensor:
    """Append a zero along a dimension, which is counted from the last, −1."""
    return F.pad(x, (0, 0) * (-1 - dimension) + (0, 1))


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
