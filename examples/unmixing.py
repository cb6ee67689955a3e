"""Hyperspectral unmixing: how much of each of twelve minerals is in a pixel, given its spectrum?
Shares sum to 1.
"""

import torch

import mirrordescent as md
from mirrordescent.domains import Simplex
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators


class Unmixing(ProblemFamily):
    def __init__(self, bands=100, minerals=12):
        at = torch.linspace(0, 1, bands)[:, None]
        centres = torch.linspace(0.05, 0.95, minerals)
        dips = torch.exp(-((at - centres) ** 2) / 0.01) + 0.6 * torch.exp(
            -((at - centres.flip(0) ** 2) ** 2) / 0.03
        )
        self.spectra = 0.9 - 0.5 * dips + 0.2 * torch.sin(9 * centres * at)

    def draw(self, seeds):
        shares = []
        noise = []
        for generator in generators(seeds):
            raw = torch.rand(self.spectra.shape[1], generator=generator).pow(
                6
            )  # a few minerals in every pixel
            shares.append(raw / raw.sum())
            noise.append(0.01 * torch.randn(len(self.spectra), generator=generator))
        seen = torch.stack(shares) @ self.spectra.T + torch.stack(noise)
        problem = md.LeastSquares(self.spectra, seen, Simplex())
        return Draw(problem, problem.start())
