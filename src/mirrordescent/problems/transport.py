"""Optimal transport with an entropy, in the potential of the sources."""

import math

import torch
from torch import Tensor

from mirrordescent._internal.arrays import as_tensor
from mirrordescent._internal.checks import require_positive
from mirrordescent._internal.rounding import rounded_down, unit
from mirrordescent.problems.base import Problem, in_double


class EntropicTransport(Problem):
    """The dual of optimal transport with an entropy, as a smooth convex function of n numbers.

    The transport problem between the distributions α and β is

    .. code-block:: none

        T = min ⟨C, P⟩ + ε KL(P | αβᵀ)   over P ≥ 0 with row sums α and column sums β

    Its potential x of the sources minimises

    .. code-block:: none

        f(x) = ε Σⱼ βⱼ log Σᵢ αᵢ exp((xᵢ − ⟨α, x⟩ − Cᵢⱼ)/ε),   min f = −T

    f does not change if a constant is added to x. Sinkhorn's algorithm minimises it too.

    Args:
        C: Costs, (n, m) or (batch, n, m).
        a: Masses of the sources, positive, (n,) or (batch, n). They are divided by their sum.
        b: Masses of the targets, positive, (m,) or (batch, m). They are divided by their sum.
        epsilon: Weight ε > 0 of the entropy, in the units of the costs.

    >>> C = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> problem = EntropicTransport(C, torch.ones(1, 2), torch.ones(2), epsilon=0.1)
    >>> problem.plan(problem.start())  # by symmetry, the potential 0 is optimal
    tensor([[[4.9998e-01, 2.2699e-05],
             [2.2699e-05, 4.9998e-01]]])
    """

    convex = True

    C: Tensor
    a: Tensor
    b: Tensor

    def __init__(self, C: Tensor, a: Tensor, b: Tensor, epsilon: float) -> None:
        C = as_tensor(C, "C")
        a = as_tensor(a, "a").to(C)
        b = as_tensor(b, "b").to(C)
        if C.ndim not in (2, 3) or 0 in C.shape[-2:]:
            raise ValueError(
                f"C must be (n, m) or (batch, n, m) and not empty, got {tuple(C.shape)}"
            )
        _require_masses(a, "a", C.shape[-2])
        _require_masses(b, "b", C.shape[-1])
        require_positive(epsilon=epsilon)
        sizes = {len(tensor) for tensor, own in ((C, 3), (a, 2), (b, 2)) if tensor.ndim == own}
        if len(sizes) > 1:
            raise ValueError(f"C, a and b must have the same batch size, got {sorted(sizes)}")
        super().__init__(next(iter(sizes), None), (C.shape[-2],), C=C, a=a, b=b)
        self.epsilon = float(epsilon)

    @property
    def alpha(self) -> Tensor:
        """The distribution of the sources."""
        return self.a / self.a.sum(-1, keepdim=True)

    @property
    def beta(self) -> Tensor:
        """The distribution of the targets."""
        return self.b / self.b.sum(-1, keepdim=True)

    def value(self, x: Tensor) -> Tensor:
        return (self.beta * self.epsilon * self._exponents(x).logsumexp(-2)).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        """Σⱼ βⱼ pⱼ − α: the row sums of the plan with exact column sums, minus α."""
        shares = self._exponents(x).softmax(-2)
        return (shares * self.beta.unsqueeze(-2)).sum(-1) - self.alpha

    def smoothness(self) -> float:
        """1/(2ε), since diag(p) − ppᵀ has no eigenvalue above ½ for a distribution p."""
        return 1 / (2 * self.epsilon)

    def features(self, x0: Tensor | None = None) -> dict[str, Tensor]:
        """The logarithm of the range of the costs, in units of ε."""
        count = self.batch or (1 if x0 is None else len(x0))
        ranges = (self._largest_range() / self.epsilon).log()
        return {"sharpness": ranges.expand(count)}

    def plan(self, x: Tensor) -> Tensor:
        """Return transport plans with row sums α and column sums β, (batch, n, m).

        The plan of a potential has the right column sums only. It is scaled and completed as by
        Altschuler, Weed and Rigollet (2017), so that both sums are right up to rounding.

        Args:
            x: Potentials, (batch, n).
        """
        alpha = self.alpha
        beta = self.beta
        P = self._exponents(x).softmax(-2) * beta.unsqueeze(-2)
        P = P * (alpha / P.sum(-1)).clamp(max=1).unsqueeze(-1)
        P = P * (beta / P.sum(-2)).clamp(max=1).unsqueeze(-2)
        rows = (alpha - P.sum(-1)).clamp(min=0)
        columns = (beta - P.sum(-2)).clamp(min=0)
        missing = columns.sum(-1).clamp(min=torch.finfo(P.dtype).tiny)
        return P + rows.unsqueeze(-1) * (columns / missing.unsqueeze(-1)).unsqueeze(-2)

    def bound_at(self, x: Tensor, convexity: float | None = None) -> Tensor:
        """Return f(x) − ⟨g, x⟩ − (R/2)‖g‖₁, rounded down, with g = ∇f(x).

        f lies above its tangent. There is a minimiser x* with entries in [−R/2, R/2], where R is
        the largest range of a column of C: xᵢ* = −ε log Σⱼ βⱼ exp((yⱼ − Cᵢⱼ)/ε) for the potential y
        of the targets, so that xᵢ* − xₖ* ≤ maxⱼ Cᵢⱼ − Cₖⱼ. Hence ⟨g, x*⟩ ≥ −(R/2)‖g‖₁.
        """
        problem, point = in_double(self, x)
        assert isinstance(problem, EntropicTransport)
        assert isinstance(point, Tensor)
        middle = (point.amax(-1, keepdim=True) + point.amin(-1, keepdim=True)) / 2
        point = point - middle  # the value is the same, and rounding errors are smaller
        value = problem.value(point)
        g = problem.grad(point)
        reach = point.abs().amax(-1) + problem._largest_range() / 2
        lost = problem.gradient_error(point, g) * reach + problem.value_error(point, value)
        inner = (g * point).sum(-1)
        decrease = inner + problem._largest_range() / 2 * g.abs().sum(-1)
        size = value.abs() + (g * point).abs().sum(-1) + decrease.abs()
        lost = lost + unit(2 * g.shape[-1]) * size
        return rounded_down(value - decrease - lost, x.dtype)

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the error of f by units of the numbers that the exponents are computed from."""
        size = self._size(x) + self.epsilon * (1 + math.log(self.C.shape[-2]))
        return 8 * unit(sum(self.C.shape[-2:]), x.dtype) * size

    def gradient_error(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Bound the error of ∇f in ℓ₁, and so in ℓ₂: shares have the errors of exponents."""
        size = self._size(x) / self.epsilon + 2 + math.log(self.C.shape[-2])
        return 8 * unit(sum(self.C.shape[-2:]), x.dtype) * size

    def _size(self, x: Tensor) -> Tensor:
        """Bound the magnitudes of the numbers of which exponents times ε are sums: (batch,)."""
        logarithms = self.alpha.log().abs().amax(-1)
        costs = self.C.abs().flatten(-2).amax(-1)
        return 2 * x.detach().abs().amax(-1) + costs + self.epsilon * logarithms

    def _exponents(self, x: Tensor) -> Tensor:
        """log αᵢ + (xᵢ − ⟨α, x⟩ − Cᵢⱼ)/ε, (batch, n, m)."""
        alpha = self.alpha
        centred = x - (alpha * x).sum(-1, keepdim=True)
        return alpha.log().unsqueeze(-1) + (centred.unsqueeze(-1) - self.C) / self.epsilon

    def _largest_range(self) -> Tensor:
        """The largest difference of two costs in a column, rounded up: (batch,) or ()."""
        ranges = (self.C.amax(-2) - self.C.amin(-2)).amax(-1)
        return ranges * (1 + unit(0, ranges.dtype))


def _require_masses(masses: Tensor, name: str, count: int) -> None:
    """Raise an error unless masses are positive and have the right shape."""
    if masses.ndim not in (1, 2) or masses.shape[-1] != count:
        raise ValueError(
            f"{name} must be ({count},) or (batch, {count}), as C has it; got {tuple(masses.shape)}"
        )
    if not bool((masses > 0).all()):
        raise ValueError(f"{name} must be positive: leave out points without mass")
