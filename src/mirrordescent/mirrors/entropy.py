"""Entropies: Shannon's on the positive orthant and the simplex, Burg's, that of a box, and the
hyperbolic one.
"""

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

    B(x, x0) = Σ x log(x/x0) − x + x0. Not strongly convex: the curvature 1/x tends to 0.
    """

    elementwise = True
    primal_domain = PositiveOrthant()
    strong_convexity = StrongConvexity(0.0, 2.0)

    def _to_primal(self, y: Tensor) -> Tensor:
        return y.exp()

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        return x * (-t * v).exp()


class SimplexEntropy(_Shannon):
    """ψ(x) = Σ x log x − x on the simplex:  ∇ψ(x) = log x,  ∇ψ*(y) = softmax y, along the last
    dimension.

    Mirror descent with this map is exponentiated gradient. 1-strongly convex in ℓ₁ (Pinsker). Dual
    points that differ by a constant are the same linear form on the simplex, so ∇ψ(∇ψ*(y)) is y up
    to a constant.
    """

    primal_domain = Simplex()
    strong_convexity = StrongConvexity(1.0, 1.0)

    def _to_primal(self, y: Tensor) -> Tensor:
        return y.softmax(-1)


class Burg(MirrorMap):
    """ψ(x) = −Σ log x on x > 0:  ∇ψ(x) = −1/x,  ∇ψ*(y) = −1/y on y < 0.

    B(x, x0) = Σ x/x0 − log(x/x0) − 1, the Itakura–Saito divergence. Not strongly convex, and the
    dual domain is not all of Rⁿ: a step that is too long leaves it.
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
        excess = (x - x0) / x0
        return sum_per_sample(excess - excess.log1p())


class Logit(MirrorMap):
    """ψ(x) = Σ (x−a)log(x−a) + (b−x)log(b−x):  ∇ψ(x) = log((x−a)/(b−x)),  ∇ψ*(y) = a +
    (b−a)·sigmoid y.

    The map of a box (a, b) in every entry; 4/(b−a)-strongly convex in ℓ₂.
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
        return (a + (b - a) * apply_padded(torch.sigmoid, y)).clamp(
            a, b
        )  # rounding may carry a saturated entry past b

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        (below, above) = self._distances(x)
        (below0, above0) = self._distances(x0)
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

    Between the Euclidean geometry (β large) and a signed entropy (β small). Not strongly convex:
    the curvature 1/√(x²+β²) tends to 0.
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

    A learned geometry of the positive orthant: steps are multiplicative where x ≫ β, as with an
    entropy, and additive where x ≪ β, so that an entry that has become 0 can return. As β → ∞ it
    becomes the projected Euclidean geometry. What is learned is log β.

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
    def beta(self) -> Tensor:  # type: ignore[override]  # computed from what is learned
        """β."""
        return self.log_beta.exp()

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.beta * apply_padded(torch.sinh, y.clamp(min=0))

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        """β sinh(arsinh(x/β) − tv) = ½(p e^−tv − (β²/p) e^tv) with p = x + √(x²+β²): several times
        faster.
        """
        p = x + (x.square() + self.beta.square()).sqrt()
        shrink = (-t * v).exp()
        return (0.5 * (p * shrink - self.beta.square() / (p * shrink))).clamp(min=0)
