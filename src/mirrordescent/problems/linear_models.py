"""Linear classifiers: logistic regression and the support vector machine."""

import copy
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent._internal.arrays import as_tensor
from mirrordescent._internal.checks import require_data, require_not_negative, require_positive
from mirrordescent._internal.rounding import rounded_down, sum_error, unit
from mirrordescent.parts import Config
from mirrordescent.problems.base import Problem
from mirrordescent.problems.interior_point import interior_point
from mirrordescent.problems.quadratics import known_norm, matvec
from mirrordescent.trees import norm


class _LinearModel(Problem):
    """f(x) = ½ Σⱼ ρⱼ xⱼ² + (C/n) Σᵢ ℓ(mᵢ), with margins mᵢ = yᵢ ⟨φᵢ, x⟩.

    With a bias, the last entry of φᵢ is 1, and its ρ is 0. A subclass writes ``_loss`` and
    ``_slope``.
    """

    convex = True
    never_below = 0.0

    signed: Tensor
    ridge: Tensor

    def __init__(
        self, features: Tensor, labels: Tensor, ridge: float, C: float, *, bias: bool
    ) -> None:
        features = as_tensor(features, "features")
        labels = as_tensor(labels, "labels").to(features.dtype)
        require_data(features=features, labels=labels)
        if features.ndim not in (2, 3) or 0 in features.shape[-2:]:
            raise ValueError(
                "features must be (n, d) or (batch, n, d) and not empty, "
                f"got {tuple(features.shape)}"
            )
        if labels.shape not in {features.shape[:-1], features.shape[-2:-1]}:
            raise ValueError(
                f"labels have shape {tuple(labels.shape)}, which does not fit features "
                f"of shape {tuple(features.shape)}"
            )
        if not bool((labels.abs() == 1).all()):
            raise ValueError("labels must be +1 or −1")
        weights = F.pad(features.new_full((features.shape[-1],), ridge), (0, int(bias)))
        signed = labels.unsqueeze(-1) * F.pad(features, (0, int(bias)), value=1.0)
        super().__init__(
            len(features) if features.ndim == 3 else None,
            weights.shape,
            signed=signed,
            ridge=weights,
        )
        self.C = float(C)

    def value(self, x: Tensor) -> Tensor:
        regulariser = 0.5 * (self.ridge * x.square()).sum(-1)
        return regulariser + self.C * self._loss(matvec(self.signed, x)).mean(-1)

    def grad(self, x: Tensor) -> Tensor:
        """Return the gradient; at a kink, the derivative of the flat side."""
        return self._grad_with(x, self.signed, self._slope)

    def strong_convexity(self) -> float:
        return float(self.ridge.min())

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the error of f by sums of magnitudes, because ℓ has slopes of at most 1."""
        rows, columns = self.signed.shape[-2:]
        lost = self.C / rows * self._margin_error(x).sum(-1) * (1 + unit(rows, x.dtype))
        return lost + sum_error(2 * value, rows + columns)

    def gradient_error(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Bound the error of ∇f by sums of magnitudes, because ℓ' has slopes of at most 1."""
        rows, columns = self.signed.shape[-2:]
        sizes = self.signed.abs()
        s = self._margin_error(x)
        slope = 2 * s + unit(0, x.dtype)
        pull = matvec(sizes.mT, slope) + sum_error(matvec(sizes.mT, 1 + s), rows)
        ridge = unit(0, x.dtype) * (self.ridge * x).abs()
        return norm(self.C / rows * pull + ridge) * (1 + unit(columns, x.dtype))

    def _margin_error(self, x: Tensor) -> Tensor:
        """γ⟨|φᵢ|, |x|⟩, a bound on the rounding error of every margin."""
        return sum_error(matvec(self.signed.abs(), x.abs()), self.signed.shape[-1])

    @property
    def terms(self) -> int:
        return self.signed.shape[-2]

    def grad_of_terms(self, x: Tensor, subset: Tensor) -> Tensor:
        """Return the gradient with the mean loss over some data points."""
        return self._grad_with(x, self.signed[..., subset, :], self._slope)

    def _grad_with(self, x: Tensor, rows: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
        return self.ridge * x + (self.C / rows.shape[-2]) * matvec(rows.mT, slope(matvec(rows, x)))

    def _loss(self, margin: Tensor) -> Tensor:
        """ℓ(m)."""
        raise NotImplementedError

    def _slope(self, margin: Tensor) -> Tensor:
        """ℓ'(m)."""
        raise NotImplementedError


class LogisticRegression(_LinearModel):
    """f(w) = (1/n) Σ log(1 + exp(−yᵢ⟨φᵢ, w⟩)) + (ρ/2)‖w‖².

    Args:
        features: Features φ, (n, d) or (batch, n, d).
        labels: Labels y = ±1, (n,) or (batch, n).
        ridge: Weight ρ ≥ 0.
    """

    def __init__(self, features: Tensor, labels: Tensor, ridge: float = 0.0) -> None:
        require_not_negative(ridge=ridge)
        super().__init__(features, labels, ridge, 1.0, bias=False)

    def smoothness(self) -> float:
        """‖Φ‖²/(4n) + ρ."""
        return known_norm(self, self.signed) ** 2 / (4 * self.terms) + float(self.ridge.max())

    @property
    def bounded_gradients(self) -> bool:
        """True without a ridge: the gradient of the loss is bounded, that of the ridge is not."""
        return not bool(self.ridge.any())

    def config(self) -> Config:
        return {"signed": self.signed, "ridge": float(self.ridge.max())}

    @classmethod
    def from_config(cls, signed: Tensor, ridge: float) -> Self:
        """Return the problem with features yᵢφᵢ and all labels 1, which has the same objective."""
        return cls(signed, torch.ones_like(signed[..., 0]), ridge)

    def _loss(self, margin: Tensor) -> Tensor:
        # Beyond the threshold log(1 + exp(−m)) is −m: by default beyond 20, with an error of 2e-9.
        return F.softplus(-margin, threshold=40.0)

    def _slope(self, margin: Tensor) -> Tensor:
        return -(-margin).sigmoid()


class SVM(_LinearModel):
    """f(w, b) = ½‖w‖² + (C/n) Σ max(0, 1 − yᵢ(⟨w, φᵢ⟩ + b)), with an unregularised bias b.

    A point is (w, b) in one tensor (batch, d + 1), with the bias last.

    Args:
        features: Features φ, (n, d) or (batch, n, d).
        labels: Labels y = ±1, (n,) or (batch, n).
        C: Weight of the loss.
    """

    def __init__(self, features: Tensor, labels: Tensor, C: float = 1.0) -> None:
        require_positive(C=C)
        super().__init__(features, labels, 1.0, C, bias=True)

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor]:
        """Solve the problem by an interior-point method."""
        x, lower, _ = self.minimiser_and_dual(tolerance)
        return x, lower

    def minimiser_and_dual(self, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return minimisers, lower bounds, and the dual points α that prove them, (batch, n)."""
        precise = copy.deepcopy(self).double()
        x, lower, alpha = interior_point(
            self.signed, self.ridge, self.C / self.terms, precise.value, tolerance
        )
        dtype = self.signed.dtype
        return x.to(dtype), rounded_down(lower, dtype), alpha

    def config(self) -> Config:
        """Return the signed features yᵢ(φᵢ, 1), whose last column holds the labels."""
        return {"signed": self.signed, "C": self.C}

    @classmethod
    def from_config(cls, signed: Tensor, C: float) -> Self:
        return cls(signed[..., :-1] * signed[..., -1:], signed[..., -1], C)

    def smoothed_grad(self, x: Tensor, width: float | Tensor) -> Tensor:
        """Return the gradient with a hinge of slope −1 → 0, linear in 1 − width ≤ m ≤ 1."""
        return self._grad_with(x, self.signed, lambda margin: -((1 - margin) / width).clamp(0, 1))

    def _loss(self, margin: Tensor) -> Tensor:
        return (1 - margin).clamp(min=0)

    def _slope(self, margin: Tensor) -> Tensor:
        return -(margin < 1).to(margin.dtype)
