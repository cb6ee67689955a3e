"""A learned geometry of the positive orthant, between the Euclidean one and an entropy."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mirrordescent.domains import PositiveOrthant
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.trees import sum_per_sample


class OrthantEntropy(MirrorMap):
    """ψ(x) = Σ x arsinh(x/β) − √(x²+β²) on x ≥ 0:  ∇ψ(x) = arsinh(x/β),  ∇ψ*(y) = β sinh max(y, 0).

    Steps are multiplicative where x ≫ β, as with an entropy, and additive where x ≪ β, so that an entry that has
    become 0 can return. For β → ∞ it is the projected Euclidean geometry. What is learned is log β.

    >>> import torch
    >>> OrthantEntropy(0.5).step(torch.tensor([[0.0, 1.0]]), torch.ones(1, 2), 0.1).detach()
    tensor([[0.0000, 0.8930]])
    """

    proven = True
    elementwise = True
    primal_domain = PositiveOrthant()
    defined_on_boundary = True

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        if not 0 < beta < math.inf:
            raise ValueError(f"OrthantEntropy needs a finite beta > 0, got beta={beta}")
        self.log_beta = nn.Parameter(torch.tensor(math.log(beta)))

    @property
    def beta(self) -> Tensor:
        """β."""
        return self.log_beta.exp()

    def _potential(self, x: Tensor) -> Tensor:
        return sum_per_sample(x * (x / self.beta).asinh() - (x.square() + self.beta.square()).sqrt())

    def _to_dual(self, x: Tensor) -> Tensor:
        return (x / self.beta).asinh()

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.beta * y.clamp(min=0).sinh()

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        """β sinh(arsinh(x/β) − tv) = ½(p e^−tv − (β²/p) e^tv) with p = x + √(x²+β²): several times faster."""
        p = x + (x.square() + self.beta.square()).sqrt()
        shrink = (-t * v).exp()
        return (0.5 * (p * shrink - self.beta.square() / (p * shrink))).clamp(min=0)
