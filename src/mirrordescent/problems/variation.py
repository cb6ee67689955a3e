"""Terms in the differences of neighbouring pixels: total variation and roughness."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mirrordescent._internal.checks import require_not_negative
from mirrordescent._internal.dct import solve_poisson
from mirrordescent.problems.differences import Differences, Groups, add_adjoint, differences, times
from mirrordescent.problems.terms import Blocks, Term, half_squares, largest
from mirrordescent.trees import dot, sum_per_sample


class DifferenceTerm(Term):
    """A term in the differences Dx of neighbouring pixels.

    Images are (batch, channels, height, width). A subclass writes ``value``, ``add_gradient``,
    ``prox_conjugate``, ``conjugate``, ``dual_gauge`` and ``_oscillation_bound``.
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
        """‖w − mean(w)‖₁ times a bound on max x − min x, for a w of mean 0.

        If the mean is larger than the rounding error of residuals at this level, return infinity.
        """
        mean = w.mean((-2, -1), keepdim=True)
        tolerance = torch.finfo(w.dtype).eps ** 0.5 * (1 + level.sqrt())
        unbounded = mean.abs().flatten(1).amax(1) > tolerance
        bound = sum_per_sample((w - mean).abs()) * self._oscillation_bound(w, level)
        return torch.where(unbounded, torch.inf, bound)

    def _oscillation_bound(self, like: Tensor, level: Tensor) -> Tensor:
        """An upper bound on max x − min x over images where the term is at most ``level``."""
        raise NotImplementedError


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

    def _oscillation_bound(self, like: Tensor, level: Tensor) -> Tensor:
        """√2·Σ_g |d_g|, where Σ_g |d_g| ≤ level/λ + η/2 for every group.

        The differences along a path between two pixels add up to at most √2·Σ_g |d_g|.
        """
        groups = like[0].numel() * (1 if self.isotropic else 2)
        return math.sqrt(2) * (level / self.scaled_weight + groups * self.huber / 2)


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

    def _oscillation_bound(self, like: Tensor, level: Tensor) -> Tensor:
        """√n‖Dx‖: a path has fewer than n differences, to which Cauchy–Schwarz applies."""
        return (like[0].numel() * 2 * level / self.scaled_weight).sqrt()
