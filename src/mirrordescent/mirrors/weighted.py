"""Weights that are learned, on maps for any domain: each entry gets a geometry of its own
strength.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mirrordescent.domains import Simplex
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.parts import Config
from mirrordescent.trees import sum_per_sample


class Weighted(MirrorMap):
    """ψ(x) = Σ w_i φ(x_i) for a map that acts entry by entry:  ∇ψ(x) = w φ′(x),  ∇ψ*(y) =
    (φ′)⁻¹(y/w).

    With the entropy of the orthant, of a box, or ½x² for φ: entries with a large w move slowly.
    What is learned is log w, so w stays positive.

    Args:
        mirror: φ, with a dual domain of all numbers.
        shape: the shape of w, which broadcasts to a sample.

    >>> import torch
    >>> from mirrordescent.mirrors import NegativeEntropy
    >>> Weighted(NegativeEntropy(), 2).step(torch.ones(1, 2), torch.ones(1, 2), 0.1).detach()
    tensor([[0.9048, 0.9048]])
    """

    elementwise = True
    per_entry = ("log_weights",)

    def __init__(self, mirror: MirrorMap, shape: int | Sequence[int]) -> None:
        super().__init__()
        if not mirror.elementwise:
            raise TypeError(
                f"Weighted needs a map that acts entry by entry, which {type(mirror).__name__} does not"
            )
        self.mirror = mirror
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.log_weights = nn.Parameter(torch.zeros(self.shape))
        self.primal_domain = mirror.primal_domain
        self.dual_domain = mirror.dual_domain
        self.proven = mirror.proven
        self.exact = mirror.exact
        self.defined_on_boundary = mirror.defined_on_boundary

    def config(self) -> Config:
        return {"mirror": self.mirror, "shape": list(self.shape)}

    @property
    def weights(self) -> Tensor:
        """w."""
        return self.log_weights.exp()

    @property
    def strong_convexity(self) -> StrongConvexity | None:
        """α min w, in the norm of the inner map if that is ℓ₂."""
        stated = self.mirror.strong_convexity
        if stated is None or (stated.p != 2 and stated.alpha):
            return None
        return StrongConvexity(stated.alpha * float(self.weights.detach().min()), 2.0)

    @property
    def smoothness(self) -> float | None:
        """L max w."""
        stated = self.mirror.smoothness
        return None if stated is None else stated * float(self.weights.detach().max())

    def _potential(self, x: Tensor) -> Tensor:
        # One number for every entry: each is a sample of its own to the inner map.
        entries = self.mirror._potential(x.reshape(-1, 1)).view_as(x)
        return sum_per_sample(self.weights * entries)

    def _to_dual(self, x: Tensor) -> Tensor:
        return self.weights * self.mirror._to_dual(x)

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.mirror._to_primal(y / self.weights)

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        return self.mirror._step(x, v / self.weights, t)


class WeightedSimplexEntropy(MirrorMap):
    """ψ(x) = Σ w_i x_i log x_i on the simplex:  ∇ψ(x) = w(log x + 1),  ∇ψ*(y)_i = exp((y_i − ν)/w_i
    − 1).

    ν is the number with which the entries sum to 1, found by Newton's method from the left, where
    it cannot overshoot: Σ exp((y_i − ν)/w_i − 1) is convex and falls with ν. What is learned is log
    w. With w = 1 it is the entropy of the simplex. Dual points that differ by a constant are the
    same.

    >>> import torch
    >>> WeightedSimplexEntropy(2).to_primal(torch.tensor([[0.0, 1.0]])).detach()
    tensor([[0.2689, 0.7311]])
    """

    proven = True
    primal_domain = Simplex()
    # steps at most: each halves the distance to ν at least, far from it, and squares it close by
    NEWTON = 60

    def __init__(self, n: int) -> None:
        super().__init__()
        if n < 1:
            raise ValueError(f"a simplex needs at least one entry, got {n}")
        self.n = int(n)
        self.log_weights = nn.Parameter(torch.zeros(self.n))

    @property
    def weights(self) -> Tensor:
        """w."""
        return self.log_weights.exp()

    @property
    def strong_convexity(self) -> StrongConvexity:
        """min w, in ℓ₁."""
        return StrongConvexity(float(self.weights.detach().min()), 1.0)

    @property
    def smoothness(self) -> float:
        """Infinite, at 0."""
        return torch.inf

    def _potential(self, x: Tensor) -> Tensor:
        return sum_per_sample(self.weights * torch.xlogy(x, x))

    def _to_dual(self, x: Tensor) -> Tensor:
        return self.weights * (x.log() + 1)

    def _to_primal(self, y: Tensor) -> Tensor:
        w = self.weights
        with torch.no_grad():
            nu = self._multiplier(y.detach(), w.detach())
        # One more step of Newton's method, with a graph: it has the derivatives of the implicit
        # function.
        terms = ((y - nu) / w - 1).exp()
        nu = nu + (terms.sum(-1, keepdim=True) - 1) / (terms.detach() / w).sum(-1, keepdim=True)
        x = ((y - nu) / w - 1).exp()
        return x / x.sum(-1, keepdim=True).detach()  # which differs from 1 by rounding

    def _multiplier(self, y: Tensor, w: Tensor) -> Tensor:
        """Return ν, from below: at ν = max(y − w) one term is 1, so the sum is at least 1."""
        nu = (y - w).amax(-1, keepdim=True)
        for _ in range(self.NEWTON):
            terms = ((y - nu) / w - 1).exp()
            total = terms.sum(-1, keepdim=True)
            # Newton's method on the logarithm of the sum, which is flatter, convex too, and linear
            # for equal w.
            change = total.log() * total / (terms / w).sum(-1, keepdim=True)
            nu = nu + change
            if not bool((change.abs() > 1e-7 * (1 + nu.abs())).any()):
                break
        return nu
