"""Hyperspectral unmixing: the shares of twelve minerals in a pixel, from its spectrum."""

import torch

import mirrordescent as md
from mirrordescent.domains import Simplex
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators


class Unmixing(ProblemFamily):
    def __init__(self, bands=100, minerals=12):
        band = torch.linspace(0, 1, bands)[:, None]
        centres = torch.linspace(0.05, 0.95, minerals)
        narrow = torch.exp(-((band - centres) ** 2) / 0.01)
        wide = torch.exp(-((band - centres.flip(0) ** 2) ** 2) / 0.03)
        self.spectra = 0.9 - 0.5 * (narrow + 0.6 * wide) + 0.2 * torch.sin(9 * centres * band)

    def draw(self, seeds):
        shares = []
        noise = []
        for generator in generators(seeds):
            # The sixth power makes most shares small: a pixel has few minerals.
            amounts = torch.rand(self.spectra.shape[1], generator=generator).pow(6)
            shares.append(amounts / amounts.sum())
            noise.append(0.01 * torch.randn(len(self.spectra), generator=generator))
        measured = torch.stack(shares) @ self.spectra.T + torch.stack(noise)
        problem = md.LeastSquares(self.spectra, measured, Simplex())
        return Draw(problem, problem.start())
