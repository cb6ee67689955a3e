"""Isotropic total-variation deblurring of small pictures, each with a blur of its own."""

import torch

import mirrordescent as md
from mirrordescent.data.image_files import random_crops
from mirrordescent.learn import Draw
from mirrordescent.learn.families import Pictures, generators
from mirrordescent.problems import Blur, gaussian_kernel


class Deblurring(Pictures):
    def __init__(self, size=32):
        grey = [
            [picture.mean(0, keepdim=True) for picture in md.data.bundled_photographs(s)]
            for s in ("train", "test")
        ]
        super().__init__(*grey, size)

    def make(self, pictures, seeds):
        crops = []
        kernels = []
        noise = []
        for generator in generators(seeds):
            crops.append(random_crops(pictures, self.size, 1, generator))
            kernels.append(
                gaussian_kernel(0.8 + float(torch.rand(1, generator=generator)), radius=4)
            )
            noise.append(0.01 * torch.randn(1, self.size, self.size, generator=generator))
        blur = Blur(torch.stack(kernels))
        seen = blur.A(torch.cat(crops)) + torch.stack(noise)
        problem = md.Composite(md.SquaredError(seen, blur), [md.TV(0.005, isotropic=True)])
        return Draw(problem, problem.start())
