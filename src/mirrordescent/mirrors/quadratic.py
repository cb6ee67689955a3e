"""Quadratic potentials: Euclidean, on all of Rⁿ or on a convex set, and diagonal."""

from torch import Tensor

from mirrordescent.domains import Domain, WholeSpace
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.parts import register_tensor
from mirrordescent.trees import fits, sum_per_sample


class Euclidean(MirrorMap):
    """ψ(x) = ½‖x‖² on a closed convex set X:  ∇ψ(x) = x,  ∇ψ*(y) = P_X(y).

    On all of Rⁿ, mirror descent with this map is gradient descent. On a set it is projected
    gradient descent (primal-stored) or dual averaging (dual-stored).

    Args:
        domain: Set X; all of Rⁿ by default.

    >>> import torch
    >>> from mirrordescent.domains import Simplex
    >>> Euclidean(Simplex()).to_primal(torch.tensor([[0.6, 0.8, -1.0]]))
    tensor([[0.4000, 0.6000, 0.0000]])
    """

    proven = defined_on_boundary = True
    strong_convexity = StrongConvexity(1.0, 2.0)
    smoothness = 1.0

    def __init__(self, domain: Domain | None = None) -> None:
        super().__init__()
        self.domain = self.primal_domain = domain or WholeSpace()
        self.elementwise = self.symmetric = isinstance(self.primal_domain, WholeSpace)

    def diagonal(self) -> float | None:
        return 1.0 if isinstance(self.primal_domain, WholeSpace) else None

    def _potential(self, x: Tensor) -> Tensor:
        return 0.5 * sum_per_sample(x.square())

    def _to_dual(self, x: Tensor) -> Tensor:
        return x

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.primal_domain._project(y)

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        return self._potential(x - x0)

    def extra_repr(self) -> str:
        return type(self.primal_domain).__name__


class Diagonal(MirrorMap):
    """ψ(x) = ½ xᵀDx with D = diag(d) > 0:  ∇ψ(x) = d·x,  ∇ψ*(y) = y/d.

    Mirror descent with this map is gradient descent preconditioned by D⁻¹.

    Args:
        d: Diagonal d > 0, which broadcasts to a sample; an ``nn.Parameter`` is learned.
    """

    proven = elementwise = linear = True
    per_entry = ("d",)

    d: Tensor

    def __init__(self, d: Tensor | float) -> None:
        super().__init__()
        register_tensor(self, "d", d)
        if not bool((self.d > 0).all() and self.d.isfinite().all()):
            raise ValueError("Diagonal needs a finite d > 0 in every entry")

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = min d in ℓ₂."""
        return StrongConvexity(float(self.d.detach().min()), 2.0)

    @property
    def smoothness(self) -> float:
        """max d."""
        return float(self.d.detach().max())

    def diagonal(self) -> Tensor:
        return self.d.detach()

    def _d(self, x: Tensor) -> Tensor:
        if not fits(self.d.shape, x.shape):
            raise ValueError(
                f"d of shape {tuple(self.d.shape)} must broadcast to points of shape "
                f"{tuple(x.shape)}"
            )
        return self.d

    def _potential(self, x: Tensor) -> Tensor:
        return 0.5 * sum_per_sample(self._d(x) * x.square())

    def _to_dual(self, x: Tensor) -> Tensor:
        return self._d(x) * x

    def _to_primal(self, y: Tensor) -> Tensor:
        return y / self._d(y)
