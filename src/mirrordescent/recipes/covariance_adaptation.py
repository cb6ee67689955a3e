"""Covariance matrix adaptation (CMA-ES).

It minimises noisy functions of a few dozen numbers without derivatives.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor


class CovarianceAdaptation:
    """The evolution strategy (μ/μ_w, λ)-CMA-ES.

    In every generation, the candidates x_i = m + s·N(0, C) are sorted by their losses:

    .. code-block:: none

        m⁺ = Σ w_i x_i                       the weighted mean of the better half
        C⁺ = (1 − c₁ − c_μ)C + c₁ ppᵀ + c_μ Σ w_i yyᵀ,        y_i = (x_i − m)/s
        log s⁺ = log s + (c_s/d)(‖p_s‖/E‖N(0, I)‖ − 1)

    The evolution paths p and p_s are running means of the steps of m. All constants have their
    usual values.

    Args:
        mean: Initial mean m.
        spread: Initial standard deviation of every coordinate.
        population: Number λ of candidates.

    Reference: Hansen, The CMA evolution strategy: a tutorial, 2016.
    """

    def __init__(self, mean: Tensor, spread: Tensor, population: int) -> None:
        n = len(mean)
        self.unit = spread.double()
        self.mean = mean.double().clone()
        self.population = population
        weights = (
            math.log((population + 1) / 2) - torch.arange(1, population // 2 + 1).double().log()
        ).clamp(min=0)
        self.weights = weights / weights.sum()
        mu = float(1 / self.weights.square().sum())
        self.mu = mu
        self.c_sigma = (mu + 2) / (n + mu + 5)
        self.c_c = (4 + mu / n) / (n + 4 + 2 * mu / n)
        self.damping = 1 + 2 * max(0.0, math.sqrt((mu - 1) / (n + 1)) - 1) + self.c_sigma
        self.c_1 = 2 / ((n + 1.3) ** 2 + mu)
        self.c_mu = min(1 - self.c_1, 2 * (mu - 2 + 1 / mu) / ((n + 2) ** 2 + mu))
        self.expected = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
        self.sigma = 1.0
        self.C = torch.eye(n, dtype=torch.float64)
        self.path = torch.zeros(n).double()
        self.path_sigma = torch.zeros(n).double()
        self.generation = 0

    def ask(self, generator: Generator) -> Tensor:
        """Draw candidates (λ, n)."""
        draws = torch.randn(
            self.population, len(self.mean), generator=generator, dtype=torch.float64
        )
        return self.mean + self.sigma * self.unit * (draws @ self._root().T)

    def tell(self, candidates: Tensor, losses: Tensor) -> None:
        """Update mean, spread and covariance with the losses of the candidates."""
        best = candidates[losses.argsort()[: len(self.weights)]]
        y = (best - self.mean) / (self.sigma * self.unit)
        step = self.weights @ y
        values, vectors = torch.linalg.eigh(self.C)
        whitened = vectors @ ((vectors.T @ step) / values.clamp(min=1e-12).sqrt())
        self.generation += 1
        keep = 1 - self.c_sigma
        self.path_sigma = (
            keep * self.path_sigma
            + math.sqrt(self.c_sigma * (2 - self.c_sigma) * self.mu) * whitened
        )
        length = float(self.path_sigma.norm())
        stalled = (
            length / math.sqrt(1 - keep ** (2 * self.generation))
            < (1.4 + 2 / (len(step) + 1)) * self.expected
        )
        self.path = (1 - self.c_c) * self.path + stalled * math.sqrt(
            self.c_c * (2 - self.c_c) * self.mu
        ) * step
        rank_mu = (self.weights[:, None, None] * y[:, :, None] * y[:, None]).sum(0)
        self.C = (
            (1 - self.c_1 - self.c_mu) * self.C
            + self.c_1 * torch.outer(self.path, self.path)
            + self.c_mu * rank_mu
        )
        self.mean = self.mean + self.sigma * self.unit * step
        self.sigma *= math.exp(min(1.0, self.c_sigma / self.damping * (length / self.expected - 1)))

    def _root(self) -> Tensor:
        values, vectors = torch.linalg.eigh(self.C)
        return vectors * values.clamp(min=1e-12).sqrt()
