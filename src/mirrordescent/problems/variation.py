"""Terms in the differences of neighbouring pixels: total variation and roughness."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mirrordescent._internal.checks import require_not_negative
from mirrordescent._internal.dct import solve_poisson
from mirrordescent._internal.rounding import positive_sum_error, unit
from mirrordescent.problems.differences import Differences, Groups, add_adjoint, differences, times
from mirrordescent.problems.terms import Blocks, Term, half_squares, largest
from mirrordescent.trees import dot, sum_per_sample


class DifferenceTerm(Term):
    """A term in the differences Dx of neighbouring pixels.

    Images are (batch, channels, height, width). A subclass writes ``value``, ``add_gradient``,
    ``prox_conjugate``, ``conjugate``, ``dual_gauge`` and ``deviation_bound``.
    """

    blocks = ("vertical", "horizontal")
    can_solve_adjoint = True
    constants_in_range = False

    def prepare(self, like: Tensor) -> None:
        if like.ndim != 4:
            raise ValueError(
                f"{type(self).__name__} needs images (batch, channels, height, width), "
                f"got points of shape {tuple(like.shape)}"
            )

    @property
    def norm(self) -> float:
        """√8."""
        return math.sqrt(8)

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the error by a multiple of the value, because differences are rounded once.

        Norms of groups are roots of squares, which underflow. Constant images have the exact
        value 0.
        """
        terms = 2 * x[0].numel()
        underflow = torch.finfo(x.dtype).tiny ** 0.5 * terms * largest(self.scaled_weight)
        relative = positive_sum_error(value, terms) + x.shape[1] * unit(0, x.dtype) * value
        error = relative + underflow
        if bool((value == 0).any()):
            varying = torch.stack([d.flatten(1).any(1) for d in differences(x).values()]).any(0)
            error = torch.where(varying, error, 0.0)
        return error

    def K(self, x: Tensor) -> Blocks:
        return differences(x)

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        return add_adjoint(out, u)

    def solve_adjoint(self, w: Tensor, one_sided: bool) -> Blocks:
        """Return u = Dz for the solution z of the Poisson equation DᵀDz = w − mean(w).

        The residual w − Dᵀu is the mean of every channel. If ``one_sided``, the positive part of w
        is first reduced by a factor, so that the mean of w is at most 0.
        """
        if one_sided:
            below = w.clamp(max=0)
            above = w.clamp(min=0)
            share = -below.sum((-2, -1), keepdim=True) / above.sum((-2, -1), keepdim=True)
            w = below + share.nan_to_num(0.0, 0.0).clamp(0, 1) * above
        return differences(solve_poisson(w))

    def residual_bound(self, w: Tensor, level: Tensor) -> Tensor:
        """‖w‖ times ``deviation_bound``; infinite unless the means of w are 0.

        The term bounds x only up to constants. Bounds on problems therefore use ``deviation_bound``
        and charge the means of w to the data.
        """
        bound = sum_per_sample(w.square()).sqrt() * self.deviation_bound(w, level)
        return torch.where(w.mean((-2, -1)).any(1), torch.inf, bound)


class TV(DifferenceTerm):
    """λ Σ_g h(|(Dx)_g|), the total variation of images.

    :class:`~mirrordescent.problems.TVInpainting` defines the groups g and the function h.

    Args:
        weight: Weight λ.
        isotropic: Whether the two differences of a pixel are one group.
        coupled: Whether the channels are one group, such as the two channels of a complex image.
        huber: Width η of the Huber function; 0 means h(r) = r.

    >>> import torch
    >>> TV(2.0).value(torch.tensor([[[[0.0, 1.0]]]]))
    tensor([2.])
    """

    def __init__(
        self,
        weight: float | Tensor,
        isotropic: bool = False,
        coupled: bool = False,
        huber: float = 0.0,
    ) -> None:
        super().__init__(weight)
        require_not_negative(huber=huber)
        self.isotropic = bool(isotropic)
        self.coupled = bool(coupled)
        self.huber = float(huber)

    @property
    def groups(self) -> Groups:
        """The groups of differences whose norms are added."""
        return Groups(self.isotropic, self.coupled)

    def value(self, x: Tensor) -> Tensor:
        return self.scaled_weight * self.groups.total(differences(x), self.huber)

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add λDᵀu with u_g = d_g/max(|d_g|, η, width); u_g = 0 where the divisor is 0."""
        if self.huber and isinstance(width, Tensor):
            width = width.clamp(min=self.huber)
        elif self.huber:
            width = max(width, self.huber)
        return self.groups.add_gradient(out, x, self.scaled_weight, width)

    @property
    def curvature(self) -> float:
        """8λ/η for the largest λ; infinite for η = 0."""
        return 8 * largest(self.scaled_weight) / self.huber if self.huber else math.inf

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
        """‖x − c‖ ≤ k·TV(x) for the medians c, with k = max(½, √(HW/2)/min(H, W)).

        A set S of at most half of the pixels has at least min(2√|S|, H, W) boundary differences: if
        neither S nor its complement contains a row or column, each row and column that S meets has
        one. So √|S| ≤ k·boundary, and integrating over the levels of x gives the bound. Here
        TV is the sum of |d|: at most √2·Σ|d_g| if isotropic and √channels·Σ|d_g| if coupled, where
        Σ|d_g| ≤ level/λ + η/2 for every group.
        """
        channels, height, width = like.shape[1:]
        k = max(0.5, math.sqrt(height * width / 2) / min(height, width))
        k *= math.sqrt((2 if self.isotropic else 1) * (channels if self.coupled else 1))
        groups = like[0].numel() * (1 if self.isotropic else 2)
        return k * (level / self.scaled_weight + groups * self.huber / 2)


class Roughness(DifferenceTerm):
    """(ρ/2)‖Dx‖², the sum of squared differences of neighbouring pixels.

    Args:
        weight: Weight ρ.
    """

    kinked = False

    def value(self, x: Tensor) -> Tensor:
        d = differences(x)
        return self.scaled_weight / 2 * dot(d, d)

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add ρDᵀDx."""
        return add_adjoint(out, differences(x), self.scaled_weight)

    @property
    def curvature(self) -> float:
        """8ρ for the largest ρ."""
        return 8 * largest(self.scaled_weight)

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """u/(1 + σ/ρ)."""
        return times(1 / (1 + sigma / self.scaled_weight), u)

    def conjugate(self, u: Blocks) -> Tensor:
        """‖u‖²/(2ρ)."""
        return half_squares(u, 1 / self.scaled_weight)

    def dual_gauge(self, u: Blocks) -> Tensor:
        """0."""
        return u["vertical"].new_zeros(len(u["vertical"]))

    def deviation_bound(self, like: Tensor, level: Tensor) -> Tensor:
        """‖x − mean‖ ≤ ‖Dx‖/(2 sin(π/2n)) for the longer side n: DᵀD has no smaller eigenvalue."""
        side = max(like.shape[-2:])
        least = 1.99 * math.sin(math.pi / (2 * side)) if side > 1 else math.inf
        return (2 * level / self.scaled_weight).sqrt() / least
