"""Sparse-view tomography: non-negative pictures from projections in twelve directions."""

import torch

import mirrordescent as md
from mirrordescent.data.image_files import random_crops
from mirrordescent.learn import Draw
from mirrordescent.learn.families import Pictures, generators
from mirrordescent.problems import ParallelBeam


def grey_photographs(split):
    return [picture.mean(0, keepdim=True) for picture in md.data.bundled_photographs(split)]


class Tomography(Pictures):
    def __init__(self, size=32):
        super().__init__(grey_photographs("train"), grey_photographs("test"), size)
        self.beam = ParallelBeam(size, angles=12, detectors=47)

    def make(self, pictures, seeds):
        crops = [random_crops(pictures, self.size, 1, g) for g in generators(seeds)]
        clean = self.beam.A(torch.cat(crops))
        noise = torch.stack([torch.randn(clean.shape[1:], generator=g) for g in generators(seeds)])
        data = md.SquaredError(clean + 0.01 * noise, self.beam)
        problem = md.Composite(data, [md.TV(0.002), md.NonNegative()])
        return Draw(problem, problem.start())
