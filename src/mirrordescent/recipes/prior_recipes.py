"""Recipes of the shipped priors, ``photo-prior`` and ``photo-prior-grey``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from mirrordescent.data import bsds500
from mirrordescent.data.image_files import random_crops
from mirrordescent.learn import Draw, ProblemFamily, Recipe
from mirrordescent.learn.families import Pictures, generators
from mirrordescent.learn.recipe import Numbers, Stage
from mirrordescent.learn.tables import changed
from mirrordescent.problems import RidgePrior, prior_denoising
from mirrordescent.recipes.ridge_priors import (
    BSDS_TERMS,
    LearningRates,
    PriorLearning,
    PriorParameters,
    PriorSettings,
    prior_description,
    prior_family,
)

CONVEX_RATES = LearningRates(filters=1e-3, profiles=4e-2)
"""First learning rates of a run for the convex profiles alone, which begins with few steps."""


class PriorPictures(Pictures):
    """The pictures from which a prior is learned. A problem of the family is to denoise a crop.

    Args:
        training: Pictures (channels, height, width) of any size.
        held_out: Pictures for validation.
        prior: Prior of the problems.
        size: Side of the crops in pixels.
        noise: Smallest and largest noise level; the logarithms of the levels are uniform.
    """

    def __init__(
        self,
        training: Sequence[Tensor],
        held_out: Sequence[Tensor],
        prior: RidgePrior,
        *,
        size: int = 48,
        noise: tuple[float, float] = (0.015, 0.15),
    ) -> None:
        super().__init__(training, held_out, size)
        self.prior = prior.requires_grad_(False)
        self.noise = noise

    def make(self, pictures: Sequence[Tensor], seeds: Tensor) -> Draw:
        """Crop a picture and add noise, for every seed."""
        low, high = self.noise
        observed = []
        levels = []
        for generator in generators(seeds):
            crop = random_crops(pictures, self.size, 1, generator)
            if self.prior.channels == 1:
                crop = crop.mean(1, keepdim=True)
            share = float(torch.rand(1, generator=generator))
            sigma = low * math.exp(share * math.log(high / low))
            observed.append(crop + sigma * torch.randn(crop.shape, generator=generator))
            levels.append(sigma)
        y = torch.cat(observed)
        return Draw(prior_denoising(y, torch.tensor(levels), self.prior), y)


class PriorStage(Stage):
    """Learning of the weakly convex and the convex profiles of a prior.

    Args:
        name: Name of the stage.
        settings: Settings.
    """

    def __init__(self, name: str, settings: PriorSettings) -> None:
        self.name = name
        self.settings = settings
        self.seed = settings.seed

    def changed(self, settings: Mapping[str, Any]) -> PriorStage:
        return PriorStage(self.name, changed(self.settings, settings, "settings"))

    def run(self, module: Any, family: ProblemFamily, **work: Any) -> tuple[nn.Module, Numbers]:
        """Continue to learn a prior from the pictures of a :class:`PriorPictures`."""
        pictures = cast(PriorPictures, family)
        learning = PriorLearning(
            pictures.training,
            pictures.held_out,
            self.settings,
            Path(work["folder"]),
            work["resume"],
            module,
        )
        prior, records = learning.run(work["progress"])
        return prior, {"stage": self.name, "parts": records}


def first_prior(settings: PriorSettings) -> RidgePrior:
    """Return the prior with which learning begins. It has no convex profiles yet."""
    parameters = PriorParameters(settings, settings.modulus).requires_grad_(False)
    return RidgePrior(parameters.filters(), parameters.table())


def prior_recipe(name: str, channels: int) -> Recipe:
    """Return the recipe of a prior of photographs.

    The first stage learns both kinds of profiles. The second one continues with the convex ones,
    as ``mirrordescent learn-prior bsds500 --start NAME --convex-share 1`` does.

    Args:
        name: Name of the entry.
        channels: Number of channels: 3 for colour, 1 for grey pictures.
    """
    first = PriorSettings(channels=channels, minutes=80.0, convex_share=0.15)
    later = PriorSettings(
        channels=channels, minutes=44.0, convex_share=1.0, rates=CONVEX_RATES, checks=3, seed=1
    )

    def family(directory: Path | None) -> ProblemFamily:
        training = bsds500("train", directory)
        return PriorPictures(training, bsds500("val", directory), first_prior(first))

    return Recipe(
        name,
        prior_description(channels),
        family,
        lambda generator, family: first_prior(first),
        [PriorStage("both", first), PriorStage("convex", later)],
        on=prior_family(channels),
        data=BSDS_TERMS,
        evaluate=None,
    )


PRIOR_RECIPES = {
    name: prior_recipe(name, channels)
    for name, channels in (("photo-prior", 3), ("photo-prior-grey", 1))
}
"""Recipes of the shipped priors."""
