"""Battery scheduling: a linear program over a day, for many forecasts of prices and demand."""

import torch

import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators

HOURS = 24


class Battery(ProblemFamily):
    """Power bought b, charge c and discharge d of every hour, at the least cost ⟨price, b⟩.

    The demand is met, b + 0.9d − c = demand. The stored energy stays between 0 and 4, and ends
    where it began.
    """

    def __init__(self):
        eye = torch.eye(HOURS, dtype=torch.float64)
        none = torch.zeros(HOURS, HOURS, dtype=torch.float64)
        stored = torch.tril(torch.ones(HOURS, HOURS, dtype=torch.float64))
        balance = torch.cat([eye, -eye, 0.9 * eye], 1)
        storage = torch.cat([none, 0.95 * stored, -stored], 1)
        self.A = torch.cat([balance, storage, torch.eye(3 * HOURS, dtype=torch.float64)])
        low = torch.full((HOURS,), -2.0, dtype=torch.float64)  # half full at the start
        low[-1] = 0.0
        high = -low
        limits = torch.cat([torch.full((HOURS,), 10.0), torch.ones(2 * HOURS)]).double()
        self.lower = torch.cat([torch.zeros(HOURS).double(), low, torch.zeros_like(limits)])
        self.upper = torch.cat([torch.zeros(HOURS).double(), high, limits])
        costs = torch.ones(3 * HOURS, dtype=torch.float64)
        self.template = md.QP(None, costs, self.A, self.lower, self.upper)

    def draw(self, seeds):
        hours = torch.arange(HOURS)
        daily = torch.sin((hours - 8) * torch.pi / 12)
        costs = []
        demands = []
        for generator in generators(seeds):
            noise = torch.randn(2, HOURS, generator=generator)
            prices = (2 + 0.8 * daily + 0.4 * noise[0]).clamp(min=0.1)
            wear = torch.full((2 * HOURS,), 0.05)
            costs.append(torch.cat([prices, wear]))
            demands.append((3 + daily + 0.3 * noise[1]).clamp(min=1.0))
        demand = torch.stack(demands).double()
        others = (len(demand), len(self.lower) - HOURS)
        lower = torch.cat([demand, self.lower[HOURS:].expand(others)], 1)
        upper = torch.cat([demand, self.upper[HOURS:].expand(others)], 1)
        problem = self.template.updated(torch.stack(costs).double(), lower, upper)
        return Draw(problem, problem.start())
