"""Emission tomography: a positive image from counts along rays."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from mirrordescent.domains import PositiveOrthant
from mirrordescent.problems.base import Problem, require_finite
from mirrordescent.problems.beam import ParallelBeam
from mirrordescent.problems.tv import Differences, add_adjoint, differences
from mirrordescent.trees import Tree, dot, sum_per_sample

RAYS = "rays"


class PoissonTomography(Problem):
    """f(x) = KL(y, Ax + b) + (ρ/2)‖Dx‖² on x ≥ 0, with KL(y, z) = Σᵢ yᵢ log(yᵢ/zᵢ) − yᵢ + zᵢ and D the differences.

    The likelihood of counts y ~ Poisson(Ax + b) of particles that a positive image x and a background b send along
    rays, up to the constant that makes it 0 at z = y. The terms of f that can be sampled are groups of angles;
    where a method below takes a ``term``, it means the rays of that group, and None means all.

    Args:
        y: counts (batch, 1, angles, detectors).
        beam: the rays.
        exposure: counts per unit of length and of x: A is exposure × the projection.
        background: b > 0, counts per cell of the detector that come from elsewhere.
        weight: ρ ≥ 0.
        terms: the number of groups; group i has the angles i, i + terms, …. Each angle is one by default.

    >>> beam = ParallelBeam(8, angles=4, detectors=11)
    >>> problem = PoissonTomography(torch.full((1, 1, 4, 11), 20.0), beam, exposure=10.0)
    >>> bool(problem.value(problem.start()) > 0), problem.terms
    (True, 4)
    """

    convex = True
    domain = PositiveOrthant()

    y: Tensor
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
        for name, number in (("exposure", exposure), ("background", background)):
            if not 0 < number < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {number}")
        if not 0 <= weight < math.inf:
            raise ValueError(f"weight must be finite and not negative, got {weight}")
        if not 1 <= terms <= len(beam.angles):
            raise ValueError(f"terms must be from 1 to the number of angles, {len(beam.angles)}, got {terms}")
        require_finite(y, "y")
        if y.ndim != 4 or y.shape[1] != 1 or bool((y < 0).any()):
            raise ValueError(f"y must be counts ≥ 0 of shape (batch, 1, angles, detectors), got {tuple(y.shape)}")
        super().__init__(y.shape[0], (1, beam.size, beam.size))
        self.exposure, self.background, self.weight = float(exposure), float(background), float(weight)
        self.register_buffer("y", y)
        self.beam = beam
        self.parts = nn.ModuleList([beam.part(first, terms) for first in range(terms)])
        self.register_buffer("sensitivity", self.back(torch.ones_like(y[:1])))
        if not bool((self.sensitivity > 0).all()):
            raise ValueError("every pixel must be met by a ray: widen the beam's reach, or use more detectors")

    def value(self, x: Tree) -> Tensor:
        """KL(y, Ax + b) + (ρ/2)‖Dx‖²."""
        x = cast(Tensor, x)
        z = self.expected(x)
        ratio = self.y.clamp(min=torch.finfo(z.dtype).eps) / z  # not 0, of which log has no derivative
        value = sum_per_sample(torch.xlogy(self.y, ratio) - self.y + z)
        return value + self.weight / 2 * _squared(differences(x)) if self.weight else value

    def grad(self, x: Tree) -> Tensor:
        """Aᵀ(1 − y/(Ax + b)) + ρDᵀDx."""
        x = cast(Tensor, x)
        return self.back(1 - self.y / self.expected(x)) + self.roughness_grad(x)

    @property
    def terms(self) -> int:
        """The number of groups of angles."""
        return len(self.parts)

    def grad_of_terms(self, x: Tree, subset: Tensor) -> Tensor:
        """Return the gradient with the groups of the subset standing for all."""
        x, share = cast(Tensor, x), self.terms / len(subset)
        first, *others = (self.back(1 - self.seen(i) / self.expected(x, i), i) for i in subset.tolist())
        return share * sum(others, first) + self.roughness_grad(x)

    def start(self, batch: int | None = None) -> Tensor:
        """Return constant images that explain the number of counts."""
        counts = sum_per_sample(self.y - self.background).clamp(min=1)
        level = (counts / self.sensitivity.sum()).reshape(-1, 1, 1, 1)
        return level.expand(-1, *self.sensitivity.shape[1:]).clone()

    def extra_repr(self) -> str:
        """Show the numbers."""
        return f"exposure={self.exposure:g}, background={self.background:g}, weight={self.weight:g}"

    # What expectation maximisation and stochastic primal-dual methods use: rays, all or of one group.

    def seen(self, term: int | None = None) -> Tensor:
        """y."""
        return self.y if term is None else self.y[:, :, term :: self.terms]

    def rays(self, x: Tensor, term: int | None = None) -> Tensor:
        """Ax."""
        return self.exposure * self._beam(term).A(x)

    def back(self, rays: Tensor, term: int | None = None) -> Tensor:
        """Aᵀ, applied to something along rays."""
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
        return self.back(y / self.expected(x, term), term) / sensitivity.clamp(min=torch.finfo(y.dtype).tiny)

    def prox_rays(self, u: Tensor, sigma: float | Tensor, term: int | None = None) -> Tensor:
        """argmin_u' G*(u') + ‖u' − u‖²/(2σ) of G*(u) = Σ −y log(1 − u) − bu, the conjugate of KL(y, · + b).

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

    # The saddle point: F is the indicator of x ≥ 0, and G of (Ax, κDx) is KL and roughness. κ gives both parts of K the
    # same norm, without which one of them would have to take too short steps.

    def saddle_point(self) -> PoissonTomography:
        """The problem itself."""
        return self

    @property
    def ratio(self) -> float:
        """Slower at first than 1, and faster to a small gap."""
        return 0.15

    @property
    def K_norm(self) -> float:
        """√2‖A‖."""
        return math.sqrt(2) * self.rays_norm()

    @property
    def F_convexity(self) -> float:
        """F is not strongly convex."""
        return 0.0

    @property
    def F_smoothness(self) -> float:
        """F is not smooth."""
        return math.inf

    def grad_F(self, x: Tensor) -> Tensor:
        """There is none."""
        raise TypeError("the F of PoissonTomography, x ≥ 0, has no gradient")

    def argmin_F(self, w: Tensor) -> Tensor:
        """There is none."""
        raise TypeError("the F of PoissonTomography, x ≥ 0, is not strongly convex")

    def K(self, x: Tensor) -> dict[str, Tensor]:
        """(Ax, κDx)."""
        image = {RAYS: self.rays(x)}
        return image | _times(self._kappa, differences(x)) if self.weight else image

    def K_adjoint(self, u: Tree) -> Tensor:
        """Aᵀu + κDᵀv."""
        u = cast(dict[str, Tensor], u)
        image = self.back(u[RAYS])
        return add_adjoint(image, _times(self._kappa, u)) if self.weight else image

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """Project onto x ≥ 0."""
        return x.clamp(min=0)

    def prox_G_conjugate(self, u: Tree, sigma: float | Tensor) -> dict[str, Tensor]:
        """Take the proximal point of KL's conjugate along rays, and shrink differences."""
        u = cast(dict[str, Tensor], u)
        shrink = self.weight / (self.weight + sigma * self._kappa**2) if self.weight else 0.0
        return {name: self.prox_rays(v, sigma) if name == RAYS else shrink * v for name, v in u.items()}

    def lower_bound(self, u: Tree) -> Tensor:
        """Evaluate the dual at the best feasible multiple of (w, v), where w = 1 − u:

        min f ≥ Σ y log w + b(1 − w) − ‖v‖²/(2ρ)  whenever w ≥ 0 and Aᵀw − Dᵀv ≤ Aᵀ1.

        Any u gives a bound, since Aᵀ1 > 0: a small enough multiple satisfies the constraint.
        """
        u = cast(dict[str, Tensor], u)
        v = _times(self._kappa, u) if self.weight else {}
        return self._bound((1 - u[RAYS]).clamp(min=0), v)

    def bound_at(self, x: Tensor) -> Tensor:
        """Return the lower bound that goes with a point, w = y/(Ax + b) and v = ρDx; tight where x is optimal."""
        v = _times(self.weight, differences(x)) if self.weight else {}
        return self._bound(self.y / self.expected(x), v)

    def _bound(self, w: Tensor, v: Differences) -> Tensor:
        tiny = torch.finfo(w.dtype).tiny
        load = self.back(w)
        if v:
            load = add_adjoint(load, _times(-1, v))
        # The constraint has to hold for the A of this precision, not of that in which the problem was made.
        most = 1 / (load / self.back(torch.ones_like(w[:1]))).flatten(1).amax(1).clamp(min=tiny)
        # Of a multiple α the bound is Y log α − αB − α²V/2 and a constant, and largest where Y = αB + α²V.
        Y, B = sum_per_sample(self.y), self.background * sum_per_sample(w)
        V = _squared(v) / self.weight if v else torch.zeros_like(Y)
        best = 2 * Y / (B + (B.square() + 4 * Y * V).sqrt()).clamp(min=tiny)
        alpha = torch.minimum(most, best)
        scaled = alpha.reshape(-1, 1, 1, 1) * w
        dual = sum_per_sample(torch.xlogy(self.y, scaled) + self.background * (1 - scaled))
        return dual - alpha.square() * V / 2

    @property
    def _kappa(self) -> float:
        return self.rays_norm() / math.sqrt(8)

    def _beam(self, term: int | None) -> ParallelBeam:
        return self.beam if term is None else cast(ParallelBeam, self.parts[term])


def _times(number: float, v: dict[str, Tensor]) -> Differences:
    """Multiply the differences of a dual point."""
    return {name: number * each for name, each in v.items() if name != RAYS}


def _squared(v: Differences) -> Tensor:
    """‖v‖² per sample."""
    return dot(v, v)
