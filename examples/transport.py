"""Entropic optimal transport between random mixtures on a grid of 12 × 12 points."""

import torch

import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators


class Transport(ProblemFamily):
    """Plans between two mixtures of three bumps, at the cost of the squared distance."""

    def __init__(self, size=12, epsilon=0.05):
        line = torch.linspace(0, 1, size)
        self.points = torch.cartesian_prod(line, line)
        self.costs = torch.cdist(self.points, self.points).square()
        self.epsilon = epsilon

    def draw(self, seeds):
        masses = torch.stack(
            [torch.stack([self.mixture(each), self.mixture(each)]) for each in generators(seeds)]
        )
        problem = md.EntropicTransport(self.costs, masses[:, 0], masses[:, 1], self.epsilon)
        return Draw(problem, problem.start())

    def mixture(self, generator):
        """Return the masses of all points."""
        centres = torch.rand(3, 2, generator=generator)
        distances = torch.cdist(self.points, centres).square()
        return (-distances / 0.02).exp().sum(1) + 1e-2
