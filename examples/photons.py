"""Deconvolution of photon counts: a blurred picture, so dark that the noise is that of single photons."""

import torch

import mirrordescent as md
from mirrordescent.data.images import random_crops
from mirrordescent.domains import PositiveOrthant
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators
from mirrordescent.problems import Blur, Problem, gaussian_kernel


class PhotonCounts(Problem):
    """f(x) = Σ (Ax + b) − y log(Ax + b) + ½ρ‖x‖² for counts y and a background b, on x ≥ 0."""

    convex, domain = True, PositiveOrthant()

    def __init__(self, y, background=2.0, ridge=1e-3):
        super().__init__(len(y), tuple(y.shape[1:]), y=y)
        self.blur, self.background, self.ridge = Blur(gaussian_kernel(1.0)), background, ridge

    def value(self, x):
        mean = self.blur.A(x) + self.background
        return (mean - self.y * mean.log() + 0.5 * self.ridge * x.square()).flatten(1).sum(1)

    def grad(self, x):
        return self.blur.A_adjoint(1 - self.y / (self.blur.A(x) + self.background)) + self.ridge * x

    def strong_convexity(self):
        return self.ridge


class Photons(ProblemFamily):
    pictures = tuple(picture.mean(0, keepdim=True) for picture in md.data.bundled_photographs("train"))

    def draw(self, seeds):
        crops = [random_crops(self.pictures, 24, 1, generator) for generator in generators(seeds)]
        mean = Blur(gaussian_kernel(1.0)).A(30 * torch.cat(crops)) + 2.0
        problem = PhotonCounts(torch.stack([torch.poisson(m, g) for m, g in zip(mean, generators(seeds), strict=True)]))
        return Draw(problem, problem.y.clone())
