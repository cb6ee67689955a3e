"""Maps with one learned weight per entry, on any domain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mirrordescent.domains import Simplex
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.parts import Config
from mirrordescent.trees import sum_per_sample


class Weighted(MirrorMap):
    """ψ(x) = Σ w_i φ(x_i):  ∇ψ(x) = w φ′(x),  ∇ψ*(y) = (φ′)⁻¹(y/w).

    φ may be the entropy of the orthant or of a box, or ½x². Entries with a large w move slowly. The
    learned parameters are log w, so that w stays positive.

    Args:
        mirror: Elementwise map of φ, whose dual domain is all of Rⁿ.
        shape: Shape of w, which broadcasts to a sample.

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
                f"Weighted needs an elementwise map, which {type(mirror).__name__} is not"
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
        """α min w, if the inner map states an α in ℓ₂."""
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
        # Each entry is a sample of the inner map, so that it returns one number per entry.
        entries = self.mirror._potential(x.reshape(-1, 1)).view_as(x)
        return sum_per_sample(self.weights * entries)

    def _to_dual(self, x: Tensor) -> Tensor:
        return self.weights * self.mirror._to_dual(x)

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.mirror._to_primal(y / self.weights)

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        return self.mirror._step(x, v / self.weights, t)


class WeightedSimplexEntropy(MirrorMap):
    """ψ(x) = Σ w_i x_i log x_i on the simplex:  ∇ψ(x) = w(log x + 1).

    ∇ψ*(y)_i = exp((y_i − ν)/w_i − 1), where ν makes the entries sum to 1. The sum is convex and
    decreasing in ν, so Newton's method from the left does not overshoot. With w = 1 the map is the
    entropy of the simplex. Dual points that differ by a constant are equivalent. The learned
    parameters are log w.

    Args:
        n: Number of entries of a sample.

    >>> import torch
    >>> WeightedSimplexEntropy(2).to_primal(torch.tensor([[0.0, 1.0]])).detach()
    tensor([[0.2689, 0.7311]])
    """

    proven = True
    primal_domain = Simplex()
    NEWTON = 60
    """Largest number of Newton steps.

    Far from ν each step at least halves the distance; close to ν it squares the distance.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
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
        # One more Newton step with a graph has the derivatives of the implicit function.
        terms = ((y - nu) / w - 1).exp()
        nu = nu + (terms.sum(-1, keepdim=True) - 1) / (terms.detach() / w).sum(-1, keepdim=True)
        x = ((y - nu) / w - 1).exp()
        return x / x.sum(-1, keepdim=True).detach()  # corrects the rounding error of the sum

    def _multiplier(self, y: Tensor, w: Tensor) -> Tensor:
        """Return ν. Newton's method starts at max(y − w), where the sum is at least 1."""
        nu = (y - w).amax(-1, keepdim=True)
        for _ in range(self.NEWTON):
            terms = ((y - nu) / w - 1).exp()
            total = terms.sum(-1, keepdim=True)
            # Newton's method on the logarithm of the sum, which is convex too, and linear if all w
            # are equal.
            change = total.log() * total / (terms / w).sum(-1, keepdim=True)
            nu = nu + change
            if not bool((change.abs() > 1e-7 * (1 + nu.abs())).any()):
                break
        return nu
