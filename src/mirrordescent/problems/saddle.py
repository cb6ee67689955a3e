"""The saddle-point form of a problem: what primal-dual methods, and bounds, are made of.

min_x F(x) + G(Kx) = min_x max_u F(x) + ⟨Kx, u⟩ − G*(u).
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mirrordescent.trees import Tree


class SaddlePoint(Protocol):
    """What a problem offers to primal-dual methods. x is a tensor, u a tensor or a dict."""

    @property
    def K_norm(self) -> float:
        """An upper bound on ‖K‖."""

    @property
    def F_convexity(self) -> float:
        """Strong convexity of F in ℓ₂, or 0."""

    @property
    def F_smoothness(self) -> float:
        """A Lipschitz constant of ∇F, where F is smooth."""

    @property
    def ratio(self) -> float:
        """The ratio of PDHG's steps with which high accuracy is reached fastest."""

    def grad_F(self, x: Tensor) -> Tensor:
        """∇F, where F is smooth."""

    def K(self, x: Tensor) -> Tree:
        """Kx."""

    def K_adjoint(self, u: Tree) -> Tensor:
        """Kᵀu."""

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """argmin_x' F(x') + ‖x' − x‖²/(2τ)."""

    def prox_G_conjugate(self, u: Tree, sigma: float | Tensor) -> Tree:
        """argmin_u' G*(u') + ‖u' − u‖²/(2σ)."""

    def argmin_F(self, w: Tensor) -> Tensor:
        """argmin_x F(x) + ⟨w, x⟩, where F is strongly convex."""

    def lower_bound(self, u: Tree) -> Tensor:
        """A proven lower bound on the optimal value from any u: (batch,)."""
