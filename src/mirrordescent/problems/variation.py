"""Terms of the differences of neighbouring pixels: total variation, and roughness."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mirrordescent._internal.checks import require_not_negative
from mirrordescent._internal.dct import solve_poisson
from mirrordescent.problems.differences import Differences, Groups, add_adjoint, differences, times
from mirrordescent.problems.terms import Blocks, Term, greatest, half_squares
from mirrordescent.trees import dot, sum_per_sample


class OfDifferences(Term):
    """Terms of the differences of neighbouring pixels, K = D: images are (batch, channels, height,
    width).
    """

    blocks = ("vertical", "horizontal")
    absorbs = True
    absorbs_constants = False

    def prepare(self, like: Tensor) -> None:
        if like.ndim != 4:
            raise ValueError(
                f"{type(self).__name__} needs images (batch, channels, height, width), got {tuple(like.shape)}"
            )

    @property
    def norm(self) -> float:
        """√8."""
        return math.sqrt(8)

    def K(self, x: Tensor) -> Blocks:
        return differences(x)

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        return add_adjoint(out, u)

    def absorb(self, w: Tensor, one_sided: bool) -> Blocks:
        """D of the solution of a Poisson equation, which leaves the mean of every channel.

        If w ≥ 0 will do, it takes what is negative, and as much of what is positive, so that the
        mean is 0.
        """
        if one_sided:
            below = w.clamp(max=0)
            above = w.clamp(min=0)
            share = -below.sum((-2, -1), keepdim=True) / above.sum((-2, -1), keepdim=True)
            w = below + share.nan_to_num(0.0, 0.0).clamp(0, 1) * above
        return differences(solve_poisson(w))

    def charge(self, w: Tensor, level: Tensor) -> Tensor:
        """‖w − mean‖₁ times the oscillation of x; the mean must be 0, up to rounding of residuals
        at this level.
        """
        mean = w.mean((-2, -1), keepdim=True)
        wrong = mean.abs().flatten(1).amax(1) > torch.finfo(w.dtype).eps ** 0.5 * (1 + level.sqrt())
        rest = sum_per_sample((w - mean).abs()) * self._oscillation(w, level)
        return torch.where(wrong, torch.inf, rest)

    def _oscillation(self, w: Tensor, level: Tensor) -> Tensor:
        raise NotImplementedError


class TV(OfDifferences):
    """λ Σ_g h(|(Dx)_g|): the total variation of images; see
    :class:`~mirrordescent.problems.TVInpainting`.

    Args:
        weight: λ.
        isotropic: take the two differences of a pixel together.
        coupled: take the channels together, such as the two of a complex image.
        huber: η, up to which norms are rounded.

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
        """The differences whose norms are added up."""
        return Groups(self.isotropic, self.coupled)

    def value(self, x: Tensor) -> Tensor:
        return self.height * self.groups.total(differences(x), self.huber)

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add λDᵀu, u_g = d_g/max(|d_g|, η, width); 0 where there is nothing to divide by."""
        if self.huber:
            width = (
                width.clamp(min=self.huber) if isinstance(width, Tensor) else max(width, self.huber)
            )
        return self.groups.add_gradient(out, x, self.height, width)

    @property
    def curvature(self) -> float:
        """8λ/η, for the greatest λ."""
        return 8 * greatest(self.height) / self.huber if self.huber else math.inf

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Differences:
        """Project onto |u_g| ≤ λ, with an η after dividing by 1 + ση/λ."""
        shrunk = times(1 / (1 + sigma * self.huber / self.height), u) if self.huber else u
        return self.groups.project(shrunk, self.height)

    def conjugate(self, u: Blocks) -> Tensor:
        """(η/(2λ))‖u‖²."""
        return half_squares(u, self.huber / self.height)

    def excess(self, u: Blocks) -> Tensor:
        return self.groups.largest(u) / self.height

    def _oscillation(self, w: Tensor, level: Tensor) -> Tensor:
        """A path between two pixels meets differences that add up to no more than √2 times the
        total variation.

        A Huber function is less than that by at most η/2 for every group.
        """
        groups = w[0].numel() * (1 if self.isotropic else 2)
        return math.sqrt(2) * (level / self.height + groups * self.huber / 2)


class Roughness(OfDifferences):
    """(ρ/2)‖Dx‖², the squares of the differences of neighbouring pixels."""

    kinked = False

    def value(self, x: Tensor) -> Tensor:
        d = differences(x)
        return self.height / 2 * dot(d, d)

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        return add_adjoint(out, differences(x), self.height)

    @property
    def curvature(self) -> float:
        """8ρ."""
        return 8 * greatest(self.height)

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """u/(1 + σ/ρ)."""
        return times(1 / (1 + sigma / self.height), u)

    def conjugate(self, u: Blocks) -> Tensor:
        return half_squares(u, 1 / self.height)

    def excess(self, u: Blocks) -> Tensor:
        return u["vertical"].new_zeros(len(u["vertical"]))

    def _oscillation(self, w: Tensor, level: Tensor) -> Tensor:
        """A path has fewer than n differences, whose sum is at most √n times the root of their
        squares.
        """
        return (w[0].numel() * 2 * level / self.height).sqrt()
