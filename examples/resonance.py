"""Magnetic resonance imaging: pictures from a fifth of their Fourier coefficients.

The coefficients lie on radial lines, which are rotated at random for every picture.
"""

import torch

import mirrordescent as md
from mirrordescent.data.image_files import random_crops
from mirrordescent.learn import Draw
from mirrordescent.learn.families import Pictures, generators
from mirrordescent.problems import Fourier, radial_mask


def grey_photographs(split):
    return [picture.mean(0, keepdim=True) for picture in md.data.bundled_photographs(split)]


class Resonance(Pictures):
    def __init__(self, size=32):
        super().__init__(grey_photographs("train"), grey_photographs("test"), size)

    def make(self, pictures, seeds):
        crops = []
        masks = []
        noise = []
        for generator in generators(seeds):
            crops.append(random_crops(pictures, self.size, 1, generator))
            masks.append(radial_mask(self.size, 9, turn=float(torch.rand(1, generator=generator))))
            noise.append(0.01 * torch.randn(2, self.size, self.size, generator=generator))
        scanner = Fourier(torch.stack(masks).unsqueeze(1), real=True)
        measured = scanner.A(torch.cat(crops)) + scanner.mask * torch.stack(noise)
        problem = md.Composite(md.SquaredError(measured, scanner), [md.TV(0.005, isotropic=True)])
        return Draw(problem, problem.start())
