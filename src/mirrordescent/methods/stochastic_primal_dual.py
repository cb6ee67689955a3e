"""The stochastic primal-dual hybrid gradient method, for counts along groups of rays."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, cast

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method
from mirrordescent.oracles import Oracle, require_generator
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree


class GroupedRays(Protocol):
    """What a problem  min KL(y, Ax + b) + (ρ/2)‖Dx‖² over x ≥ 0  offers, group of rays by group."""

    @property
    def terms(self) -> int:
        """The number of groups."""

    def rays(self, x: Tensor, term: int | None = None) -> Tensor:
        """A_i x."""

    def back(self, rays: Tensor, term: int | None = None) -> Tensor:
        """A_iᵀ."""

    def rays_norm(self, term: int | None = None) -> float:
        """A bound on ‖A_i‖."""

    def prox_rays(self, u: Tensor, sigma: float | Tensor, term: int | None = None) -> Tensor:
        """The proximal point of the conjugate of KL."""

    def roughness_grad(self, x: Tensor) -> Tensor:
        """ρDᵀDx."""

    @property
    def roughness_curvature(self) -> float:
        """A bound on ‖ρDᵀD‖."""


class SPDHGState(NamedTuple):
    """Steps taken, the image, the dual along all rays, its back-projection Aᵀu, and that extrapolated."""

    k: int
    x: Tree
    u: Tensor
    back: Tensor
    ahead: Tensor


class SPDHG(Method[SPDHGState]):
    """Stochastic primal-dual hybrid gradient with a random one, i, of n groups of rays in every step:

    .. code-block:: none

        x⁺   =  max(0, x − τ(ρDᵀDx + z̄))
        uᵢ⁺  =  prox_{σG*}(uᵢ + σAᵢx⁺),  the others as they were
        z⁺   =  z + δ,  z̄⁺ = z⁺ + nδ,     δ = Aᵢᵀ(uᵢ⁺ − uᵢ),  z = Aᵀu
        σ    =  1/(ratio·max‖Aᵢ‖),  1/τ = n·max‖Aᵢ‖/ratio + ‖ρDᵀD‖/2

    The roughness is taken by its gradient, as Condat and Vũ do. As many steps as there are groups are a pass.

    Reference: Chambolle, Ehrhardt, Richtárik, Schönlieb, SIAM J. Optim. 28 (2018).
    """

    def __init__(self, ratio: float = 1.0) -> None:
        super().__init__()
        if not 0 < ratio < math.inf:
            raise ValueError(f"SPDHG needs a finite ratio > 0, got {ratio}")
        self.ratio = float(ratio)

    def init(self, x0: Tree, problem: Problem | None = None) -> SPDHGState:
        """Start at x0 with a zero dual variable."""
        x = cast(Tensor, x0)
        zero = torch.zeros_like(x)
        return SPDHGState(0, x, torch.zeros_like(_groups(problem).rays(x)), zero, zero)

    def step(
        self, problem: Problem, state: SPDHGState, oracle: Oracle, generator: Generator | None = None
    ) -> SPDHGState:
        """Take a primal step, and a dual one along the rays of a random group."""
        generator = require_generator(generator, self)
        groups, x = _groups(problem), cast(Tensor, state.x)
        n = groups.terms
        norm = max(map(groups.rays_norm, range(n)))
        sigma, tau = 1 / (self.ratio * norm), 1 / (n * norm / self.ratio + groups.roughness_curvature / 2)
        x = (x - tau * (groups.roughness_grad(x) + state.ahead)).clamp(min=0)
        i = int(torch.randint(n, (), generator=generator, device=generator.device))
        old = state.u[:, :, i::n]
        new = groups.prox_rays(old + sigma * groups.rays(x, i), sigma, i)
        delta = groups.back(new - old, i)
        u, back = state.u.clone(), state.back + delta
        u[:, :, i::n] = new
        return SPDHGState(state.k + 1, x, u, back, back + n * delta)


def _groups(problem: Problem | None) -> GroupedRays:
    if problem is None:
        raise TypeError("SPDHG has to know the problem from the start: init(x0, problem)")
    if not hasattr(problem, "prox_rays"):
        raise TypeError(f"SPDHG needs groups of rays, and {type(problem).__name__} has none")
    return cast(GroupedRays, problem)
