"""Learned priors of pictures: a filter bank with profiles that depend on the noise level."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mirrordescent.parts import Part
from mirrordescent.problems.learned_ridges import LearnedRidges
from mirrordescent.problems.profiles import RidgeProfile

LEAST_NOISE = 1e-6
"""Smallest noise level. Smaller levels, such as 0, are replaced by it."""


class RidgeTable(Part, nn.Module):
    """Profiles φₖ of all filters at a few noise levels, interpolated between them.

    .. code-block:: none

        φ′ₖσ interpolates (bⱼ, vⱼ),    bⱼ = σ exp(aₖ(σ)) βⱼ,    vⱼ = σ exp(aₖ(σ)) Vₖⱼ(σ)

    aₖ and Vₖⱼ are linear in log σ between the levels of the table, and constant outside. The slopes
    of φ′ do not depend on the factor σ exp(aₖ), and are linear in V. So a bound on the slopes at
    the levels of the table holds for all σ. As σ → 0, φ → 0.

    Args:
        levels: Noise levels 0 < σ₁ < σ₂ < …, (levels,).
        scales: Numbers aₖ, (levels, filters).
        nodes: Positions β₁ < β₂ < …, (J,).
        heights: Numbers Vₖⱼ, (levels, filters, J).
    """

    kind = "profile"

    levels: Tensor
    scales: Tensor
    nodes: Tensor
    heights: Tensor

    def __init__(self, levels: Tensor, scales: Tensor, nodes: Tensor, heights: Tensor) -> None:
        super().__init__()
        expected = (*scales.shape, len(nodes))
        if scales.shape[:1] != levels.shape or heights.shape != expected:
            raise ValueError(
                "scales must be (levels, filters) and heights (levels, filters, nodes); got "
                f"{len(levels)} levels, {len(nodes)} nodes, scales of shape {tuple(scales.shape)} "
                f"and heights of shape {tuple(heights.shape)}"
            )
        if not bool((levels > 0).all() & (levels.diff() > 0).all()):
            raise ValueError("levels must be positive and increasing")
        self.register_buffer("levels", levels)
        self.register_buffer("scales", scales)
        self.register_buffer("nodes", nodes)
        self.register_buffer("heights", heights)

    def at(self, sigma: float | Tensor) -> RidgeProfile:
        """Return the profiles at one noise level, or at one for each sample, (batch,)."""
        noise = torch.as_tensor(sigma, dtype=self.scales.dtype, device=self.scales.device)
        if not bool((noise.isfinite() & (noise >= 0)).all()):
            raise ValueError(f"sigma must be finite and at least 0, got {sigma}")
        noise = noise.clamp(min=LEAST_NOISE)
        scales, heights = self._interpolate(noise.reshape(-1))
        unit = (noise.reshape(-1, 1) * scales.exp()).unsqueeze(-1)
        positions = unit * self.nodes
        values = unit * heights
        if noise.ndim == 0:
            return RidgeProfile(positions[0], values[0])
        return RidgeProfile(positions, values)

    def _interpolate(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return aₖ and Vₖⱼ for every noise level."""
        if len(self.levels) == 1:
            count = len(noise)
            return self.scales.expand(count, -1), self.heights.expand(count, -1, -1)
        known = self.levels.log()
        at = noise.log().clamp(known[0], known[-1])
        right = torch.searchsorted(known, at).clamp(1, len(known) - 1)
        left = right - 1
        share = ((at - known[left]) / (known[right] - known[left])).clamp(0, 1)
        scales = torch.lerp(self.scales[left], self.scales[right], share.unsqueeze(-1))
        share = share.reshape(-1, 1, 1)
        # Not lerp, whose rounding could make rising heights fall.
        heights = (1 - share) * self.heights[left] + share * self.heights[right]
        return scales, heights


class RidgePrior(Part, nn.Module):
    """A learned prior of pictures with values from 0 to 1, for all noise levels.

    It has two tables of profiles. Those of ``weak`` are weakly convex, and made for denoising:
    ½‖x − y‖² + R_σ(x) is strongly convex, although R_σ is not convex. Those of ``convex`` are
    convex, and made for data terms that are not strongly convex, such as those of inpainting and
    deblurring.

    Args:
        filters: Filters, (count, channels, rows, columns).
        weak: Weakly convex profiles.
        convex: Convex profiles; None if there are none.
        convex_filters: Filters of the convex profiles; by default ``filters``.
    """

    kind = "prior"

    filters: Tensor
    weak: RidgeTable
    convex: RidgeTable | None
    convex_filters: Tensor | None

    def __init__(
        self,
        filters: Tensor,
        weak: RidgeTable,
        convex: RidgeTable | None = None,
        convex_filters: Tensor | None = None,
    ) -> None:
        super().__init__()
        if convex_filters is not None and convex_filters.shape[1] != filters.shape[1]:
            raise ValueError(
                f"convex_filters must have {filters.shape[1]} channels, like filters, "
                f"got {convex_filters.shape[1]}"
            )
        self.register_buffer("filters", filters)
        self.register_buffer("convex_filters", convex_filters)
        self.weak = weak
        self.convex = convex

    @property
    def convex_bank(self) -> Tensor:
        """The filters of the convex profiles."""
        return self.filters if self.convex_filters is None else self.convex_filters

    @property
    def channels(self) -> int:
        """Number of channels of the pictures: 3 or 1."""
        return self.filters.shape[1]

    @property
    def border(self) -> int:
        """Number of pixels by which pictures are continued for the regularisation of the border."""
        return max(*self.filters.shape[-2:], *self.convex_bank.shape[-2:]) - 1

    def term(
        self, sigma: float | Tensor, convex: bool = False, weight: float | Tensor = 1.0
    ) -> LearnedRidges:
        """Return the regulariser h·R_σ for a composite problem.

        Args:
            sigma: Standard deviation σ of the noise, for pictures with values from 0 to 1: a
                number, or (batch,).
            convex: Whether to use the convex profiles.
            weight: Weight h.
        """
        table = self.convex if convex else self.weak
        if table is None:
            raise ValueError(
                "this prior has no convex profiles, which inpainting, deblurring and upsampling "
                "need: use prior='tv' or another prior"
            )
        filters = self.convex_bank if convex else self.filters
        return LearnedRidges(filters, table.at(sigma), weight)
