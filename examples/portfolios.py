"""Portfolios: shares of assets with little risk and much return, from estimates that change with
every window.
"""

import torch

from mirrordescent.domains import Simplex
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators
from mirrordescent.problems import Problem


class Markowitz(Problem):
    """f(x) = ½‖Rx‖²/n − τ⟨m, x⟩ on the simplex, with returns R around their means m."""

    convex = True
    domain = Simplex()

    def __init__(self, returns, trade=0.3):
        mean = returns.mean(1)
        super().__init__(len(returns), mean.shape[1:], R=returns - mean[:, None], m=mean)
        self.trade = trade

    def value(self, x):
        return 0.5 * torch.einsum("bij,bj->bi", self.R, x).square().mean(1) - self.trade * (
            self.m * x
        ).sum(1)

    def grad(self, x):
        risk = (
            torch.einsum("bij,bi->bj", self.R, torch.einsum("bij,bj->bi", self.R, x))
            / self.R.shape[1]
        )
        return risk - self.trade * self.m


class Portfolios(ProblemFamily):
    """Windows of 120 days of 40 assets that follow five common factors."""

    def __init__(self):
        self.loadings = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))

    def draw(self, seeds):
        days = [torch.randn(120, 45, generator=generator) for generator in generators(seeds)]
        returns = torch.stack(
            [0.05 + each[:, :5] @ self.loadings + 0.7 * each[:, 5:] for each in days]
        )
        problem = Markowitz(returns)
        return Draw(problem, problem.start())
