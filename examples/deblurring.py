"""Deblurring of small pictures with isotropic total variation; every picture has its own blur."""

import torch

import mirrordescent as md
from mirrordescent.data.image_files import random_crops
from mirrordescent.learn import Draw
from mirrordescent.learn.families import Pictures, generators
from mirrordescent.problems import Blur, gaussian_kernel


def grey_photographs(split):
    return [picture.mean(0, keepdim=True) for picture in md.data.bundled_photographs(split)]


class Deblurring(Pictures):
    def __init__(self, size=32):
        super().__init__(grey_photographs("train"), grey_photographs("test"), size)

    def make(self, pictures, seeds):
        crops = []
        kernels = []
        noise = []
        for generator in generators(seeds):
            crops.append(random_crops(pictures, self.size, 1, generator))
            width = 0.8 + float(torch.rand(1, generator=generator))
            kernels.append(gaussian_kernel(width, radius=4))
            noise.append(0.01 * torch.randn(1, self.size, self.size, generator=generator))
        blur = Blur(torch.stack(kernels))
        blurred = blur.A(torch.cat(crops)) + torch.stack(noise)
        problem = md.Composite(md.SquaredError(blurred, blur), [md.TV(0.005, isotropic=True)])
        return Draw(problem, problem.start())
