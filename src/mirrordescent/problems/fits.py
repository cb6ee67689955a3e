"""How well a point explains data that were seen through an operator: squares of errors, and
likelihoods of counts.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent._internal.checks import require_data, require_positive
from mirrordescent.domains import PositiveOrthant
from mirrordescent.problems.base import Problem
from mirrordescent.problems.operators import LinearOperator, norm_bound, require_adjoint
from mirrordescent.problems.transforms import parted
from mirrordescent.trees import fits, per_sample, sum_per_sample


class Fit(Problem):
    """f(x) = d(ZAx): a smooth convex d ≥ 0 of what is seen of x through an operator A, where a mask
    is 1.

    To add one, write ``misfit``, ``slope``, ``curvature``, ``prox_conjugate``, ``conjugate`` and
    ``balanced``.

    Args:
        y: what was observed, (batch, …); complex numbers become two channels, as
            :class:`~mirrordescent.problems.Fourier` has them.
        operator: anything with ``A`` and ``A_adjoint``, such as the physics of deepinv; None means
            A = I.
        mask: 1 or True where something was observed, broadcastable to y.
    """

    convex = True
    never_below = 0.0

    sample_shape: tuple[int, ...]
    y: Tensor
    mask: Tensor | None

    def __init__(
        self, y: Tensor, operator: LinearOperator | None = None, mask: Tensor | None = None
    ) -> None:
        if y.is_complex():
            y = parted(y.squeeze(1) if y.ndim == 4 else y)
        if y.ndim < 2 or 0 in y.shape[1:]:
            raise ValueError(f"y must be (batch, …), not empty, got {tuple(y.shape)}")
        shape = y.shape if operator is None else operator.A_adjoint(y).shape
        super().__init__(len(y), tuple(shape[1:]), y=y)
        self.operator = operator
        self.operator_norm = 1.0
        if operator is not None:
            like = y.new_zeros(shape)
            require_adjoint(operator, like, y)
            self.operator_norm = norm_bound(operator, like)
        self.register_buffer("mask", None if mask is None else _checked(mask, y))

    def misfit(self, z: Tensor) -> Tensor:
        """d(z) per sample: (batch,)."""
        raise NotImplementedError

    def slope(self, z: Tensor) -> Tensor:
        """∇d(z)."""
        raise NotImplementedError

    @property
    def curvature(self) -> float:
        """A Lipschitz constant of ∇d, where points of the domain are seen."""
        raise NotImplementedError

    def prox_conjugate(self, v: Tensor, sigma: float | Tensor) -> Tensor:
        """argmin_v' d*(v') + ‖v' − v‖²/(2σ)."""
        raise NotImplementedError

    def conjugate(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """d*(v) per sample, and the sum of the sizes of its terms, by which rounding is judged:
        (batch,) each.
        """
        raise NotImplementedError

    def balanced(self, v: Tensor, seen: Tensor, rest: Tensor, one_sided: bool) -> Tensor:
        """Return a v nearby with ⟨z, v⟩ + rest = 0, or ≥ 0 if that will do, for every z of
        ``seen``, (batch, n, …).
        """
        raise NotImplementedError

    def lifted(self, v: Tensor, w: Tensor) -> Tensor:
        """Return a v nearby for which w, which contains AᵀZv, becomes w ≥ 0; NaN where there is
        none.
        """
        raise NotImplementedError

    def value(self, x: Tensor) -> Tensor:
        return self.misfit(self.seen(x))

    def grad(self, x: Tensor) -> Tensor:
        """AᵀZ∇d(ZAx), in a fresh tensor, since an operator may return its own argument or
        memory.
        """
        return self.back(self.slope(self.seen(x))).clone()

    def smoothness(self) -> float:
        return self.curvature * self.operator_norm**2

    def seen(self, x: Tensor) -> Tensor:
        """ZAx."""
        return self.masked(x if self.operator is None else self.operator.A(x))

    def back(self, v: Tensor) -> Tensor:
        """AᵀZv."""
        return self.masked(v) if self.operator is None else self.operator.A_adjoint(self.masked(v))

    def masked(self, z: Tensor) -> Tensor:
        """Zz."""
        return z if self.mask is None else self.mask * z

    @property
    def separable(self) -> bool:
        """Whether f is a sum over the entries of x."""
        return self.operator is None


class SquaredError(Fit):
    """f(x) = (c/2)‖Z(Ax − y)‖²: the negative log-likelihood of data with Gaussian noise.

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
        return self.curvature / 2 * sum_per_sample(self._residual(z).square())

    def slope(self, z: Tensor) -> Tensor:
        """cZ(z − y)."""
        residual = self._residual(z)
        return residual if self.curvature == 1 else self.curvature * residual

    def grad(self, x: Tensor) -> Tensor:
        """cAᵀZ(Ax − y)."""
        residual = self.slope(x if self.operator is None else self.operator.A(x))
        # A fresh tensor, since an operator may return its own argument or memory.
        return residual if self.operator is None else self.operator.A_adjoint(residual).clone()

    def value(self, x: Tensor) -> Tensor:
        """(c/2)‖Z(Ax − y)‖²."""
        return self.misfit(x if self.operator is None else self.operator.A(x))

    def _residual(self, z: Tensor) -> Tensor:
        residual = z - self.y
        return residual if self.mask is None else residual.mul_(self.mask)

    def strong_convexity(self) -> float:
        """c, where every entry is observed directly."""
        return self.curvature if self.operator is None and self.mask is None else 0.0

    def start(self, batch: int | None = None) -> Tensor:
        """Return y, or the multiple of AᵀZy that explains it best."""
        pulled = self.back(self.y)
        if self.operator is None:
            return pulled.clone()
        seen = self.seen(pulled)
        best = sum_per_sample(seen * self.y) / sum_per_sample(seen.square()).clamp(
            min=torch.finfo(seen.dtype).tiny
        )
        return per_sample(best, pulled) * pulled

    def prox(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """(I + τcAᵀZA)⁻¹(x + τcAᵀZy)."""
        t = self.curvature * torch.as_tensor(tau, dtype=x.dtype, device=x.device)
        t = per_sample(t, x) if t.ndim == 1 else t
        pulled = x + t * self.back(self.y)
        if self.operator is None:
            return pulled / (1 + t * (1.0 if self.mask is None else self.mask))
        return cast(Any, self.operator).resolvent(pulled, t)

    @property
    def proximable(self) -> bool:
        """Whether there is a prox: with an operator that has a ``resolvent``."""
        return self.operator is None or (self.mask is None and hasattr(self.operator, "resolvent"))

    def argmin(self, w: Tensor) -> Tensor:
        """argmin_x f(x) + ⟨w, x⟩ where every entry is observed directly: y − w/c."""
        return self.y - w / self.curvature

    def prox_conjugate(self, v: Tensor, sigma: float | Tensor) -> Tensor:
        """(v − σZy)/(1 + σ/c)."""
        sigma = per_sample(sigma, v) if isinstance(sigma, Tensor) and sigma.ndim else sigma
        return (v - sigma * self.masked(self.y)) / (1 + sigma / self.curvature)

    def conjugate(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """‖v‖²/(2c) + ⟨y, v⟩ for a v = Zv."""
        square = v.square() / (2 * self.curvature)
        linear = self.y * v
        return sum_per_sample(square + linear), sum_per_sample(square + linear.abs())

    def balanced(self, v: Tensor, seen: Tensor, rest: Tensor, one_sided: bool) -> Tensor:
        """Project; of one-sided conditions, those that hold are left alone."""
        basis = seen.flatten(2)
        moments = basis @ v.flatten(1).unsqueeze(-1) + rest.unsqueeze(-1)
        if one_sided:
            moments = moments.clamp(max=0)
        coefficients = torch.linalg.pinv(basis @ basis.mT, hermitian=True) @ moments
        return v - (basis.mT @ coefficients).reshape(v.shape)

    def lifted(self, v: Tensor, w: Tensor) -> Tensor:
        """v + c·ZA1 with the least c, where AᵀZA1 > 0 is at work."""
        ones = self.seen(torch.ones_like(w))
        return v + per_sample(_least_step(w, self.back(ones), self.back(v.abs())), v) * ones


class Counts(Fit):
    """f(x) = KL(y, Ax + b) = Σᵢ yᵢ log(yᵢ/zᵢ) − yᵢ + zᵢ, z = Ax + b, on x ≥ 0: the likelihood of
    Poisson counts.

    Args:
        y: counts ≥ 0.
        operator: with entries that are not negative; None means A = I.
        background: b > 0.

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
            raise ValueError("y must be counts, which are not negative")
        super().__init__(y, operator)
        self.background = float(background)

    @property
    def curvature(self) -> float:
        """max y/b² ≥ y/z²."""
        return float(self.y.max()) / self.background**2

    def misfit(self, z: Tensor) -> Tensor:
        mean = z + self.background
        ratio = (
            self.y.clamp(min=torch.finfo(z.dtype).eps) / mean
        )  # not 0, of which log has no derivative
        return sum_per_sample(torch.xlogy(self.y, ratio) - self.y + mean)

    def slope(self, z: Tensor) -> Tensor:
        """1 − y/(z + b)."""
        return 1 - self.y / (z + self.background)

    def start(self, batch: int | None = None) -> Tensor:
        """Return constants that explain the number of counts."""
        ones = torch.ones_like(self.back(self.y))
        counts = sum_per_sample(self.y - self.background).clamp(min=1)
        level = counts / sum_per_sample(self.seen(ones)).clamp(min=torch.finfo(ones.dtype).tiny)
        return per_sample(level, ones) * ones

    def prox_conjugate(self, v: Tensor, sigma: float | Tensor) -> Tensor:
        """1 − w with the root w ≥ 0 of w² − (1 − v − σb)w = σy."""
        sigma = per_sample(sigma, v) if isinstance(sigma, Tensor) and sigma.ndim else sigma
        half = (1 - v - sigma * self.background) / 2
        return 1 - (half + (half.square() + sigma * self.y).sqrt())

    def conjugate(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Σ −y log(1 − v) − bv, for v ≤ 1; infinite if there is a v ≥ 1 with counts."""
        logs = torch.xlogy(self.y, (1 - v).clamp(min=0))
        value = sum_per_sample(-logs - self.background * v)
        beyond = (v > 1).flatten(1).any(1)
        return torch.where(beyond, torch.inf, value), sum_per_sample(
            logs.abs() + self.background * v.abs()
        )

    def balanced(self, v: Tensor, seen: Tensor, rest: Tensor, one_sided: bool) -> Tensor:
        """Move towards v = 1, as far as ⟨z, v⟩ + rest ≥ 0 needs for all z."""
        w = 1 - v
        have, more = (
            sum_per_sample((seen * each.unsqueeze(1)).flatten(0, 1)).reshape(len(v), -1)
            for each in (v, w)
        )
        have = have + rest
        least = torch.where(have < 0, -have / more, 0.0).amax(1).clamp(0, 1)
        return v + per_sample(least, v) * w

    def lifted(self, v: Tensor, w: Tensor) -> Tensor:
        """v + c(1 − v) with the least c."""
        up = 1 - v
        return (
            v + per_sample(_least_step(w, self.back(up), self.back(v.abs())).clamp(max=1), v) * up
        )


def _least_step(w: Tensor, up: Tensor, size: Tensor) -> Tensor:
    """Return the least c with w + c·up ≥ 0, rounding of sums of this size included, (batch,); NaN
    where none is.
    """
    short = (64 * torch.finfo(w.dtype).eps * size - w).clamp(min=0)
    c = torch.where(short > 0, short / up.clamp(min=0), 0.0).flatten(1).amax(1)
    return torch.where(c.isfinite(), c, torch.nan)


def _checked(mask: Tensor, y: Tensor) -> Tensor | None:
    """Return a mask of as many dimensions as y; None if it is 1 everywhere."""
    mask = mask.to(y) if mask.dtype == torch.bool else mask
    require_data(mask=mask, y=y[:0])  # which was looked at already
    if not fits(mask.shape, y.shape):
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}, which does not fit y of {tuple(y.shape)}"
        )
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("mask must be 0 (missing) or 1 (observed)")
    return (
        None
        if bool(mask.expand_as(y).all())
        else mask.reshape(*[1] * (y.ndim - mask.ndim), *mask.shape)
    )
