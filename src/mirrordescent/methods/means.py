"""Weighted means of the gradients that a method received, as a value that states carry along."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mirrordescent.trees import Tree, mix, tree_map


class Means(NamedTuple):
    """Means of the gradients so far and of their points: ḡ = Σ wᵢgᵢ and x̄ = Σ wᵢxᵢ.

    The weights of i = 1, …, ``n`` are proportional to i² and add up to 1.
    """

    n: int
    gradient: Tree
    point: Tree

    @classmethod
    def empty(cls, like: Tree) -> Means:
        """Return the means of no gradients: zeros without weight."""
        zero = tree_map(torch.zeros_like, like)
        return cls(0, zero, zero)

    @property
    def next_weight(self) -> float:
        """The weight of the next gradient, i²/Σⱼ j²."""
        return float(self.next_weights(1))

    def next_weights(self, steps: int) -> Tensor:
        """Return the weight of each of the next gradients in the mean of all gradients up to it."""
        i = torch.arange(self.n + 1, self.n + steps + 1, dtype=torch.float64)
        return 6 * i / ((i + 1) * (2 * i + 1))

    def add(self, x: Tree, gradient: Tree) -> Means:
        """Return the means with one more gradient and its point."""
        if self.n == 0:
            return Means(1, gradient, x)
        weight = self.next_weight
        mean = mix(weight, gradient, self.gradient)
        if self.point is x:  # the mean of a point with itself costs nothing
            return Means(self.n + 1, mean, x)
        return Means(self.n + 1, mean, mix(weight, x, self.point))
