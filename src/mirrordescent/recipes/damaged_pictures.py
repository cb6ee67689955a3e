"""Pictures with missing pixels or blur, which are restored with the convex profiles of a prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mirrordescent.data.image_files import random_crops
from mirrordescent.learn import Draw
from mirrordescent.learn.families import Pictures, generators
from mirrordescent.problems import Blur, RidgePrior, prior_restoration
from mirrordescent.problems.prior_problems import FILLING_LEVEL, UNDOING_ANCHOR
from mirrordescent.problems.tv import fill_holes
from mirrordescent.recipes.degraded_patches import (
    BLUR_LEVELS,
    log_uniform,
    random_kernel,
    random_mask,
)

Damage = Literal["holes", "blur"]


class DamagedPictures(Pictures):
    """The pictures on which steps for inpainting or deblurring are learned.

    A problem of the family is to restore a crop, as ``mirrordescent solve`` does: the unknown
    picture is larger than the crop, and the pixels beyond the border are missing.

    Args:
        training: Pictures (channels, height, width) of any size.
        held_out: Pictures for validation.
        prior: Prior with convex profiles.
        damage: What happened to the pictures.
        size: Side of the crops in pixels.
    """

    def __init__(
        self,
        training: Sequence[Tensor],
        held_out: Sequence[Tensor],
        prior: RidgePrior,
        damage: Damage,
        *,
        size: int = 64,
    ) -> None:
        super().__init__(training, held_out, size)
        self.prior = prior.requires_grad_(False)
        self.damage = damage

    def make(self, pictures: Sequence[Tensor], seeds: Tensor) -> Draw:
        """Crop a picture and damage it, for every seed."""
        crops = []
        masks = []
        kernels = []
        levels = []
        noise = []
        for generator in generators(seeds):
            crop = random_crops(pictures, self.size, 1, generator)
            if self.prior.channels == 1:
                crop = crop.mean(1, keepdim=True)
            crops.append(crop)
            masks.append(random_mask(self.size, generator))
            kernels.append(random_kernel(generator))
            levels.append(log_uniform(BLUR_LEVELS, 1, generator))
            noise.append(torch.randn(crop.shape, generator=generator))
        clean = torch.cat(crops)
        if self.damage == "holes":
            return self._inpainting(clean, torch.stack(masks).unsqueeze(1))
        return self._deblurring(clean, torch.stack(kernels), torch.cat(levels), torch.cat(noise))

    def _inpainting(self, clean: Tensor, known: Tensor) -> Draw:
        border = (self.prior.border,) * 4
        mask = F.pad(known.to(clean), border)
        y = F.pad(clean, border) * mask
        start = F.pad(fill_holes(clean, known.to(clean)), border, mode="replicate")
        sigma = clean.new_full((len(clean),), FILLING_LEVEL)
        problem = prior_restoration(y, sigma, self.prior, mask=mask, centre=start)
        return Draw(problem, start)

    def _deblurring(self, clean: Tensor, kernels: Tensor, levels: Tensor, noise: Tensor) -> Draw:
        """Blur a crop of a larger picture; only pixels whose kernel lies inside are known."""
        margin = kernels.shape[-1] // 2
        blur = Blur(kernels)
        inside = slice(margin, -margin)
        y = blur.A(clean)[..., inside, inside]
        y = y + levels.reshape(-1, 1, 1, 1) * noise[..., inside, inside]
        border = (margin + self.prior.border,) * 4
        mask = F.pad(torch.ones_like(y[:, :1]), border)
        start = F.pad(y, border, mode="replicate")
        problem = prior_restoration(
            F.pad(y, border),
            levels,
            self.prior,
            blur,
            mask,
            centre=start,
            anchor=UNDOING_ANCHOR,
        )
        return Draw(problem, start)
