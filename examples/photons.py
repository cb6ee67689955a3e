"""Deconvolution of photon counts: blurred pictures with Poisson noise."""

import torch

import mirrordescent as md
from mirrordescent.data.image_files import random_crops
from mirrordescent.learn import Draw
from mirrordescent.learn.families import Pictures, generators
from mirrordescent.problems import Blur, Roughness, gaussian_kernel


def grey_photographs(split):
    return [picture.mean(0, keepdim=True) for picture in md.data.bundled_photographs(split)]


class Photons(Pictures):
    def __init__(self, size=24):
        super().__init__(grey_photographs("train"), grey_photographs("test"), size)
        self.blur = Blur(gaussian_kernel(1.0))

    def make(self, pictures, seeds):
        crops = [random_crops(pictures, self.size, 1, generator) for generator in generators(seeds)]
        mean = self.blur.A(30 * torch.cat(crops)) + 2.0
        counts = torch.stack(list(map(torch.poisson, mean, generators(seeds))))
        problem = md.Composite(md.Counts(counts, self.blur, background=2.0), [Roughness(0.06)])
        return Draw(problem, counts)
