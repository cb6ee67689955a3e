"""What is added to a fit: norms of what operators make of a point, and a ridge."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mirrordescent._internal.checks import require_positive
from mirrordescent.parts import Part
from mirrordescent.problems.operators import LinearOperator, norm_bound, require_adjoint
from mirrordescent.trees import dot, per_sample, sum_per_sample

Blocks = dict[str, Tensor]


class Term(Part, nn.Module):
    """h·g(Kx) with a weight h > 0, one for all samples or a tensor (batch,), a convex g ≥ 0 and a
    linear K.

    Kx is a dict of blocks. To add a term, write the methods below; those that raise are optional.

    A dual point proves a bound only if Σ Kᵀu = 0. What is left of that sum, some terms can
    *absorb*: they know a u with Kᵀu = w. What they cannot, such as the mean of an image by its
    differences, and rounding errors, they *charge* for.
    """

    kind = "term"

    weight: float | Tensor

    kinked = True
    """Whether g has kinks, which ``add_gradient`` can round over a width."""

    blocks: tuple[str, ...] = ("entries",)
    """The names of the blocks of Kx."""

    factor = 1.0  # by which a problem may multiply the weights of all its terms

    def __init__(self, weight: float | Tensor) -> None:
        super().__init__()
        if isinstance(weight, Tensor) and weight.ndim:
            if weight.ndim != 1 or not bool(((weight > 0) & weight.isfinite()).all()):
                raise ValueError(
                    f"weight must be positive, a number or one for every sample: {tuple(weight.shape)}"
                )
            self.register_buffer("weight", weight)
        else:
            self.weight = float(weight)
            require_positive(weight=self.weight)

    @property
    def height(self) -> float | Tensor:
        """h, with the factor."""
        return self.weight if self.factor == 1 else self.factor * self.weight

    def prepare(self, like: Tensor) -> None:
        """Look at a batch of points, once."""

    @property
    def norm(self) -> float:
        """An upper bound on ‖K‖."""
        raise NotImplementedError

    def value(self, x: Tensor) -> Tensor:
        """h·g(Kx) per sample: (batch,)."""
        raise NotImplementedError

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add the gradient to a fresh tensor, in place if that can be, and return it; kinks rounded
        over a width.
        """
        raise NotImplementedError

    @property
    def curvature(self) -> float:
        """A Lipschitz constant of the gradient; infinite if there are kinks."""
        return math.inf

    @property
    def convexity(self) -> float:
        """μ ≥ 0, up to which it is strongly convex."""
        return 0.0

    def K(self, x: Tensor) -> Blocks:
        """Kx."""
        raise NotImplementedError

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        """Add Kᵀu to a fresh tensor, in place if that can be, and return it."""
        raise NotImplementedError

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """argmin_u' (hg)*(u') + ‖u' − u‖²/(2σ); with σ = 0, the nearest u' where the conjugate is
        finite.
        """
        raise NotImplementedError

    def conjugate(self, u: Blocks) -> Tensor:
        """(hg)*(u) per sample, for a u where it is finite; it grows no faster than the square of a
        multiple of u.
        """
        raise NotImplementedError

    def excess(self, u: Blocks) -> Tensor:
        """Return a number by which u has to be divided, if it is above 1, for the conjugate to be
        finite: (batch,).
        """
        raise NotImplementedError

    @property
    def absorbs(self) -> bool:
        """Whether a w = Kᵀu can be absorbed."""
        return False

    absorbs_constants = True
    """Whether a w that is constant in every channel can be absorbed too."""

    def absorb(self, w: Tensor, one_sided: bool) -> Blocks:
        """Return a u with w − Kᵀu = 0 (or ≥ 0, if that will do), as far as there is one."""
        raise NotImplementedError

    def charge(self, w: Tensor, level: Tensor) -> Tensor:
        """Return the most that ⟨w, x⟩ can be, for a w that ``absorb`` left, while h·g(Kx) ≤ level:
        (batch,).
        """
        raise NotImplementedError

    def _fit(self, number: float | Tensor, like: Tensor) -> float | Tensor:
        return per_sample(number, like) if isinstance(number, Tensor) and number.ndim else number


class L1(Term):
    """λ‖Kx‖₁, which makes Kx sparse: K = I, or an operator such as
    :class:`~mirrordescent.problems.Haar`.

    Args:
        weight: λ.
        operator: K; None means K = I. If its attribute ``orthonormal`` is True (KᵀK = I), there are
            bounds and a prox.
        coupled: take the channels together, √(Σ_c d²): such as the two of complex coefficients.

    >>> import torch
    >>> L1(2.0).value(torch.tensor([[1.0, -3.0]]))
    tensor([8.])
    """

    def __init__(
        self, weight: float | Tensor, operator: LinearOperator | None = None, coupled: bool = False
    ) -> None:
        super().__init__(weight)
        self.operator = operator
        self.coupled = bool(coupled)
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
        return self.height * sum_per_sample(self._size(self.K(x)["entries"]))

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add λKᵀu, u = d/max(|d|, width), d = Kx; 0 where there is nothing to divide by."""
        d = self.K(x)["entries"]
        size = self._size(d)
        least = self._fit(width, d) if isinstance(width, Tensor) else width
        size = (
            size.clamp(min=least)
            if isinstance(least, Tensor) or least
            else size.masked_fill(size == 0, torch.inf)
        )
        return self.add_adjoint(out, {"entries": self._fit(self.height, d) * d / size})

    def K(self, x: Tensor) -> Blocks:
        return {"entries": x if self.operator is None else self.operator.A(x)}

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        return out + (
            u["entries"] if self.operator is None else self.operator.A_adjoint(u["entries"])
        )

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """Project onto |u| ≤ λ."""
        v = u["entries"]
        return {"entries": v / (self._size(v) / self._fit(self.height, v)).clamp(min=1)}

    def prox(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """Kᵀ of Kx with every entry made smaller by τλ, where KᵀK = I."""
        d = self.K(x)["entries"]
        size = self._size(d)
        least = self._fit(tau, d) * self._fit(self.height, d)
        kept = d * (1 - least / size.clamp(min=torch.finfo(d.dtype).tiny)).clamp(min=0)
        return kept if self.operator is None else self.operator.A_adjoint(kept)

    def conjugate(self, u: Blocks) -> Tensor:
        """0."""
        return u["entries"].new_zeros(len(u["entries"]))

    def excess(self, u: Blocks) -> Tensor:
        return self._size(u["entries"]).flatten(1).amax(1) / self.height

    @property
    def absorbs(self) -> bool:
        return self.invertible

    def absorb(self, w: Tensor, one_sided: bool) -> Blocks:
        """Kw, of a one-sided w only what is negative."""
        return self.K(w.clamp(max=0) if one_sided else w)

    def charge(self, w: Tensor, level: Tensor) -> Tensor:
        """‖w‖‖x‖ ≤ ‖w‖‖Kx‖₁."""
        return sum_per_sample(w.square()).sqrt() * level / self.height

    def _size(self, d: Tensor) -> Tensor:
        return torch.linalg.vector_norm(d, dim=1, keepdim=True) if self.coupled else d.abs()


class Ridge(Term):
    """(ρ/2)‖x‖²."""

    kinked = False
    absorbs = True

    @property
    def norm(self) -> float:
        return 1.0

    def value(self, x: Tensor) -> Tensor:
        return self.height / 2 * sum_per_sample(x.square())

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        return out + self._fit(self.height, x) * x

    @property
    def curvature(self) -> float:
        return greatest(self.height)

    @property
    def convexity(self) -> float:
        """The least ρ."""
        return float(self.height.min()) if isinstance(self.height, Tensor) else self.height

    def K(self, x: Tensor) -> Blocks:
        return {"entries": x}

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        return out + u["entries"]

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """u/(1 + σ/ρ)."""
        return {"entries": u["entries"] / (1 + self._fit(sigma / self.height, u["entries"]))}

    def conjugate(self, u: Blocks) -> Tensor:
        return half_squares(u, 1 / self.height)

    def excess(self, u: Blocks) -> Tensor:
        return u["entries"].new_zeros(len(u["entries"]))

    def absorb(self, w: Tensor, one_sided: bool) -> Blocks:
        return {"entries": w.clamp(max=0) if one_sided else w}

    def charge(self, w: Tensor, level: Tensor) -> Tensor:
        return (sum_per_sample(w.square()) * 2 * level / self.height).sqrt()


def half_squares(u: Blocks, factor: float | Tensor) -> Tensor:
    """(factor/2)‖u‖² per sample."""
    return factor / 2 * dot(u, u)


def greatest(number: float | Tensor) -> float:
    """Return a number, or the greatest of one for every sample."""
    return float(number.max()) if isinstance(number, Tensor) else number
