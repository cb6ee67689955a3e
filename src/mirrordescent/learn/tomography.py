"""Poisson tomography of random ellipses."""

from __future__ import annotations

import torch
from torch import Tensor

from mirrordescent.data.phantoms import ellipse_phantoms
from mirrordescent.learn.families import SEEDS, Draw, ProblemFamily, generators
from mirrordescent.problems.beam import ParallelBeam
from mirrordescent.problems.tomography import PoissonTomography

MEAN_RAY = 0.32  # ∫x along a ray, on average over phantoms and rays of a detector that sees the whole square


class TomographyFamily(ProblemFamily):
    """Counts y ~ Poisson(Ax + b) of random ellipse phantoms x, started from constant images.

    Args:
        size: side of the images.
        angles: how many there are.
        counts: that phantoms send to a cell of the detector, on average.
        background: b.
        weight: ρ, of the roughness.
        terms: groups of angles.
    """

    def __init__(
        self,
        size: int = 64,
        angles: int = 40,
        *,
        counts: float = 45.0,
        background: float = 2.0,
        weight: float = 20.0,
        terms: int = 8,
    ) -> None:
        self.beam = ParallelBeam(size, angles, detectors=round(1.5 * size))
        self.exposure = counts / MEAN_RAY
        self.background, self.weight, self.terms = background, weight, terms

    def draw(self, seeds: Tensor) -> Draw:
        """Draw a phantom and its counts of every seed."""
        problem = self.simulate(seeds)[1]
        return Draw(problem, problem.start())

    def validation(self, count: int) -> Draw:
        """Draw phantoms of seeds beyond those that training draws."""
        return self.draw(torch.arange(SEEDS, SEEDS + count))

    def simulate(self, seeds: Tensor) -> tuple[Tensor, PoissonTomography]:
        """Return the phantoms of these seeds, (count, 1, size, size), and the problem to find them."""
        phantoms, counts = [], []
        for generator in generators(seeds):
            phantoms.append(ellipse_phantoms(1, self.beam.size, generator=generator))
            expected = self.exposure * self.beam.A(phantoms[-1]) + self.background
            counts.append(torch.poisson(expected, generator=generator))
        y = torch.cat(counts)
        problem = PoissonTomography(y, self.beam, self.exposure, self.background, self.weight, terms=self.terms)
        return torch.cat(phantoms), problem
