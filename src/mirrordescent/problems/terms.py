"""Terms that are added to a data fit: norms of linear images of a point, and a ridge."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mirrordescent._internal.arrays import as_tensor
from mirrordescent._internal.checks import require_positive
from mirrordescent._internal.deprecation import rename_hooks
from mirrordescent._internal.rounding import positive_sum_error, rounded_down, sum_error
from mirrordescent.parts import Part
from mirrordescent.problems.differences import broadcast
from mirrordescent.problems.operators import LinearOperator, norm_bound, require_adjoint
from mirrordescent.problems.outside_operators import as_operator
from mirrordescent.trees import dot, norm, sum_per_sample

Blocks = dict[str, Tensor]
"""The image Kx of a point, or a dual point u, as named tensors (batch, …)."""

_RENAMED_HOOKS = {
    "excess": "dual_gauge",
    "absorbs": "can_solve_adjoint",
    "absorbs_constants": "constants_in_range",
    "absorb": "solve_adjoint",
    "charge": "residual_bound",
}


class Term(Part, nn.Module):
    """h·g(Kx), with a weight h > 0, a convex function g ≥ 0 and a linear operator K.

    If ``weakly_convex`` is True, g need not be convex; if ``nonnegative`` is False, g may be
    negative.

    Kx is a dict of blocks. A dual point u has the same blocks.

    To add a term, write

    - ``value``, ``add_gradient`` and ``norm``, for gradient methods;
    - ``K``, ``add_adjoint`` and ``prox_conjugate``, for primal-dual methods;
    - ``conjugate`` and ``dual_gauge``, for lower bounds.

    Then state the facts that differ from the defaults: ``kinked``, ``blocks``, ``curvature`` and
    ``convexity``.

    On an unbounded set, dual points uⱼ of the terms and v of the data prove a lower bound only if
    AᵀZv + ΣⱼKⱼᵀuⱼ = 0. If a term can solve Kᵀu = w, it corrects any dual point so that this holds.
    Such a term sets ``can_solve_adjoint`` and writes ``solve_adjoint`` and ``residual_bound``.

    Args:
        weight: Weight h, a number or a tensor (batch,) with one weight per sample. A tensor of
            shape () that requires derivatives is the weight of all samples.
    """

    kind = "term"

    weight: float | Tensor

    factor = 1.0
    """Factor by which a problem multiplies the weights of all its terms."""

    def __init__(self, weight: float | Tensor) -> None:
        super().__init__()
        if isinstance(weight, Tensor) and weight.ndim:
            if weight.ndim != 1 or not bool(((weight > 0) & weight.isfinite()).all()):
                raise ValueError(
                    "weight must be positive, a number or a tensor (batch,); "
                    f"got a tensor of shape {tuple(weight.shape)}"
                )
            self.register_buffer("weight", weight)
        elif isinstance(weight, Tensor) and weight.requires_grad:
            require_positive(weight=float(weight.detach()))
            self.register_buffer("weight", weight)
        else:
            self.weight = float(weight)
            require_positive(weight=self.weight)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        rename_hooks(cls, _RENAMED_HOOKS)

    @property
    def scaled_weight(self) -> float | Tensor:
        """h = factor · weight: a number, or (batch,)."""
        return self.weight if self.factor == 1 else self.factor * self.weight

    @property
    def weight_error(self) -> float:
        """A bound on the relative rounding error of ``scaled_weight``."""
        if not isinstance(self.weight, Tensor) or abs(math.frexp(self.factor)[0]) == 0.5:
            return 0.0
        return float(torch.finfo(self.weight.dtype).eps)

    def charged(self, bound: Tensor) -> Tensor:
        """Return a bound on the minimum of f from one for the rounded product ``scaled_weight``.

        If f₀ ≥ 0, the dual function D is concave with D(0) ≥ 0, so that D(αu) ≥ αD(u). If u is
        feasible for the rounded weight, αu with α = 1 − 2 ``weight_error`` is feasible for the
        exact one.
        """
        if not self.weight_error:
            return bound
        smaller = bound.double() * (1 - 2 * self.weight_error)
        return torch.where(bound > 0, rounded_down(smaller, bound.dtype), bound)

    @property
    def height(self) -> float | Tensor:
        """Another name of ``scaled_weight``."""
        return self.scaled_weight

    def prepare(self, like: Tensor) -> None:
        """Check the shape of points, and compute shape-dependent constants.

        A problem calls this once, when it is constructed.

        Args:
            like: Batch of points with the shape, type and device of the problem.
        """

    # Facts.

    kinked = True
    """Whether g has kinks, which ``add_gradient`` can smooth."""

    linearised = False
    """Whether a bound at a point uses the tangent of the term instead of the dual point 0."""

    @property
    def weakly_convex(self) -> bool:
        """Whether g is not convex, but ``convexity`` is finite and negative."""
        return False

    @property
    def nonnegative(self) -> bool:
        """Whether g ≥ 0."""
        return True

    blocks: tuple[str, ...] = ("entries",)
    """Names of the blocks of Kx."""

    @property
    def norm(self) -> float:
        """An upper bound on ‖K‖."""
        raise NotImplementedError

    @property
    def curvature(self) -> float:
        """A Lipschitz constant of the gradient; infinite if the term has kinks."""
        return math.inf

    @property
    def convexity(self) -> float:
        """A constant μ such that the term minus (μ/2)‖x‖² is convex.

        It is negative if the term is only weakly convex.
        """
        return 0.0

    # Value and gradient.

    def value(self, x: Tensor) -> Tensor:
        """h·g(Kx) per sample: (batch,)."""
        raise NotImplementedError

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add the gradient to ``out`` and return the sum.

        Args:
            out: Tensor that may be overwritten.
            x: Points.
            width: Width over which kinks are smoothed; 0 means one subgradient.
        """
        raise NotImplementedError

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the rounding error of ``value`` at a point: (batch,).

        By default the term is treated as a sum of as many terms as x and Kx have entries, each with
        a relative error. Override this if the sums in Kx cancel.

        Args:
            x: Points.
            value: Values of the term as computed, (batch,).
        """
        count = x[0].numel() + sum(block[0].numel() for block in self.K(x).values())
        return sum_error(2 * value, count)

    def gradient_error(self, x: Tensor) -> Tensor:
        """Bound the rounding error of the gradient at a point in ℓ₂: (batch,).

        By default the term is treated as a sum over Kx, whose gradient is at most its curvature
        times ‖x‖.
        """
        count = x[0].numel() + sum(block[0].numel() for block in self.K(x).values())
        return sum_error(2 * self.curvature * norm(x), count)

    # The saddle-point form.

    def K(self, x: Tensor) -> Blocks:
        """Kx."""
        raise NotImplementedError

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        """Add Kᵀu to ``out``, which may be overwritten, and return the sum."""
        raise NotImplementedError

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """argmin_u' (hg)*(u') + ‖u' − u‖²/(2σ).

        For σ = 0 this is the projection onto the domain of the conjugate.
        """
        raise NotImplementedError

    # Lower bounds.

    def conjugate(self, u: Blocks) -> Tensor:
        """(hg)*(u) per sample, for a u in the domain of the conjugate: (batch,).

        Bounds shrink dual points, so they need (hg)*(αu) ≤ α²(hg)*(u) for 0 ≤ α ≤ 1.
        """
        raise NotImplementedError

    def dual_gauge(self, u: Blocks) -> Tensor:
        """The least r ≥ 0 such that u/r is in the domain of the conjugate, per sample: (batch,).

        For a norm g this is the dual norm of u divided by h. It is 0 if the conjugate is finite
        everywhere.
        """
        raise NotImplementedError

    @property
    def can_solve_adjoint(self) -> bool:
        """Whether ``solve_adjoint`` is available."""
        return False

    constants_in_range = True
    """Whether Kᵀu = w has a solution for a w that is constant in every channel."""

    def solve_adjoint(self, w: Tensor, one_sided: bool) -> Blocks:
        """Return a u with Kᵀu = w; or with w − Kᵀu ≥ 0, if ``one_sided``.

        If w is not in the range of Kᵀ, the equation is solved for its projection onto the range.
        """
        raise NotImplementedError

    def residual_bound(self, w: Tensor, level: Tensor) -> Tensor:
        """An upper bound on ⟨w, x⟩ over all x with h·g(Kx) ≤ level, per sample: (batch,).

        Args:
            w: Residual of ``solve_adjoint``, such as rounding errors.
            level: Value of f at some point, which minimisers do not exceed, (batch,).
        """
        raise NotImplementedError

    def deviation_bound(self, like: Tensor, level: Tensor) -> Tensor:
        """An upper bound on ‖x − c‖ for some c constant in every channel: (batch,).

        x are the points where the term is at most ``level``. Needed if ``constants_in_range`` is
        False: then the data bound c, and this bounds the rest.
        """
        raise NotImplementedError


class L1(Term):
    """λ‖Kx‖₁, which makes Kx sparse.

    K is the identity or an operator such as :class:`~mirrordescent.problems.Haar`.

    Args:
        weight: Weight λ.
        operator: Operator K; None means the identity. If its attribute ``orthonormal`` is True
            (KᵀK = I), the term has a prox and lower bounds.
        coupled: Whether to take the norm √(Σ_c d²) over the channels, such as the real and
            imaginary part of complex coefficients.
        offset: Point c of λ‖Kx − c‖₁, which broadcasts to Kx; None for 0.

    >>> import torch
    >>> L1(2.0).value(torch.tensor([[1.0, -3.0]]))
    tensor([8.])
    """

    offset: Tensor | None

    def __init__(
        self,
        weight: float | Tensor,
        operator: LinearOperator | None = None,
        coupled: bool = False,
        offset: Tensor | None = None,
    ) -> None:
        super().__init__(weight)
        self.operator = None if operator is None else as_operator(operator)
        self.coupled = bool(coupled)
        self.register_buffer("offset", None if offset is None else as_tensor(offset, "offset"))
        self._norm = 1.0

    def prepare(self, like: Tensor) -> None:
        if self.operator is not None:
            image = self.operator.A(like)
            require_adjoint(self.operator, like, image)
            self._norm = norm_bound(self.operator, like)

    @property
    def norm(self) -> float:
        return self._norm

    @property
    def invertible(self) -> bool:
        """Whether KᵀK = I is known."""
        return self.operator is None or bool(getattr(self.operator, "orthonormal", False))

    def value(self, x: Tensor) -> Tensor:
        return self.scaled_weight * sum_per_sample(self._size(self._difference(x)))

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the error of λ‖Kx − c‖₁: an error s of Kx in ℓ₂ adds at most λ√m·s, m entries."""
        d = self._difference(x)
        count = d[0].numel()
        error = positive_sum_error(value, count)
        if self.coupled:  # squares underflow
            error = error + largest(self.scaled_weight) * count * torch.finfo(d.dtype).tiny ** 0.5
        if self.operator is not None:
            s = sum_error(2 * self.norm * sum_per_sample(x.square()).sqrt(), x[0].numel() + count)
            error = error + self.scaled_weight * math.sqrt(count) * s
            return error
        return torch.where(d.flatten(1).any(1), error, 0.0)

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add λKᵀu with u = d/max(|d|, width) and d = Kx − c; u = 0 where d = 0."""
        d = self._difference(x)
        size = self._size(d)
        if isinstance(width, Tensor):
            size = size.clamp(min=broadcast(width, d))
        elif width:
            size = size.clamp(min=width)
        else:
            size = size.masked_fill(size == 0, torch.inf)
        return self.add_adjoint(out, {"entries": broadcast(self.scaled_weight, d) * d / size})

    def K(self, x: Tensor) -> Blocks:
        return {"entries": x if self.operator is None else self.operator.A(x)}

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        entries = u["entries"]
        return out + (entries if self.operator is None else self.operator.A_adjoint(entries))

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """Project u − σc onto |u| ≤ λ."""
        entries = u["entries"]
        if self.offset is not None:
            entries = entries - broadcast(sigma, entries) * self.offset
        ratio = self._size(entries) / broadcast(self.scaled_weight, entries)
        return {"entries": entries / ratio.clamp(min=1)}

    def prox(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """Kᵀ of Kx soft-thresholded by τλ, for an operator with KᵀK = I."""
        d = self._difference(x)
        size = self._size(d)
        threshold = broadcast(tau, d) * broadcast(self.scaled_weight, d)
        shrunk = d * (1 - threshold / size.clamp(min=torch.finfo(d.dtype).tiny)).clamp(min=0)
        if self.offset is not None:
            shrunk = shrunk + self.offset
        return shrunk if self.operator is None else self.operator.A_adjoint(shrunk)

    def conjugate(self, u: Blocks) -> Tensor:
        """⟨c, u⟩, rounded up; 0 without an offset."""
        entries = u["entries"]
        if self.offset is None:
            return entries.new_zeros(len(entries))
        inner = sum_per_sample(self.offset * entries)
        size = sum_per_sample((self.offset * entries).abs())
        return inner + sum_error(size, entries[0].numel())

    def dual_gauge(self, u: Blocks) -> Tensor:
        """max |u|/λ."""
        return self._size(u["entries"]).flatten(1).amax(1) / self.scaled_weight

    @property
    def can_solve_adjoint(self) -> bool:
        """Without an offset: with one, ‖Kx‖₁ is not bounded by the value of the term."""
        return self.invertible and self.offset is None

    def solve_adjoint(self, w: Tensor, one_sided: bool) -> Blocks:
        """Kw; if ``one_sided``, K of the negative part of w."""
        return self.K(w.clamp(max=0) if one_sided else w)

    def residual_bound(self, w: Tensor, level: Tensor) -> Tensor:
        """⟨w, x⟩ ≤ ‖w‖‖x‖ ≤ ‖w‖‖Kx‖₁ ≤ ‖w‖·level/λ."""
        return sum_per_sample(w.square()).sqrt() * level / self.scaled_weight

    def _difference(self, x: Tensor) -> Tensor:
        """Kx − c."""
        d = self.K(x)["entries"]
        return d if self.offset is None else d - self.offset

    def _size(self, d: Tensor) -> Tensor:
        return torch.linalg.vector_norm(d, dim=1, keepdim=True) if self.coupled else d.abs()


class Ridge(Term):
    """(ρ/2)‖x‖².

    Args:
        weight: Weight ρ.
    """

    kinked = False
    can_solve_adjoint = True

    @property
    def norm(self) -> float:
        return 1.0

    def value(self, x: Tensor) -> Tensor:
        return self.scaled_weight / 2 * sum_per_sample(x.square())

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        error = positive_sum_error(value, x[0].numel())
        return torch.where(x.flatten(1).any(1), error, 0.0)

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add ρx."""
        return out + broadcast(self.scaled_weight, x) * x

    @property
    def curvature(self) -> float:
        """The largest ρ."""
        return largest(self.scaled_weight)

    @property
    def convexity(self) -> float:
        """The smallest ρ."""
        weight = self.scaled_weight
        return float(weight.detach().min()) if isinstance(weight, Tensor) else weight

    def K(self, x: Tensor) -> Blocks:
        return {"entries": x}

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        return out + u["entries"]

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """u/(1 + σ/ρ)."""
        entries = u["entries"]
        return {"entries": entries / (1 + broadcast(sigma / self.scaled_weight, entries))}

    def conjugate(self, u: Blocks) -> Tensor:
        """‖u‖²/(2ρ)."""
        return half_squares(u, 1 / self.scaled_weight)

    def dual_gauge(self, u: Blocks) -> Tensor:
        """0."""
        return u["entries"].new_zeros(len(u["entries"]))

    def solve_adjoint(self, w: Tensor, one_sided: bool) -> Blocks:
        """w; if ``one_sided``, its negative part."""
        return {"entries": w.clamp(max=0) if one_sided else w}

    def residual_bound(self, w: Tensor, level: Tensor) -> Tensor:
        """⟨w, x⟩ ≤ ‖w‖‖x‖ ≤ ‖w‖√(2·level/ρ)."""
        return (sum_per_sample(w.square()) * 2 * level / self.scaled_weight).sqrt()


def half_squares(u: Blocks, factor: float | Tensor) -> Tensor:
    """(factor/2)‖u‖² per sample: (batch,)."""
    return factor / 2 * dot(u, u)


def largest(number: float | Tensor) -> float:
    """Return a number, or the largest entry of a tensor (batch,)."""
    return float(number.detach().max()) if isinstance(number, Tensor) else number
