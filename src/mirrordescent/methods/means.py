"""Weighted means of the gradients a method is told, as a value that is carried along."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mirrordescent.trees import Tree, mix, tree_map


class Means(NamedTuple):
    """ḡ = Σ wᵢgᵢ and x̄ = Σ wᵢxᵢ over the gradients and points told so far, i = 1, …, ``told``,
    with wᵢ ∝ i².
    """

    told: int
    gradient: Tree
    point: Tree

    @classmethod
    def none(cls, like: Tree) -> Means:
        """Return the means before anything was told, which have no weight."""
        zero = tree_map(torch.zeros_like, like)
        return cls(0, zero, zero)

    @property
    def share(self) -> float:
        """The weight of what is told next: i² / Σⱼ j²."""
        return float(self.shares(1))

    def shares(self, steps: int) -> Tensor:
        """Return the weights of what is told in the next steps."""
        count = torch.arange(self.told + 1, self.told + steps + 1, dtype=torch.float64)
        return 6 * count / ((count + 1) * (2 * count + 1))

    def tell(self, x: Tree, gradient: Tree) -> Means:
        """Return the means with one more gradient, and its point."""
        return self.after(
            x, gradient if not self.told else mix(self.share, gradient, self.gradient)
        )

    def after(self, x: Tree, gradient: Tree) -> Means:
        """Return the means with one more point, given the new mean of the gradients."""
        same = not self.told or self.point is x  # the mean of a point with itself costs nothing
        return Means(self.told + 1, gradient, x if same else mix(self.share, x, self.point))
