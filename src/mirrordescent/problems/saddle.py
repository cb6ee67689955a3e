"""The saddle-point form of a problem: what primal-dual methods, and bounds, are made of.

min_x F(x) + G(Kx) = min_x max_u F(x) + ⟨Kx, u⟩ − G*(u).
"""

import math
from typing import Protocol

from torch import Tensor

from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.trees import Point, Tree


class SaddlePoint(Protocol):
    """What a problem offers to primal-dual methods. x is a tensor, u a tensor or a dict.

    Subclasses need not say anything about an F that is neither smooth nor strongly convex.
    """

    proximable: bool = True
    """Whether F has a prox; if not, methods that use its gradient are left."""

    def explicit(self) -> "SaddlePoint":
        """Return the form for methods that use the gradient of F, if there is another one."""
        return self

    @property
    def K_norm(self) -> float:
        """An upper bound on ‖K‖."""

    def K_norm_in(self, mirror: MirrorMap) -> float:
        """An upper bound on ‖K(∇ψ*)^½‖, for a linear map: ‖K‖ in its geometry."""
        return self.K_norm / mirror.convexity_in_l2() ** 0.5

    @property
    def ratio(self) -> float | None:
        """The ratio of PDHG's steps that reaches high accuracy fastest; None: not known."""

    @property
    def F_convexity(self) -> float:
        """Strong convexity of F in ℓ₂, or 0."""
        return 0.0

    @property
    def F_smoothness(self) -> float:
        """A Lipschitz constant of ∇F; infinite if F is not smooth."""
        return math.inf

    def grad_F(self, x: Tensor) -> Tensor:
        """∇F, where F is smooth."""
        raise TypeError(f"the F of {type(self).__name__} has no gradient")

    def project(self, x: Tensor) -> Tensor:
        """Return the nearest point of the set on which F is finite, where the rest of F is
        smooth.
        """
        return x

    def argmin_F(self, w: Tensor) -> Tensor:
        """argmin_x F(x) + ⟨w, x⟩, where F is strongly convex."""
        raise TypeError(f"the F of {type(self).__name__} is not strongly convex")

    def K(self, x: Tensor) -> Tree:
        """Kx."""

    def K_adjoint(self, u: Point) -> Tensor:
        """Kᵀu."""

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """argmin_x' F(x') + ‖x' − x‖²/(2τ)."""

    def prox_G_conjugate(self, u: Point, sigma: float | Tensor) -> Tree:
        """argmin_u' G*(u') + ‖u' − u‖²/(2σ)."""

    def lower_bound(self, u: Point) -> Tensor:
        """A proven lower bound on the optimal value, from any u: (batch,)."""

    def bound_of_pair(self, x: Tensor, u: Point) -> Tensor:
        """The same, where a primal point that goes with u may help."""
        return self.lower_bound(u)

    def tight_bound(self, u: Point, x: Tensor | None = None) -> Tensor:
        """A better one, if it is worth some time."""
        return self.lower_bound(u) if x is None else self.bound_of_pair(x, u)
