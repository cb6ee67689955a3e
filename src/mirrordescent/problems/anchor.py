"""A quadratic term that makes an objective strongly convex."""

from __future__ import annotations

from torch import Tensor

from mirrordescent._internal.rounding import positive_sum_error, unit
from mirrordescent.problems.differences import broadcast
from mirrordescent.problems.terms import Blocks, Term, largest
from mirrordescent.trees import fits, norm, sum_per_sample


class Anchor(Term):
    """(ρ/2)‖x − c‖², which pulls x towards a point c.

    With a small ρ > 0, a convex objective becomes strongly convex, and its minimum is proven by its
    gradient: f(x) − f* ≤ ‖∇f(x)‖²/(2ρ). The objective is another one then: minimisers move towards
    c where the data and the other terms are nearly flat.

    Args:
        weight: Weight ρ.
        centre: Point c, (batch, …), or a tensor that broadcasts to points.

    >>> import torch
    >>> Anchor(0.5, torch.ones(1, 2)).value(torch.tensor([[1.0, 3.0]]))
    tensor([1.])
    """

    kinked = False

    centre: Tensor

    def __init__(self, weight: float | Tensor, centre: Tensor) -> None:
        super().__init__(weight)
        if not bool(centre.isfinite().all()):
            raise ValueError("centre has NaN or infinite entries")
        self.register_buffer("centre", centre)

    def prepare(self, like: Tensor) -> None:
        """Check that the centre broadcasts to points."""
        if not fits(self.centre.shape, like.shape):
            raise ValueError(
                f"centre of shape {tuple(self.centre.shape)} must broadcast to points of shape "
                f"{tuple(like.shape)}"
            )
        self.to(like)

    @property
    def norm(self) -> float:
        return 1.0

    @property
    def curvature(self) -> float:
        """The largest ρ."""
        return largest(self.scaled_weight)

    @property
    def convexity(self) -> float:
        """The smallest ρ."""
        weight = self.scaled_weight
        return float(weight.detach().min()) if isinstance(weight, Tensor) else weight

    def value(self, x: Tensor) -> Tensor:
        return self.scaled_weight / 2 * sum_per_sample((x - self.centre).square())

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add ρ(x − c)."""
        return out + broadcast(self.scaled_weight, x) * (x - self.centre)

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Every difference is rounded once, and the value is a sum of squares."""
        return positive_sum_error(value, x[0].numel())

    def gradient_error(self, x: Tensor) -> Tensor:
        """Every entry is rounded a few times."""
        return 2 * unit(0, x.dtype) * self.curvature * norm(x - self.centre)

    def K(self, x: Tensor) -> Blocks:
        return {"entries": x}

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        return out + u["entries"]

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """(u − σc)/(1 + σ/ρ)."""
        entries = u["entries"]
        step = broadcast(sigma, entries)
        factor = 1 + broadcast(sigma / self.scaled_weight, entries)
        return {"entries": (entries - step * self.centre) / factor}

    def conjugate(self, u: Blocks) -> Tensor:
        """⟨c, u⟩ + ‖u‖²/(2ρ)."""
        entries = u["entries"]
        square = sum_per_sample(entries.square()) / (2 * self.scaled_weight)
        return square + sum_per_sample(self.centre * entries)

    def dual_gauge(self, u: Blocks) -> Tensor:
        """Return 0: every dual point is feasible."""
        return u["entries"].new_zeros(len(u["entries"]))
