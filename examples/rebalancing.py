"""Portfolio rebalancing: a quadratic program with equalities for budget and exposures, and caps."""

import torch

import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators


class Rebalancing(ProblemFamily):
    """Weights x of 100 assets with little risk ½⟨x, Px⟩ and a high expected return ⟨r, x⟩.

    They sum to 1, have no exposure to five factors, and lie between 0 and 5 %. Expected returns
    and the risk model are shared but for today's forecasts r.
    """

    def __init__(self, assets=100, factors=5):
        generator = torch.Generator().manual_seed(0)
        loadings = torch.randn(factors, assets, generator=generator, dtype=torch.float64)
        loadings = loadings - loadings.mean(1, keepdim=True)  # equal weights have no exposure
        variances = 0.5 + torch.rand(assets, generator=generator, dtype=torch.float64)
        ones = torch.ones(1, assets, dtype=torch.float64)
        self.loadings = loadings
        self.P = loadings.T @ loadings + torch.diag(variances)
        self.A = torch.cat([ones, loadings, torch.eye(assets, dtype=torch.float64)])
        self.lower = torch.cat([ones[0, :1], torch.zeros(factors + assets).double()])
        self.upper = torch.cat([self.lower[: 1 + factors], 0.05 * ones[0]])
        none = torch.zeros(assets, dtype=torch.float64)
        self.template = md.QP(self.P, none, self.A, self.lower, self.upper)

    def draw(self, seeds):
        assets = len(self.P)
        noise = [torch.randn(assets, generator=each).double() for each in generators(seeds)]
        problem = self.template.updated(q=-0.05 * torch.stack(noise))
        return Draw(problem, problem.start())
