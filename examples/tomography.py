"""Sparse-view tomography: pictures that are nowhere negative, from shadows in twelve directions."""

import torch

import mirrordescent as md
from mirrordescent.data.image_files import random_crops
from mirrordescent.learn import Draw
from mirrordescent.learn.families import Pictures, generators
from mirrordescent.problems import ParallelBeam


class Tomography(Pictures):
    def __init__(self, size=32):
        grey = [
            [picture.mean(0, keepdim=True) for picture in md.data.bundled_photographs(s)]
            for s in ("train", "test")
        ]
        super().__init__(*grey, size)
        self.beam = ParallelBeam(size, angles=12, detectors=47)

    def make(self, pictures, seeds):
        crops = torch.cat(
            [random_crops(pictures, self.size, 1, generator) for generator in generators(seeds)]
        )
        clean = self.beam.A(crops)
        noise = torch.stack(
            [torch.randn(clean.shape[1:], generator=generator) for generator in generators(seeds)]
        )
        problem = md.Composite(
            md.SquaredError(clean + 0.01 * noise, self.beam), [md.TV(0.002), md.NonNegative()]
        )
        return Draw(problem, problem.start())
