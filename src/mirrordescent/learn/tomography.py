"""Poisson tomography of random ellipses."""

from __future__ import annotations

import torch
from torch import Tensor

from mirrordescent.data.phantoms import ellipse_phantoms
from mirrordescent.data.tomography import ParallelBeam
from mirrordescent.learn.families import SEEDS, Draw, ProblemFamily, generators
from mirrordescent.problems.tomography import PoissonTomography


class TomographyFamily(ProblemFamily):
    """Counts y ~ Poisson(Ax + b) of random ellipse phantoms x, started from constant images.

    Args:
        size: side of the images.
        angles: how many there are.
        counts: per cell of the detector, on average over phantoms.
        background: b.
        weight: ρ, of the roughness.
        terms: groups of angles.
    """

    def __init__(
        self,
        size: int = 64,
        angles: int = 40,
        *,
        counts: float = 50.0,
        background: float = 2.0,
        weight: float = 20.0,
        terms: int = 8,
    ) -> None:
        self.beam = ParallelBeam(size, angles, detectors=round(1.5 * size))
        self.exposure = counts / MEAN_RAY
        self.background, self.weight, self.terms = background, weight, terms

    def draw(self, seeds: Tensor) -> Draw:
        """Draw a phantom and its counts of every seed."""
        problem = self.problem(self.phantoms(seeds), seeds)
        return Draw(problem, problem.start())

    def validation(self, count: int) -> Draw:
        """Draw phantoms of seeds beyond those that training draws."""
        return self.draw(torch.arange(SEEDS, SEEDS + count))

    def phantoms(self, seeds: Tensor) -> Tensor:
        """Return the phantoms of these seeds, (count, 1, size, size)."""
        return torch.cat([ellipse_phantoms(1, self.beam.size, generator=generator) for generator in generators(seeds)])

    def problem(self, phantoms: Tensor, seeds: Tensor) -> PoissonTomography:
        """Count what phantoms send along the rays, with a seed for each."""
        expected = self.exposure * self.beam.A(phantoms) + self.background
        drawn = [torch.poisson(e, generator=g) for e, g in zip(expected, generators(seeds), strict=True)]
        return PoissonTomography(
            torch.stack(drawn), self.beam, self.exposure, self.background, self.weight, terms=self.terms
        )


MEAN_RAY = 0.36  # ∫x along a ray, on average over phantoms and rays of a detector that sees the whole square
