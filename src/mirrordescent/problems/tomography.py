"""Emission tomography: a positive image from counts along rays."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from mirrordescent._internal.checks import require_not_negative, require_positive
from mirrordescent._internal.rounding import rounded_down
from mirrordescent.parts import Config, Part
from mirrordescent.problems.beam import ParallelBeam
from mirrordescent.problems.composite import DATA, Composite
from mirrordescent.problems.differences import Differences, add_adjoint, differences, times
from mirrordescent.problems.fits import Counts
from mirrordescent.problems.operators import Multiple
from mirrordescent.problems.variation import Roughness
from mirrordescent.trees import dot, sum_per_sample


class PoissonTomography(Composite):
    """f(x) = KL(y, Ax + b) + (ρ/2)‖Dx‖² on x ≥ 0, with KL(y, z) = Σᵢ yᵢ log(yᵢ/zᵢ) − yᵢ + zᵢ and D
    the differences.

    KL is the negative log-likelihood of counts y ~ Poisson(Ax + b), of particles that a positive
    image x and a background b send along rays, up to the constant that makes it 0 at z = y. The
    terms of f that can be sampled are groups of angles; where a method below takes a ``term``, it
    means the rays of that group, and None means all rays.

    Args:
        y: counts (batch, 1, angles, detectors).
        beam: the projection along the rays.
        exposure: counts per unit of length and of x: A is exposure × the projection.
        background: b > 0, counts per cell of the detector that come from elsewhere.
        weight: ρ ≥ 0.
        terms: the number of groups; group i has the angles i, i + terms, …. By default every angle
            is a group.

    >>> beam = ParallelBeam(8, angles=4, detectors=11)
    >>> problem = PoissonTomography(torch.full((1, 1, 4, 11), 20.0), beam, exposure=10.0)
    >>> bool(problem.value(problem.start()) > 0), problem.terms
    (True, 4)
    """

    ratio = 0.15  # slower at first than 1, and faster to a small gap

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
                f"terms must be from 1 to the number of angles, {len(beam.angles)}, got {terms}"
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
        self.groups = nn.ModuleList([beam.part(first, terms) for first in range(terms)])
        self.register_buffer("sensitivity", self.back(torch.ones_like(y[:1])))
        if not bool((self.sensitivity > 0).all()):
            raise ValueError(
                "every pixel must be met by a ray: widen the reach of the beam, or use more detectors"
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
        """Return the gradient with the groups of the subset standing for all."""
        first, *others = (
            self.back(1 - self.seen(i) / self.expected(x, i), i) for i in subset.tolist()
        )
        return self.terms / len(subset) * sum(others, first) + self.roughness_grad(x)

    def start(self, batch: int | None = None) -> Tensor:
        """Return constant images that explain the number of counts."""
        counts = sum_per_sample(self.y - self.background).clamp(min=1)
        level = (counts / self.sensitivity.sum()).reshape(-1, 1, 1, 1)
        return level.expand(-1, *self.sensitivity.shape[1:]).clone()

    # What expectation maximisation and stochastic primal-dual methods use, for all rays or those of
    # one group.

    def seen(self, term: int | None = None) -> Tensor:
        """y."""
        return self.y if term is None else self.y[:, :, term :: self.terms]

    def rays(self, x: Tensor, term: int | None = None) -> Tensor:
        """Ax."""
        return self.exposure * self._beam(term).A(x)

    def back(self, rays: Tensor, term: int | None = None) -> Tensor:
        """Aᵀ, applied to numbers along rays."""
        return self.exposure * self._beam(term).A_adjoint(rays)

    def rays_norm(self, term: int | None = None) -> float:
        """A bound on ‖A‖ that is close to it."""
        return self.exposure * self._beam(term).norm

    def expected(self, x: Tensor, term: int | None = None) -> Tensor:
        """Ax + b."""
        return self.rays(x, term) + self.background

    def multiplier(self, x: Tensor, term: int | None = None) -> Tensor:
        """Aᵀ(y/(Ax + b)) / Aᵀ1: 1 where the data ask for no change."""
        y = self.seen(term)
        sensitivity = self.sensitivity if term is None else self.back(torch.ones_like(y[:1]), term)
        return self.back(y / self.expected(x, term), term) / sensitivity.clamp(
            min=torch.finfo(y.dtype).tiny
        )

    def prox_rays(self, u: Tensor, sigma: float | Tensor, term: int | None = None) -> Tensor:
        """argmin_u' G*(u') + ‖u' − u‖²/(2σ) of G*(u) = Σ −y log(1 − u) − bu, the conjugate of KL(y,
        · + b).

        It is 1 − w with the root w ≥ 0 of w² − (1 − u − σb)w = σy.
        """
        half = (1 - u - sigma * self.background) / 2
        return 1 - (half + (half.square() + sigma * self.seen(term)).sqrt())

    def roughness_grad(self, x: Tensor) -> Tensor:
        """ρDᵀDx."""
        return self.weight * add_adjoint(torch.zeros_like(x), differences(x))

    @property
    def roughness_curvature(self) -> float:
        """8ρ ≥ ‖ρDᵀD‖."""
        return 8 * self.weight

    @property
    def block_scales(self) -> list[float]:
        """κ = ‖A‖/‖D‖ of the differences, and 1 of the rays."""
        return [self.smooth.operator_norm / term.norm for term in self._terms] + [1.0]

    def lower_bound(self, u: Differences) -> Tensor:
        """Evaluate the dual at the best feasible multiple of (w, v), where w = 1 − u:

        min f ≥ Σ y log w + b(1 − w) − ‖v‖²/(2ρ)  whenever w ≥ 0 and Aᵀw − Dᵀv ≤ Aᵀ1.

        Any u gives a bound, since Aᵀ1 > 0: a small enough multiple satisfies the constraint.
        """
        v = times(self.block_scales[0], u) if self.weight else {}
        return self._bound_of((1 - u[DATA]).clamp(min=0), v)

    def bound_of_pair(self, x: Tensor, u: Differences) -> Tensor:
        return self.lower_bound(u)

    def explicit(self) -> PoissonTomography:
        """Return the problem itself: the curvature of likelihoods is too large for gradient
        steps.
        """
        return self

    def bound_at(self, x: Tensor, convexity: float | None = None) -> Tensor:
        """Return the lower bound at w = y/(Ax + b) and v = ρDx, which is tight where x is
        optimal.
        """
        v = times(self.weight, differences(x)) if self.weight else {}
        return self._bound_of(self.y / self.expected(x), v)

    def _bound_of(self, w: Tensor, v: Differences) -> Tensor:
        """Compute in double precision, and round down; what rounding may have added to sums of n
        terms is taken off.
        """
        y = self.y.double()
        w = w.double()
        v = {name: each.double() for name, each in v.items()}
        tiny = torch.finfo(w.dtype).tiny
        units = w[0].numel() * torch.finfo(w.dtype).eps
        # The constraint has to hold for A as the problem has it: its entries are those of here up
        # to their last place.
        entries = torch.finfo(self.y.dtype).eps + units
        load = (1 + entries) * self.back(w)
        all_of_it = (1 - entries) * self.back(torch.ones_like(w[:1]))
        if v:
            load = add_adjoint(load, times(-1, v))
        most = (1 - units) / (load / all_of_it).flatten(1).amax(1).clamp(min=tiny)
        # For a multiple α the bound is Y log α − αB − α²V/2 plus a constant, which is largest where
        # Y = αB + α²V.
        Y = sum_per_sample(y)
        B = self.background * sum_per_sample(w)
        V = dot(v, v) / self.weight if v else torch.zeros_like(Y)
        best = 2 * Y / (B + (B.square() + 4 * Y * V).sqrt()).clamp(min=tiny)
        alpha = torch.minimum(most, best)
        scaled = alpha.reshape(-1, 1, 1, 1) * w
        gained = torch.xlogy(y, scaled)
        taken = self.background * (1 - scaled)
        roughness = alpha.square() * V / 2
        lost = units * (sum_per_sample(gained.abs() + taken.abs()) + roughness)
        return rounded_down(sum_per_sample(gained + taken) - roughness - lost, self.y.dtype)

    def _beam(self, term: int | None) -> ParallelBeam:
        return self.beam if term is None else cast(ParallelBeam, self.groups[term])
