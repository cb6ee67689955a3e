"""Portfolio selection: weights of assets with low risk and high return, for many windows."""

import torch

from mirrordescent.domains import Simplex
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators
from mirrordescent.problems import Problem


class Markowitz(Problem):
    """f(x) = ½‖Rx‖²/n − τ⟨m, x⟩ on the simplex, for n centred returns R with means m."""

    convex = True
    domain = Simplex()

    def __init__(self, returns, trade=0.3):
        mean = returns.mean(1)
        super().__init__(len(returns), mean.shape[1:], R=returns - mean[:, None], m=mean)
        self.trade = trade

    def value(self, x):
        risk = 0.5 * torch.einsum("bij,bj->bi", self.R, x).square().mean(1)
        return risk - self.trade * (self.m * x).sum(1)

    def grad(self, x):
        returns = torch.einsum("bij,bj->bi", self.R, x)
        risk = torch.einsum("bij,bi->bj", self.R, returns) / self.R.shape[1]
        return risk - self.trade * self.m


class Portfolios(ProblemFamily):
    """Windows of 120 days; the returns of 40 assets depend on five common factors."""

    def __init__(self):
        self.loadings = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))

    def draw(self, seeds):
        returns = []
        for generator in generators(seeds):
            noise = torch.randn(120, 45, generator=generator)
            returns.append(0.05 + noise[:, :5] @ self.loadings + 0.7 * noise[:, 5:])
        problem = Markowitz(torch.stack(returns))
        return Draw(problem, problem.start())
