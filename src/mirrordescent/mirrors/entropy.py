"""Entropies: Shannon on the positive orthant and the simplex, Burg, logit and hyperbolic."""

import math

import torch
from torch import Tensor, nn

from mirrordescent._internal.reproducible import apply_padded
from mirrordescent.domains import Box, NegativeOrthant, PositiveOrthant, Simplex
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.trees import sum_per_sample


class _Shannon(MirrorMap):
    """ψ(x) = Σ x log x − x:  ∇ψ(x) = log x."""

    proven = True
    smoothness = math.inf  # at 0

    def _potential(self, x: Tensor) -> Tensor:
        return sum_per_sample(torch.xlogy(x, x) - x)

    def _to_dual(self, x: Tensor) -> Tensor:
        return x.log()

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        return sum_per_sample(torch.xlogy(x, x / x0) - (x - x0))


class NegativeEntropy(_Shannon):
    """ψ(x) = Σ x log x − x on x > 0:  ∇ψ(x) = log x,  ∇ψ*(y) = exp y.

    B(x, x0) = Σ x log(x/x0) − x + x0. ψ is not strongly convex: its curvature 1/x tends to 0.
    """

    elementwise = True
    primal_domain = PositiveOrthant()
    strong_convexity = StrongConvexity(0.0, 2.0)

    def _to_primal(self, y: Tensor) -> Tensor:
        return y.exp()

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        return x * (-t * v).exp()


class SimplexEntropy(_Shannon):
    """ψ(x) = Σ x log x − x on the simplex:  ∇ψ(x) = log x,  ∇ψ*(y) = softmax y.

    The simplex is along the last dimension. Mirror descent with this map is the exponentiated
    gradient method. ψ is 1-strongly convex in ℓ₁ (Pinsker). Dual points that differ by a constant
    are the same linear form on the simplex, so ∇ψ(∇ψ*(y)) equals y up to a constant.
    """

    primal_domain = Simplex()
    strong_convexity = StrongConvexity(1.0, 1.0)

    def _to_primal(self, y: Tensor) -> Tensor:
        return y.softmax(-1)


class Burg(MirrorMap):
    """ψ(x) = −Σ log x on x > 0:  ∇ψ(x) = −1/x,  ∇ψ*(y) = −1/y on y < 0.

    B(x, x0) = Σ x/x0 − log(x/x0) − 1 is the Itakura–Saito divergence. ψ is not strongly convex. The
    dual domain is not all of Rⁿ, so a step that is too long leaves it.
    """

    proven = elementwise = True
    primal_domain = PositiveOrthant()
    dual_domain = NegativeOrthant()
    strong_convexity = StrongConvexity(0.0, 2.0)  # the curvature 1/x² tends to 0
    smoothness = math.inf  # at 0

    def _potential(self, x: Tensor) -> Tensor:
        return -sum_per_sample(x.log())

    def _to_dual(self, x: Tensor) -> Tensor:
        return -1 / x

    def _to_primal(self, y: Tensor) -> Tensor:
        return -1 / y

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        return x / (1 + t * x * v)

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        relative = (x - x0) / x0
        return sum_per_sample(relative - relative.log1p())


class Logit(MirrorMap):
    """ψ(x) = Σ (x−a)log(x−a) + (b−x)log(b−x) on the box a < x < b.

    ∇ψ(x) = log((x−a)/(b−x)),  ∇ψ*(y) = a + (b−a)·sigmoid y. ψ is 4/(b−a)-strongly convex in ℓ₂.

    Args:
        lower: Lower end a of every entry.
        upper: Upper end b of every entry.
    """

    proven = elementwise = True
    smoothness = math.inf  # at both ends

    def __init__(self, lower: float = 0.0, upper: float = 1.0) -> None:
        super().__init__()
        self.primal_domain: Box = Box(lower, upper)
        self.lower = self.primal_domain.lower
        self.upper = self.primal_domain.upper

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = 4/(b−a) in ℓ₂."""
        return StrongConvexity(4 / (self.upper - self.lower), 2.0)

    def _distances(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x - self.lower, self.upper - x

    def _potential(self, x: Tensor) -> Tensor:
        below, above = self._distances(x)
        return sum_per_sample(torch.xlogy(below, below) + torch.xlogy(above, above))

    def _to_dual(self, x: Tensor) -> Tensor:
        below, above = self._distances(x)
        return (below / above).log()

    def _to_primal(self, y: Tensor) -> Tensor:
        a = self.lower
        b = self.upper
        x = a + (b - a) * apply_padded(torch.sigmoid, y)
        return x.clamp(a, b)  # rounding may take a saturated entry past b

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        below, above = self._distances(x)
        below0, above0 = self._distances(x0)
        return sum_per_sample(
            torch.xlogy(below, below / below0) + torch.xlogy(above, above / above0)
        )


class _Hyperbolic(MirrorMap):
    """ψ(x) = Σ x arsinh(x/β) − √(x²+β²):  ∇ψ(x) = arsinh(x/β)."""

    proven = elementwise = True
    strong_convexity = StrongConvexity(0.0, 2.0)  # the curvature 1/√(x²+β²) tends to 0

    beta: float | Tensor

    @property
    @torch.no_grad()
    def smoothness(self) -> float:
        """1/β, at 0."""
        return 1 / float(self.beta)

    def _potential(self, x: Tensor) -> Tensor:
        return sum_per_sample(x * (x / self.beta).asinh() - (x.square() + self.beta**2).sqrt())

    def _to_dual(self, x: Tensor) -> Tensor:
        return (x / self.beta).asinh()


class HyperbolicEntropy(_Hyperbolic):
    """ψ(x) = Σ x arsinh(x/β) − √(x²+β²):  ∇ψ(x) = arsinh(x/β),  ∇ψ*(y) = β sinh y.

    This map interpolates between the Euclidean geometry (large β) and a signed entropy (small β).
    ψ is not strongly convex: its curvature 1/√(x²+β²) tends to 0.

    Args:
        beta: Scale β > 0.
    """

    symmetric = True

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        if not beta > 0:
            raise ValueError(f"HyperbolicEntropy needs beta > 0, got beta={beta}")
        self.beta = float(beta)

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.beta * apply_padded(torch.sinh, y)


class OrthantEntropy(_Hyperbolic):
    """ψ(x) = Σ x arsinh(x/β) − √(x²+β²) on x ≥ 0:  ∇ψ(x) = arsinh(x/β),  ∇ψ*(y) = β sinh max(y, 0).

    This is a learned geometry of the positive orthant. Steps are multiplicative where x ≫ β, as
    with an entropy, and additive where x ≪ β, so that an entry can leave 0 again. As β → ∞, the map
    tends to the projected Euclidean geometry. The learned parameter is log β.

    Args:
        beta: Initial scale β > 0.

    >>> import torch
    >>> OrthantEntropy(0.5).step(torch.tensor([[0.0, 1.0]]), torch.ones(1, 2), 0.1).detach()
    tensor([[0.0000, 0.8930]])
    """

    primal_domain = PositiveOrthant()
    defined_on_boundary = True

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        if not 0 < beta < math.inf:
            raise ValueError(f"OrthantEntropy needs a finite beta > 0, got beta={beta}")
        self.log_beta = nn.Parameter(torch.tensor(math.log(beta)))

    @property
    def beta(self) -> Tensor:  # type: ignore[override]  # computed from a learned parameter
        """β."""
        return self.log_beta.exp()

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.beta * apply_padded(torch.sinh, y.clamp(min=0))

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        """β sinh(arsinh(x/β) − tv) = ½(p e^−tv − (β²/p) e^tv) with p = x + √(x²+β²).

        The right-hand side is several times faster.
        """
        p = x + (x.square() + self.beta.square()).sqrt()
        shrink = (-t * v).exp()
        return (0.5 * (p * shrink - self.beta.square() / (p * shrink))).clamp(min=0)
