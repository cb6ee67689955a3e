"""The saddle-point form of a problem, for primal-dual methods and lower bounds.

min_x F(x) + G(Kx) = min_x max_u F(x) + ⟨Kx, u⟩ − G*(u).
"""

import math
from typing import Protocol

from torch import Tensor

from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.trees import Point, Tree


class SaddlePoint(Protocol):
    """min_x max_u F(x) + ⟨Kx, u⟩ − G*(u), with a tensor x and a tensor or dict u.

    **Required:** ``K``, ``K_adjoint``, ``K_norm``, ``prox_F``, ``prox_G_conjugate`` and
    ``lower_bound``.

    **Optional:** ``F_smoothness``, ``F_quadratic``, ``grad_F`` and ``project``, if F is smooth on a
    set; ``F_convexity`` and ``argmin_F``, if F is strongly convex.
    """

    proximable: bool = True
    """Whether ``prox_F`` is available. Otherwise only methods that use ``grad_F`` apply."""

    def explicit(self) -> "SaddlePoint":
        """Return the form for methods that use ``grad_F``, if it differs from this one."""
        return self

    @property
    def K_norm(self) -> float:
        """An upper bound on ‖K‖."""

    def K_norm_in(self, mirror: MirrorMap) -> float:
        """An upper bound on ‖K(∇ψ*)^½‖, the norm of K in the geometry of a linear map."""
        return self.K_norm / mirror.convexity_in_l2() ** 0.5

    @property
    def ratio(self) -> float | None:
        """The ratio of PDHG's step sizes that is fastest to high accuracy; None if unknown."""

    @property
    def F_convexity(self) -> float:
        """Strong convexity of F in ℓ₂, or 0."""
        return 0.0

    @property
    def F_smoothness(self) -> float:
        """A Lipschitz constant of ∇F; infinite if F is not smooth."""
        return math.inf

    @property
    def F_quadratic(self) -> bool:
        """Whether F is quadratic on the set where it is finite. Then relaxed steps are longer."""
        return False

    def grad_F(self, x: Tensor) -> Tensor:
        """∇F(x), if F is smooth on the set where it is finite."""
        raise TypeError(f"the F of {type(self).__name__} has no gradient")

    def project(self, x: Tensor) -> Tensor:
        """Project onto the set where F is finite."""
        return x

    def argmin_F(self, w: Tensor) -> Tensor:
        """argmin_x F(x) + ⟨w, x⟩, if F is strongly convex."""
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
        """A proven lower bound from u and a primal point x that belongs to it: (batch,)."""
        return self.lower_bound(u)

    def tight_bound(self, u: Point, x: Tensor | None = None) -> Tensor:
        """A tighter lower bound, which may take longer to compute: (batch,)."""
        return self.lower_bound(u) if x is None else self.bound_of_pair(x, u)
