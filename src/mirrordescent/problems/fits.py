"""Data fits: how well a point explains data that were observed through a linear operator."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent._internal.arrays import as_tensor
from mirrordescent._internal.checks import require_data, require_positive
from mirrordescent._internal.deprecation import rename_hooks
from mirrordescent._internal.rounding import positive_sum_error, sum_error, unit
from mirrordescent.domains import PositiveOrthant
from mirrordescent.problems.base import Problem
from mirrordescent.problems.differences import broadcast
from mirrordescent.problems.operators import LinearOperator, norm_bound, require_adjoint
from mirrordescent.problems.outside_operators import as_operator
from mirrordescent.problems.transforms import as_channels
from mirrordescent.trees import fits, norm, per_sample, sum_per_sample

_RENAMED_HOOKS = {
    "slope": "misfit_gradient",
    "seen": "observe",
    "back": "observe_adjoint",
    "masked": "apply_mask",
    "balanced": "satisfy_moments",
    "lifted": "lift_to_nonnegative",
}


class Fit(Problem):
    """f(x) = d(ZAx), with a smooth convex misfit d ≥ 0, a linear operator A and a mask Z.

    To add a fit, write

    - ``misfit``, ``misfit_gradient`` and ``curvature``, for gradient methods;
    - ``prox_conjugate``, for primal-dual methods;
    - ``conjugate``, ``satisfy_moments`` and ``lift_to_nonnegative``, for lower bounds.

    Args:
        y: Observed data, (batch, …). Complex numbers become two channels, as in
            :class:`~mirrordescent.problems.Fourier`.
        operator: Operator A: any object with ``A`` and ``A_adjoint``, such as a physics object of
            deepinv; None means the identity.
        mask: 1 or True where an entry of y was observed; must broadcast to y.
    """

    convex = True
    never_below = 0.0

    sample_shape: tuple[int, ...]
    y: Tensor
    mask: Tensor | None

    def __init__(
        self, y: Tensor, operator: LinearOperator | None = None, mask: Tensor | None = None
    ) -> None:
        y = as_tensor(y, "y")
        operator = None if operator is None else as_operator(operator)
        if y.is_complex():
            y = as_channels(y.squeeze(1) if y.ndim == 4 else y)
        if y.ndim < 2 or 0 in y.shape[1:]:
            raise ValueError(f"y must be (batch, …) and not empty, got shape {tuple(y.shape)}")
        shape = y.shape if operator is None else operator.A_adjoint(y).shape
        super().__init__(len(y), tuple(shape[1:]), y=y)
        self.operator = operator
        self.operator_norm = 1.0
        if operator is not None:
            like = y.new_zeros(shape)
            require_adjoint(operator, like, y)
            self.operator_norm = norm_bound(operator, like)
        self.register_buffer("mask", None if mask is None else _checked_mask(mask, y))

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        rename_hooks(cls, _RENAMED_HOOKS)

    # The misfit d.

    def misfit(self, z: Tensor) -> Tensor:
        """d(z) per sample: (batch,)."""
        raise NotImplementedError

    def misfit_gradient(self, z: Tensor) -> Tensor:
        """∇d(z)."""
        raise NotImplementedError

    @property
    def curvature(self) -> float:
        """A Lipschitz constant of ∇d on the image of the domain."""
        raise NotImplementedError

    def prox_conjugate(self, v: Tensor, sigma: float | Tensor) -> Tensor:
        """argmin_v' d*(v') + ‖v' − v‖²/(2σ)."""
        raise NotImplementedError

    # Lower bounds.

    def conjugate(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return d*(v) and the sum of the magnitudes of its summands, (batch,) each.

        The second number limits the rounding error of the first.
        """
        raise NotImplementedError

    def satisfy_moments(self, v: Tensor, observed: Tensor, rest: Tensor, one_sided: bool) -> Tensor:
        """Return a v' near v with ⟨z, v'⟩ + rest = 0 for every z in ``observed``.

        Args:
            v: Dual point.
            observed: Images ZAx of a few points x, (batch, n, …).
            rest: Numbers to be cancelled, (batch, n).
            one_sided: Whether ⟨z, v'⟩ + rest ≥ 0 is enough.
        """
        raise NotImplementedError

    def lift_to_nonnegative(self, v: Tensor, w: Tensor) -> Tensor:
        """Return a v' near v such that w + AᵀZ(v' − v) ≥ 0; NaN where there is none."""
        raise NotImplementedError

    def largest_observation(self, level: Tensor) -> Tensor:
        """A bound on ‖ZAx‖ over all x with d(ZAx) ≤ level, per sample: (batch,)."""
        return torch.full_like(level, torch.inf)

    def weighted_sum_bound(self, like: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        """Return a ≥ 0 and t such that ⟨a, x⟩ ≤ t for all x ≥ 0 with d(ZAx) ≤ level.

        By default a = (AᵀZ)(ZA1) and t = ‖ZA1‖ · ``largest_observation``.

        Args:
            like: Points, for their shape.
            level: Largest misfit, (batch,).
        """
        ones = self.observe(torch.ones_like(like))
        image = self.observe_adjoint(ones)
        size = norm(ones)
        slack = sum_error(2 * self.operator_norm * size, max(ones[0].numel(), like[0].numel()))
        a = torch.where(image == 0, 0.0, image - per_sample(slack, image))
        return a.clamp(min=0), size * self.largest_observation(level)

    # The operator and the mask.

    def observe(self, x: Tensor) -> Tensor:
        """ZAx."""
        return self.apply_mask(x if self.operator is None else self.operator.A(x))

    def observe_adjoint(self, v: Tensor) -> Tensor:
        """AᵀZv."""
        masked = self.apply_mask(v)
        return masked if self.operator is None else self.operator.A_adjoint(masked)

    def apply_mask(self, z: Tensor) -> Tensor:
        """Zz."""
        return z if self.mask is None else self.mask * z

    @property
    def separable(self) -> bool:
        """Whether f is a sum over the entries of x."""
        return self.operator is None

    def _count(self, x: Tensor) -> int:
        """Return the largest number of terms of a sum in Ax or Aᵀv."""
        return max(x[0].numel(), self.y[0].numel())

    # The problem.

    def value(self, x: Tensor) -> Tensor:
        return self.misfit(self.observe(x))

    def grad(self, x: Tensor) -> Tensor:
        """AᵀZ∇d(ZAx).

        The result is a copy, because an operator may return its argument or its own memory.
        """
        return self.observe_adjoint(self.misfit_gradient(self.observe(x))).clone()

    def smoothness(self) -> float:
        return self.curvature * self.operator_norm**2


class SquaredError(Fit):
    """f(x) = (c/2)‖Z(Ax − y)‖², the negative log-likelihood of data with Gaussian noise.

    Args:
        y: Observed data, (batch, …).
        operator: Operator A; None means the identity.
        mask: 1 or True where an entry of y was observed.
        curvature: Factor c.

    >>> import torch
    >>> SquaredError(torch.ones(1, 4)).value(torch.zeros(1, 4))
    tensor([2.])
    """

    def __init__(
        self,
        y: Tensor,
        operator: LinearOperator | None = None,
        mask: Tensor | None = None,
        curvature: float = 1.0,
    ) -> None:
        super().__init__(y, operator, mask)
        require_positive(curvature=curvature)
        self._curvature = float(curvature)

    @property
    def curvature(self) -> float:
        """c."""
        return self._curvature

    def misfit(self, z: Tensor) -> Tensor:
        """(c/2)‖Z(z − y)‖²."""
        return self.curvature / 2 * sum_per_sample(self._residual(z).square())

    def misfit_gradient(self, z: Tensor) -> Tensor:
        """cZ(z − y)."""
        residual = self._residual(z)
        return residual if self.curvature == 1 else self.curvature * residual

    def value(self, x: Tensor) -> Tensor:
        """(c/2)‖Z(Ax − y)‖²."""
        return self.misfit(x if self.operator is None else self.operator.A(x))

    def grad(self, x: Tensor) -> Tensor:
        """cAᵀZ(Ax − y)."""
        if self.operator is None:
            return self.misfit_gradient(x)
        residual = self.misfit_gradient(self.operator.A(x))
        # A copy, because an operator may return its argument or its own memory.
        return self.operator.A_adjoint(residual).clone()

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the error of (c/2)‖r‖², r = Z(Ax − y).

        Without an operator, r and the sum of squares have relative errors, and the value 0 of r = 0
        is exact. An operator adds an error of a sum over x to r.
        """
        if self.operator is None:
            error = positive_sum_error(value, self.y[0].numel())
            if bool((value == 0).any()):
                exact = ~self._residual(x).flatten(1).any(1)
                error = torch.where(exact, 0.0, error)
            return error
        residual = norm(self.misfit_gradient(self.observe(x)))
        error = self._residual_error(x, residual)
        changed = (residual * error + error.square() / 2) / self.curvature
        return 2 * changed + sum_error(value, self._count(x))

    def gradient_error(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Bound the error of cAᵀr, r = Z(Ax − y)."""
        residual = norm(self.misfit_gradient(self.observe(x)))
        error = self._residual_error(x, residual)
        if self.operator is not None:
            error = error + sum_error(residual, self._count(x))
        return 2 * self.operator_norm * error + unit(0, x.dtype) * norm(gradient)

    def _residual_error(self, x: Tensor, residual: Tensor) -> Tensor:
        """Bound the error of cr in ℓ₂: one rounding of r, and the sums of an operator."""
        error = unit(0, x.dtype) * residual
        if self.operator is None:
            return error
        return error + sum_error(2 * self.curvature * self.operator_norm * norm(x), self._count(x))

    def largest_observation(self, level: Tensor) -> Tensor:
        """‖Zy‖ + √(2·level/c)."""
        return 1.01 * (norm(self.apply_mask(self.y)) + (2 * level / self.curvature).sqrt())

    def _residual(self, z: Tensor) -> Tensor:
        residual = z - self.y
        return residual if self.mask is None else residual.mul_(self.mask)

    def strong_convexity(self) -> float:
        """c if every entry is observed directly, else 0."""
        return self.curvature if self.operator is None and self.mask is None else 0.0

    def start(self, batch: int | None = None) -> Tensor:
        """Return Zy; with an operator, the multiple of AᵀZy that fits y best."""
        direction = self.observe_adjoint(self.y)
        if self.operator is None:
            return direction.clone()
        # A power of two keeps squares from overflowing, and changes no digit.
        exponent = direction.detach().flatten(1).abs().amax(1).frexp().exponent
        direction = torch.ldexp(direction, per_sample(-exponent, direction))
        image = self.observe(direction)
        tiny = torch.finfo(image.dtype).tiny
        factor = sum_per_sample(image * self.y) / sum_per_sample(image.square()).clamp(min=tiny)
        return per_sample(factor, direction) * direction

    def prox(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """(I + τcAᵀZA)⁻¹(x + τcAᵀZy)."""
        t = self.curvature * torch.as_tensor(tau, dtype=x.dtype, device=x.device)
        t = per_sample(t, x) if t.ndim == 1 else t
        right = x + t * self.observe_adjoint(self.y)
        if self.operator is None:
            return right / (1 + t * (1.0 if self.mask is None else self.mask))
        return cast(Any, self.operator).resolvent(right, t)

    @property
    def proximable(self) -> bool:
        """Whether ``prox`` is available; an operator needs a method ``resolvent`` for that."""
        return self.operator is None or (self.mask is None and hasattr(self.operator, "resolvent"))

    def argmin(self, w: Tensor) -> Tensor:
        """argmin_x f(x) + ⟨w, x⟩ = y − w/c, if every entry is observed directly."""
        return self.y - w / self.curvature

    def prox_conjugate(self, v: Tensor, sigma: float | Tensor) -> Tensor:
        """(v − σZy)/(1 + σ/c)."""
        sigma = broadcast(sigma, v)
        return (v - sigma * self.apply_mask(self.y)) / (1 + sigma / self.curvature)

    def conjugate(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """‖v‖²/(2c) + ⟨y, v⟩ for a v = Zv."""
        square = v.square() / (2 * self.curvature)
        linear = self.y * v
        return sum_per_sample(square + linear), sum_per_sample(square + linear.abs())

    def satisfy_moments(self, v: Tensor, observed: Tensor, rest: Tensor, one_sided: bool) -> Tensor:
        """Project onto the violated conditions."""
        basis = observed.flatten(2)
        moments = basis @ v.flatten(1).unsqueeze(-1) + rest.unsqueeze(-1)
        if one_sided:
            moments = moments.clamp(max=0)
        coefficients = torch.linalg.pinv(basis @ basis.mT, hermitian=True) @ moments
        return v - (basis.mT @ coefficients).reshape(v.shape)

    def lift_to_nonnegative(self, v: Tensor, w: Tensor) -> Tensor:
        """v + s·ZA1 with the smallest sufficient s ≥ 0."""
        ones = self.observe(torch.ones_like(w))
        step = _smallest_step(w, self.observe_adjoint(ones), self.observe_adjoint(v.abs()))
        return v + per_sample(step, v) * ones


class Counts(Fit):
    """f(x) = KL(y, Ax + b) = Σᵢ yᵢ log(yᵢ/zᵢ) − yᵢ + zᵢ with z = Ax + b, on x ≥ 0.

    This is the negative log-likelihood of Poisson counts y with mean Ax + b, up to a constant.

    Args:
        y: Counts ≥ 0, (batch, …).
        operator: Operator A with non-negative entries; None means the identity.
        background: Background b > 0.

    >>> import torch
    >>> Counts(torch.full((1, 4), 2.0), background=1.0).value(torch.ones(1, 4))
    tensor([0.])
    """

    domain = PositiveOrthant()

    def __init__(
        self, y: Tensor, operator: LinearOperator | None = None, background: float = 1.0
    ) -> None:
        require_positive(background=background)
        if bool((y < 0).any()):
            raise ValueError(f"y must be counts ≥ 0, got {float(y.min()):g}")
        super().__init__(y, operator)
        self.background = float(background)

    @property
    def curvature(self) -> float:
        """max y/b²."""
        return float(self.y.max()) / self.background**2

    def misfit(self, z: Tensor) -> Tensor:
        """KL(y, z + b)."""
        mean = z + self.background
        # The logarithm has no derivative at 0. Near z + b = y the sum cancels: use log1p.
        counts = torch.where(self.y > 0, self.y, 1.0)
        excess = mean - self.y
        share = excess / counts
        near = (share.abs() < 0.5) & (self.y > 0)
        close = excess - self.y * torch.where(near, share, 0.0).log1p()
        far = torch.xlogy(self.y, counts / mean) + excess
        return sum_per_sample(torch.where(near, close, far))

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the error of Σ y log(y/z) − y + z, z = Ax + b.

        An error s of z in ℓ₂ changes the misfit by at most ‖1 − y/z‖s + (c/2)s². Without an
        operator, z is rounded once, by a unit of z in every entry. This changes the misfit by a
        unit of |z − y|. The logarithms near z = y are of the size |z − y| too.
        """
        mean = self.observe(x) + self.background
        count = self._count(x)
        excess = (mean - self.y).abs()
        logs = torch.xlogy(self.y, torch.where(self.y > 0, self.y, 1.0) / mean).abs()
        near = excess < 0.5 * self.y
        size = sum_per_sample(3 * excess + torch.where(near, 0.0, logs))
        units = unit(0, x.dtype)
        rounding = sum_error(size, count) + units**2 * sum_per_sample(self.y + mean)
        if self.operator is None:
            return 2 * rounding
        s = sum_error(2 * self.operator_norm * norm(x), count) + units * norm(mean)
        slope = norm(1 - self.y / mean)
        return 2 * (slope * s + self.curvature * s.square() / 2 + rounding)

    def gradient_error(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Bound the error of Aᵀ(1 − y/z), z = Ax + b."""
        mean = self.observe(x) + self.background
        count = self._count(x)
        s = sum_error(2 * self.operator_norm * norm(x) + norm(mean), count)
        error = self.curvature * s + unit(0, s.dtype) * norm(1 + self.y / mean)
        slope = norm(1 - self.y / mean)
        return 2 * self.operator_norm * (error + sum_error(slope, count))

    def largest_observation(self, level: Tensor) -> Tensor:
        """(√Σy + √level)², because KL(y, z) ≥ (√Σy − √Σz)², and ‖Ax‖ ≤ Σz for A ≥ 0."""
        total = sum_per_sample(self.y).to(level)
        return 1.01 * (total.sqrt() + level.sqrt()).square()

    def weighted_sum_bound(self, like: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        """⟨Aᵀ1, x⟩ = Σ(Ax) ≤ (√Σy + √level)²."""
        a = self.observe_adjoint(torch.ones_like(self.y).to(like))
        slack = unit(self.y[0].numel(), a.dtype)
        return a * (1 - slack), self.largest_observation(level)

    def misfit_gradient(self, z: Tensor) -> Tensor:
        """1 − y/(z + b)."""
        return 1 - self.y / (z + self.background)

    def start(self, batch: int | None = None) -> Tensor:
        """Return constant points whose expected total count is the observed one."""
        ones = torch.ones_like(self.observe_adjoint(self.y))
        counts = sum_per_sample(self.y - self.background).clamp(min=1)
        tiny = torch.finfo(ones.dtype).tiny
        level = counts / sum_per_sample(self.observe(ones)).clamp(min=tiny)
        return per_sample(level, ones) * ones

    def prox_conjugate(self, v: Tensor, sigma: float | Tensor) -> Tensor:
        """1 − w with the root w ≥ 0 of w² − (1 − v − σb)w = σy."""
        sigma = broadcast(sigma, v)
        half = (1 - v - sigma * self.background) / 2
        return 1 - (half + (half.square() + sigma * self.y).sqrt())

    def conjugate(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Σ −y log(1 − v) − bv for v ≤ 1; infinite if v > 1, or if v = 1 where y > 0."""
        # log1p, because the rounding error of 1 − v is large relative to a small v
        logs = torch.special.xlog1py(self.y, (-v).clamp(min=-1))
        value = sum_per_sample(-logs - self.background * v)
        outside = (v > 1).flatten(1).any(1)
        size = sum_per_sample(logs.abs() + self.background * v.abs())
        return torch.where(outside, torch.inf, value), size

    def satisfy_moments(self, v: Tensor, observed: Tensor, rest: Tensor, one_sided: bool) -> Tensor:
        """Move towards v = 1 by the smallest step with ⟨z, v⟩ + rest ≥ 0 for all z."""
        up = 1 - v

        def moments(dual: Tensor) -> Tensor:
            products = (observed * dual.unsqueeze(1)).flatten(0, 1)
            return sum_per_sample(products).reshape(len(v), -1)

        current = moments(v) + rest
        gain = moments(up)
        step = torch.where(current < 0, -current / gain, 0.0).amax(1).clamp(0, 1)
        return v + per_sample(step, v) * up

    def lift_to_nonnegative(self, v: Tensor, w: Tensor) -> Tensor:
        """v + s(1 − v) with the smallest sufficient s ≥ 0."""
        up = 1 - v
        step = _smallest_step(w, self.observe_adjoint(up), self.observe_adjoint(v.abs()))
        return v + per_sample(step.clamp(max=1), v) * up


def _smallest_step(w: Tensor, up: Tensor, size: Tensor) -> Tensor:
    """Return the smallest s ≥ 0 with w + s·up ≥ 0, (batch,); NaN where there is none.

    The rounding error of sums of magnitude ``size`` is taken into account.
    """
    deficit = (sum_error(size, w[0].numel()) - w).clamp(min=0)
    step = torch.where(deficit > 0, deficit / up.clamp(min=0), 0.0).flatten(1).amax(1)
    return torch.where(step.isfinite(), step, torch.nan)


def _checked_mask(mask: Tensor, y: Tensor) -> Tensor | None:
    """Return the mask with as many dimensions as y; None if it is 1 everywhere."""
    mask = mask.to(y) if mask.dtype == torch.bool else mask
    require_data(mask=mask, y=y[:0])  # compares types and devices; y itself has been checked
    if not fits(mask.shape, y.shape):
        raise ValueError(
            f"mask must broadcast to y of shape {tuple(y.shape)}, got shape {tuple(mask.shape)}"
        )
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("mask must be 0 (missing) or 1 (observed)")
    if bool(mask.expand_as(y).all()):
        return None
    return mask.reshape(*[1] * (y.ndim - mask.ndim), *mask.shape)
