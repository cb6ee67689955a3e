"""Quantile regression as a linear program: the upper quartile of many responses."""

import torch

import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators

LARGEST = 10.0
"""Bound on coefficients, which is not active. With it, lower bounds are proven."""


class Quantiles(ProblemFamily):
    """Coefficients w that minimise the mean of 0.75 max(r, 0) + 0.25 max(−r, 0), r = y − Xw.

    The residual is r = a − b with a, b ≥ 0. All responses y have the same features X.
    """

    def __init__(self, samples=80, features=6, quantile=0.75):
        generator = torch.Generator().manual_seed(0)
        X = torch.randn(samples, features, generator=generator, dtype=torch.float64)
        X[:, 0] = 1.0
        self.X = X
        eye = torch.eye(samples, dtype=torch.float64)
        width = features + 2 * samples
        self.A = torch.cat([torch.cat([X, eye, -eye], 1), torch.eye(width, dtype=torch.float64)])
        bounds = torch.full((features,), LARGEST, dtype=torch.float64)
        none = torch.zeros(2 * samples, dtype=torch.float64)
        self.lower = torch.cat([-bounds, none])
        self.upper = torch.cat([bounds, none + torch.inf])
        above = torch.full((samples,), quantile / samples, dtype=torch.float64)
        below = torch.full((samples,), (1 - quantile) / samples, dtype=torch.float64)
        costs = torch.cat([torch.zeros(features, dtype=torch.float64), above, below])
        y = torch.zeros(samples, dtype=torch.float64)
        self.template = md.QP(
            None, costs, self.A, torch.cat([y, self.lower]), torch.cat([y, self.upper])
        )

    def draw(self, seeds):
        responses = []
        for generator in generators(seeds):
            w = torch.randn(self.X.shape[1], generator=generator).double()
            noise = torch.randn(len(self.X), generator=generator).double()
            scale = 0.5 + 0.5 * torch.rand(len(self.X), generator=generator).double()
            responses.append(self.X @ w + scale * noise)
        y = torch.stack(responses)
        lower = torch.cat([y, self.lower.expand(len(y), -1)], 1)
        upper = torch.cat([y, self.upper.expand(len(y), -1)], 1)
        problem = self.template.updated(l=lower, u=upper)
        return Draw(problem, problem.start())
