"""Emission tomography: a positive image from counts along rays."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from mirrordescent._internal.checks import require_not_negative, require_positive
from mirrordescent._internal.rounding import rounded_down, sum_error, unit
from mirrordescent.parts import Config, Part
from mirrordescent.problems.beam import ParallelBeam
from mirrordescent.problems.composite import DATA, Composite
from mirrordescent.problems.differences import (
    DIRECTIONS,
    Differences,
    add_adjoint,
    differences,
    times,
)
from mirrordescent.problems.duality import Dual
from mirrordescent.problems.fits import Counts
from mirrordescent.problems.operators import Multiple
from mirrordescent.problems.variation import Roughness
from mirrordescent.trees import dot, sum_per_sample


class PoissonTomography(Composite):
    """f(x) = KL(y, Ax + b) + (ρ/2)‖Dx‖² on x ≥ 0: emission tomography.

    KL(y, z) = Σᵢ yᵢ log(yᵢ/zᵢ) − yᵢ + zᵢ, and D takes differences of neighbouring pixels. KL is the
    negative log-likelihood of counts y ~ Poisson(Ax + b), up to a constant: the image x ≥ 0 and a
    background b emit particles along rays.

    The terms of the finite sum are groups of angles. A method with an argument ``term`` uses the
    rays of that group only; None means all rays.

    Args:
        y: Counts, (batch, 1, angles, detectors).
        beam: Projection along the rays.
        exposure: Counts per unit of length and of x: A is exposure × the projection.
        background: Background counts b > 0 per detector cell.
        weight: Weight ρ ≥ 0.
        terms: Number of groups; group i has the angles i, i + terms, …. By default every angle is
            a group.

    >>> beam = ParallelBeam(8, angles=4, detectors=11)
    >>> problem = PoissonTomography(torch.full((1, 1, 4, 11), 20.0), beam, exposure=10.0)
    >>> bool(problem.value(problem.start()) > 0), problem.terms
    (True, 4)
    """

    ratio = 0.15  # slower than a ratio of 1 at first, but faster to a small gap

    smooth: Counts
    sensitivity: Tensor

    def __init__(
        self,
        y: Tensor,
        beam: ParallelBeam,
        exposure: float = 1.0,
        background: float = 1.0,
        weight: float = 0.0,
        terms: int | None = None,
    ) -> None:
        terms = len(beam.angles) if terms is None else terms
        require_positive(exposure=exposure, background=background)
        require_not_negative(weight=weight)
        if not 1 <= terms <= len(beam.angles):
            raise ValueError(
                f"terms must be between 1 and the number of angles, {len(beam.angles)}, got {terms}"
            )
        if y.ndim != 4 or y.shape[1] != 1 or bool((y < 0).any()):
            raise ValueError(
                f"y must be counts ≥ 0 of shape (batch, 1, angles, detectors), got {tuple(y.shape)}"
            )
        roughness = [Roughness(weight)] if weight else []
        super().__init__(Counts(y, Multiple(exposure, beam), background), roughness)
        self.exposure = float(exposure)
        self.background = float(background)
        self.weight = float(weight)
        self.groups = nn.ModuleList([beam.subset(first, terms) for first in range(terms)])
        self.register_buffer("sensitivity", self.back_project(torch.ones_like(y[:1])))
        if not bool((self.sensitivity > 0).all()):
            raise ValueError(
                "every pixel must be on a ray: increase the reach or the detectors of the beam"
            )

    def config(self) -> Config:
        return Part.config(self)

    @property
    def y(self) -> Tensor:
        """The counts."""
        return self.smooth.y

    @property
    def beam(self) -> ParallelBeam:
        """The projection along the rays."""
        return cast(ParallelBeam, cast(Multiple, self.smooth.operator).operator)

    @property
    def terms(self) -> int:
        return len(self.groups)

    def grad_of_terms(self, x: Tensor, subset: Tensor) -> Tensor:
        """Return the gradient over some groups of angles, scaled to the whole sum."""
        total = torch.zeros_like(x)
        for term in subset.tolist():
            slope = 1 - self.counts(term) / self.expected(x, term)
            total = total + self.back_project(slope, term)
        return self.terms / len(subset) * total + self.roughness_grad(x)

    def start(self, batch: int | None = None) -> Tensor:
        """Return constant images whose expected total count is the observed one."""
        counts = sum_per_sample(self.y - self.background).clamp(min=1)
        level = (counts / self.sensitivity.sum()).reshape(-1, 1, 1, 1)
        return level.expand(-1, *self.sensitivity.shape[1:]).clone()

    # Operations for expectation maximisation and stochastic primal-dual methods.

    def counts(self, term: int | None = None) -> Tensor:
        """y."""
        return self.y if term is None else self.y[:, :, term :: self.terms]

    def forward_project(self, x: Tensor, term: int | None = None) -> Tensor:
        """Ax."""
        return self.exposure * self._beam(term).A(x)

    def back_project(self, rays: Tensor, term: int | None = None) -> Tensor:
        """Aᵀ applied to one number per ray."""
        return self.exposure * self._beam(term).A_adjoint(rays)

    def projection_norm(self, term: int | None = None) -> float:
        """An upper bound on ‖A‖, close to it."""
        return self.exposure * self._beam(term).norm

    def expected(self, x: Tensor, term: int | None = None) -> Tensor:
        """Ax + b, the expected counts."""
        return self.forward_project(x, term) + self.background

    def multiplier(self, x: Tensor, term: int | None = None) -> Tensor:
        """Aᵀ(y/(Ax + b)) / Aᵀ1, the factor of an expectation-maximisation step."""
        y = self.counts(term)
        sensitivity = self.sensitivity
        if term is not None:
            sensitivity = self.back_project(torch.ones_like(y[:1]), term)
        tiny = torch.finfo(y.dtype).tiny
        ratio = self.back_project(y / self.expected(x, term), term)
        return ratio / sensitivity.clamp(min=tiny)

    def prox_data_conjugate(
        self, u: Tensor, sigma: float | Tensor, term: int | None = None
    ) -> Tensor:
        """argmin_u' G*(u') + ‖u' − u‖²/(2σ), where G* is the conjugate of KL(y, · + b).

        G*(u) = Σ −y log(1 − u) − bu. The minimiser is 1 − w with the root w ≥ 0 of
        w² − (1 − u − σb)w = σy.
        """
        half = (1 - u - sigma * self.background) / 2
        return 1 - (half + (half.square() + sigma * self.counts(term)).sqrt())

    def roughness_grad(self, x: Tensor) -> Tensor:
        """ρDᵀDx."""
        return self.weight * add_adjoint(torch.zeros_like(x), differences(x))

    @property
    def roughness_curvature(self) -> float:
        """8ρ ≥ ‖ρDᵀD‖."""
        return 8 * self.weight

    @property
    def block_scales(self) -> list[float]:
        """κ = ‖A‖/‖D‖ for the differences, and 1 for the data."""
        return [self.smooth.operator_norm / term.norm for term in self._terms] + [1.0]

    def lower_bound(self, u: Differences) -> Tensor:
        """Return the dual value at the best feasible multiple of (w, v), where w = 1 − u.

        If w ≥ 0 and Aᵀw − Dᵀv ≤ Aᵀ1, then min f ≥ Σ y log w + b(1 − w) − ‖v‖²/(2ρ). Every u gives a
        bound: because Aᵀ1 > 0, a small enough multiple satisfies the constraint.
        """
        return self._bound_of(*self._dual_variables(u))

    def bound_of_pair(self, x: Tensor, u: Differences) -> Tensor:
        return self.lower_bound(u)

    def explicit(self) -> PoissonTomography:
        """Return the problem itself: the likelihood is too curved for gradient steps."""
        return self

    def bound_at(self, x: Tensor, convexity: float | None = None) -> Tensor:
        """Return the bound of w = y/(Ax + b) and v = ρDx, which is tight if x is optimal."""
        return self._bound_of(*self._dual_variables_at(x))

    @torch.no_grad()
    def proving_points(self, x: Tensor, u: Differences | None = None) -> list[Dual]:
        """Return the best feasible multiple of the dual point (1 − w, v)."""
        variables = self._dual_variables_at(x) if u is None else self._dual_variables(u)
        w = variables[0].double()
        v = {name: each.double() for name, each in variables[1].items()}
        alpha = self._best_multiple(w, v)
        return [Dual([times(alpha, v)] if v else [], 1 - alpha.reshape(-1, 1, 1, 1) * w)]

    def _dual_variables(self, u: Differences) -> tuple[Tensor, Differences]:
        """Return w = 1 − u of the data, and v of the differences."""
        v = {}
        if self.weight:
            v = times(self.block_scales[0], {name: u[name] for name in DIRECTIONS})
        return (1 - u[DATA]).clamp(min=0), v

    def _dual_variables_at(self, x: Tensor) -> tuple[Tensor, Differences]:
        """Return w = y/(Ax + b) and v = ρDx."""
        v = times(self.weight, differences(x)) if self.weight else {}
        return self.y / self.expected(x), v

    def _bound_of(self, w: Tensor, v: Differences) -> Tensor:
        """Return the bound in double precision, minus its rounding error, and rounded down.

        y log(y/z) − y + z ≥ y log w + z(1 − w) for all z > 0 and w ≥ 0, and
        (ρ/2)‖Dx‖² ≥ ⟨v, Dx⟩ − ‖v‖²/(2ρ). With z = Ax + b, the coefficient Aᵀ(1 − w) + Dᵀv of x ≥ 0
        must be ≥ 0. It is, with a margin for the rounding errors of Aᵀw, Aᵀ1 and Dᵀv.
        """
        y = self.y.double()
        w = w.double()
        v = {name: each.double() for name, each in v.items()}
        count = w[0].numel() + sum(each[0].numel() for each in v.values())
        alpha = self._best_multiple(w, v)
        scaled = alpha.reshape(-1, 1, 1, 1) * w
        logs = torch.xlogy(y, scaled)
        linear = self.background * (1 - scaled)
        roughness = alpha.square() * self._square(v, alpha) / 2
        size = sum_per_sample(logs.abs() + linear.abs() + self.background) + roughness
        rounding = sum_error(size, count)
        return rounded_down(sum_per_sample(logs + linear) - roughness - rounding, self.y.dtype)

    def _best_multiple(self, w: Tensor, v: Differences) -> Tensor:
        """Return the factor α of the feasible multiple of (w, v) with the best bound: (batch,).

        The bound of a multiple is Y log α − αB − α²V/2 plus a constant, which is largest at
        Y = αB + α²V.
        """
        tiny = torch.finfo(w.dtype).tiny
        units = unit(w[0].numel() + sum(each[0].numel() for each in v.values()))
        # The constraint must hold for the A of the problem, whose entries have been rounded to its
        # own precision.
        entry_error = torch.finfo(self.y.dtype).eps + units
        left = (1 + entry_error) * self.back_project(w)
        right = (1 - entry_error) * self.back_project(torch.ones_like(w[:1]))
        if v:
            magnitudes = {name: each.abs() for name, each in v.items()}
            left = add_adjoint(left, times(-1, v)) + units * _add_sizes(
                torch.zeros_like(left), magnitudes
            )
        feasible = (1 - 2 * units) / (left / right).flatten(1).amax(1).clamp(min=tiny)
        Y = sum_per_sample(self.y.double())
        B = self.background * sum_per_sample(w)
        V = self._square(v, Y)
        best = 2 * Y / (B + (B.square() + 4 * Y * V).sqrt()).clamp(min=tiny)
        return torch.minimum(feasible, best)

    def _square(self, v: Differences, like: Tensor) -> Tensor:
        """‖v‖²/ρ, (batch,); 0 without a roughness."""
        return dot(v, v) / self.weight if v else torch.zeros_like(like)

    def _beam(self, term: int | None) -> ParallelBeam:
        return self.beam if term is None else cast(ParallelBeam, self.groups[term])


def _add_sizes(out: Tensor, sizes: Differences) -> Tensor:
    """Add |D|ᵀ applied to non-negative numbers to ``out`` in place, and return it."""
    for name, dimension in DIRECTIONS.items():
        last = out.shape[dimension] - 1
        out.narrow(dimension, 1, last).add_(sizes[name])
        out.narrow(dimension, 0, last).add_(sizes[name])
    return out
