"""Isotropic total-variation deblurring of small pictures, each with a blur of its own."""

import torch

import mirrordescent as md
from mirrordescent.data.images import random_crops
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators
from mirrordescent.problems import Blur, gaussian_kernel


class Deblurring(ProblemFamily):
    def __init__(self, size=32):
        self.size = size
        self.pictures = [picture.mean(0, keepdim=True) for picture in md.data.bundled_photographs("train")]

    def draw(self, seeds):
        crops, kernels, noise = [], [], []
        for generator in generators(seeds):
            crops.append(random_crops(self.pictures, self.size, 1, generator))
            kernels.append(gaussian_kernel(0.8 + float(torch.rand(1, generator=generator)), radius=4))
            noise.append(0.01 * torch.randn(1, self.size, self.size, generator=generator))
        blur = Blur(torch.stack(kernels))
        seen = blur.A(torch.cat(crops)) + torch.stack(noise)
        problem = md.TVInpainting(seen, None, 0.01, operator=blur, isotropic=True)
        return Draw(problem, problem.start())
