"""Terms in the differences of neighbours on a grid: total variation, roughness and trends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mirrordescent._internal.checks import require_not_negative
from mirrordescent._internal.dct import solve_poisson
from mirrordescent._internal.rounding import positive_sum_error, unit
from mirrordescent.problems.differences import (
    AxisWeights,
    Differences,
    Groups,
    add_adjoint,
    differences,
    directions,
    times,
)
from mirrordescent.problems.terms import Blocks, Term, half_squares, largest
from mirrordescent.trees import dot, sum_per_sample


class DifferenceTerm(Term):
    """A term in the differences Dx of neighbours on a grid, times a weight for every axis.

    Points are (batch, channels, …): signals have one more dimension, images two, volumes three. A
    subclass writes ``value``, ``add_gradient``, ``prox_conjugate``, ``conjugate``, ``dual_gauge``
    and ``deviation_bound``.

    Args:
        weight: Weight of the term.
        axis_weights: Weights wₖ > 0 of the differences along the axes of the grid, such as the
            inverse distances of neighbours; None if all are 1.
    """

    blocks: tuple[str, ...] = ("vertical", "horizontal")
    can_solve_adjoint = True
    constants_in_range = False

    def __init__(self, weight: float | Tensor, axis_weights: Sequence[float] | None = None) -> None:
        super().__init__(weight)
        self.axis_weights = as_axis_weights(axis_weights)
        self._axes = 2

    def prepare(self, like: Tensor) -> None:
        self._axes = require_grid(type(self).__name__, like, self.axis_weights)
        self.blocks = tuple(directions(self._axes))

    @property
    def weights_of_axes(self) -> tuple[float, ...]:
        """The weights of the axes, also if all are 1."""
        return (1.0,) * self._axes if self.axis_weights is None else self.axis_weights

    @property
    def norm(self) -> float:
        """√(4 Σ wₖ²)."""
        return math.sqrt(4 * _sum_of_squares(self.weights_of_axes))

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the error by a multiple of the value, because differences are rounded once.

        Norms of groups are roots of squares, which underflow. Constant points have the exact value
        0.
        """
        terms = self._axes * x[0].numel()
        tiny = torch.finfo(x.dtype).tiny ** 0.5
        underflow = tiny * terms * largest(self.scaled_weight) * max(1.0, *self.weights_of_axes)
        relative = positive_sum_error(value, terms) + x.shape[1] * unit(0, x.dtype) * value
        error = relative + underflow
        if bool((value == 0).any()):
            varying = torch.stack([d.flatten(1).any(1) for d in differences(x).values()]).any(0)
            error = torch.where(varying, error, 0.0)
        return error

    def K(self, x: Tensor) -> Blocks:
        return differences(x, self.axis_weights)

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        return add_adjoint(out, u, 1.0, self.axis_weights)

    def solve_adjoint(self, w: Tensor, one_sided: bool) -> Blocks:
        """Return u = Dz for the solution z of the Poisson equation DᵀDz = w − mean(w).

        The residual w − Dᵀu is the mean of every channel. If ``one_sided``, the positive part of w
        is first reduced by a factor, so that the mean of w is at most 0.
        """
        if one_sided:
            grid = tuple(range(-self._axes, 0))
            below = w.clamp(max=0)
            above = w.clamp(min=0)
            share = -below.sum(grid, keepdim=True) / above.sum(grid, keepdim=True)
            w = below + share.nan_to_num(0.0, 0.0).clamp(0, 1) * above
        return differences(solve_poisson(w, self.weights_of_axes), self.axis_weights)

    def residual_bound(self, w: Tensor, level: Tensor) -> Tensor:
        """‖w‖ times ``deviation_bound``; infinite unless the means of w are 0.

        The term bounds x only up to constants. Bounds on problems therefore use ``deviation_bound``
        and charge the means of w to the data.
        """
        bound = sum_per_sample(w.square()).sqrt() * self.deviation_bound(w, level)
        return torch.where(w.mean(tuple(range(-self._axes, 0))).any(1), torch.inf, bound)


def as_axis_weights(axis_weights: Sequence[float] | None) -> AxisWeights:
    """Return positive weights of axes as a tuple; None if all of them are 1."""
    if axis_weights is None:
        return None
    weights = tuple(float(weight) for weight in axis_weights)
    if not weights or not all(weight > 0 and math.isfinite(weight) for weight in weights):
        raise ValueError(f"axis_weights must be positive numbers, got {weights}")
    return weights


def require_grid(name: str, like: Tensor, axis_weights: AxisWeights) -> int:
    """Return the number of axes of the grid; raise if points do not have the right shape."""
    axes = like.ndim - 2
    if axes < 1:
        raise ValueError(
            f"{name} needs signals (batch, channels, length), images (batch, channels, height, "
            f"width) or points with more such axes; got points of shape {tuple(like.shape)}"
        )
    if axis_weights is not None and len(axis_weights) != axes:
        raise ValueError(
            f"axis_weights must be {axes} numbers, one for each axis of points of shape "
            f"{tuple(like.shape[1:])} after the channels; got {len(axis_weights)}"
        )
    return axes


class TV(DifferenceTerm):
    """λ Σ_g h(|(Dx)_g|), the total variation of signals, images or volumes.

    :class:`~mirrordescent.problems.TVInpainting` defines the groups g and the function h.

    Args:
        weight: Weight λ.
        isotropic: Whether the differences of a pixel are one group.
        coupled: Whether the channels are one group, such as the two channels of a complex image.
        huber: Width η of the Huber function; 0 means h(r) = r.
        axis_weights: Weights of the differences along the axes, such as inverse distances of
            neighbouring voxels, or a weight of time in video; None if all are 1.

    >>> import torch
    >>> TV(2.0).value(torch.tensor([[[[0.0, 1.0]]]]))
    tensor([2.])
    >>> TV(2.0, axis_weights=[0.5]).value(torch.tensor([[[0.0, 1.0, 4.0]]]))
    tensor([4.])
    """

    def __init__(
        self,
        weight: float | Tensor,
        isotropic: bool = False,
        coupled: bool = False,
        huber: float = 0.0,
        axis_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(weight, axis_weights)
        require_not_negative(huber=huber)
        self.isotropic = bool(isotropic)
        self.coupled = bool(coupled)
        self.huber = float(huber)

    @property
    def groups(self) -> Groups:
        """The groups of differences whose norms are added."""
        return Groups(self.isotropic, self.coupled)

    def value(self, x: Tensor) -> Tensor:
        return self.scaled_weight * self.groups.total(self.K(x), self.huber)

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add λDᵀu with u_g = d_g/max(|d_g|, η, width); u_g = 0 where the divisor is 0."""
        if self.huber and isinstance(width, Tensor):
            width = width.clamp(min=self.huber)
        elif self.huber:
            width = max(width, self.huber)
        return self.groups.add_gradient(out, x, self.scaled_weight, width, self.axis_weights)

    @property
    def curvature(self) -> float:
        """‖D‖²λ/η for the largest λ; infinite for η = 0."""
        if not self.huber:
            return math.inf
        return 4 * _sum_of_squares(self.weights_of_axes) * largest(self.scaled_weight) / self.huber

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Differences:
        """Divide by 1 + ση/λ, then project onto |u_g| ≤ λ."""
        if self.huber:
            u = times(1 / (1 + sigma * self.huber / self.scaled_weight), u)
        return self.groups.project(u, self.scaled_weight)

    def conjugate(self, u: Blocks) -> Tensor:
        """(η/(2λ))‖u‖²."""
        return half_squares(u, self.huber / self.scaled_weight)

    def dual_gauge(self, u: Blocks) -> Tensor:
        """max |u_g|/λ."""
        return self.groups.largest(u) / self.scaled_weight

    def deviation_bound(self, like: Tensor, level: Tensor) -> Tensor:
        """‖x − c‖ ≤ k·TV(x) for some constants c, with a k that depends on the grid.

        For images, c are medians and k = max(½, √(HW/2)/min(H, W)): a set S of at most half of the
        pixels has at least min(2√|S|, H, W) boundary differences, because if neither S nor its
        complement contains a row or column, each row and column that S meets has one. So
        √|S| ≤ k·boundary, and integrating over the levels of x gives the bound. On other grids of n
        points, c are the means of the largest and the smallest entry and k = √n/2, because a path
        of differences connects these two entries.

        Here TV is the sum of |d|. It is at most √axes·Σ|d_g| if isotropic and √channels·Σ|d_g| if
        coupled, where Σ|d_g| ≤ level/λ + η/2 for every group, divided by the least weight of an
        axis.
        """
        channels, *grid = like.shape[1:]
        points = math.prod(grid)
        k = math.sqrt(points) / 2
        if len(grid) == 2:
            k = max(0.5, math.sqrt(points / 2) / min(grid))
        k *= math.sqrt((len(grid) if self.isotropic else 1) * (channels if self.coupled else 1))
        k /= min(self.weights_of_axes)
        groups = like[0].numel() * (1 if self.isotropic else len(grid))
        return k * (level / self.scaled_weight + groups * self.huber / 2)


class Roughness(DifferenceTerm):
    """(ρ/2)‖Dx‖², the sum of squared differences of neighbours on a grid.

    Args:
        weight: Weight ρ.
        axis_weights: Weights of the differences along the axes; None if all are 1.
    """

    kinked = False

    def value(self, x: Tensor) -> Tensor:
        d = self.K(x)
        return self.scaled_weight / 2 * dot(d, d)

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add ρDᵀDx."""
        return add_adjoint(out, self.K(x), self.scaled_weight, self.axis_weights)

    @property
    def curvature(self) -> float:
        """‖D‖²ρ for the largest ρ."""
        return 4 * _sum_of_squares(self.weights_of_axes) * largest(self.scaled_weight)

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """u/(1 + σ/ρ)."""
        return times(1 / (1 + sigma / self.scaled_weight), u)

    def conjugate(self, u: Blocks) -> Tensor:
        """‖u‖²/(2ρ)."""
        return half_squares(u, 1 / self.scaled_weight)

    def dual_gauge(self, u: Blocks) -> Tensor:
        """0."""
        first = next(iter(u.values()))
        return first.new_zeros(len(first))

    def deviation_bound(self, like: Tensor, level: Tensor) -> Tensor:
        """‖x − mean‖ ≤ ‖Dx‖/(2w sin(π/2n)) for the longest side n and the least weight w.

        DᵀD has no smaller eigenvalue, except 0 for the constants.
        """
        side = max(like.shape[2:])
        least = 1.99 * math.sin(math.pi / (2 * side)) if side > 1 else math.inf
        return (2 * level / self.scaled_weight).sqrt() / (least * min(self.weights_of_axes))


def _sum_of_squares(weights: Sequence[float]) -> float:
    return sum(weight * weight for weight in weights)
