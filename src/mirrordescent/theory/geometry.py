"""The exact geometry that a run is compared with, and the distances of the theory in it."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mirrordescent.domains import Domain, Simplex, WholeSpace
from mirrordescent.methods.base import Storage
from mirrordescent.mirrors import Conjugate, LearnedPair, MirrorMap, StrongConvexity
from mirrordescent.mirrors.icnn import Potential
from mirrordescent.mirrors.inverse import invert
from mirrordescent.problems import Problem
from mirrordescent.problems.sizes import entry_sizes, inner_point
from mirrordescent.trees import Tree, add_over_leaves, dot, mix, sum_per_sample, tree_map

QUADRATURE_NODES = 16
"""Nodes of Gauss–Legendre quadrature; 16 are exact for polynomials of degree 31."""

INTERIOR_SHARE = 0.9
"""Weight of the projection in a point that is moved from the outside into a domain."""


def exact_geometry(mirror: MirrorMap, storage: Storage, exact: bool | None = None) -> MirrorMap:
    """Return the exact mirror map whose theory covers a run with this map.

    ======  =======  =============================================================================
    map     storage  ψ
    ======  =======  =============================================================================
    exact   any      The map itself.
    pair    primal   M, with its true inverse by Newton's method. A step through ∇M* instead makes
                     an error every time.
    pair    dual     (M*)*, for which the run is exact: ∇M enters only through y⁰.
    ======  =======  =============================================================================

    Args:
        mirror: Map of the run.
        storage: Space in which the method keeps its mirror iterate.
        exact: Whether ``to_primal`` inverts ``to_dual``; by default what the map says.
    """
    if exact is None:
        exact = mirror.exact
    if exact:
        return mirror
    if storage == "primal":
        return NewtonInverse(mirror)
    if isinstance(mirror, LearnedPair):
        return Conjugate(mirror.backward_potential)
    return Conjugate(LineIntegralPotential(mirror._to_primal))


class LineIntegralPotential(Potential):
    """ψ(x) = ∫₀¹ ⟨F(sx), x⟩ ds, the potential with ψ(0) = 0 of a gradient field F = ∇ψ on Rⁿ.

    It serves maps that know only their gradients. The integral is computed by Gauss–Legendre
    quadrature.
    """

    def __init__(self, field: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.field = field

    def value(self, x: Tensor) -> Tensor:
        nodes, weights = np.polynomial.legendre.leggauss(QUADRATURE_NODES)
        total = torch.zeros_like(x)
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            total = total + 0.5 * weight * self.field(0.5 * (node + 1) * x)
        return sum_per_sample(total * x)

    def gradient(self, x: Tensor) -> Tensor:
        return self.field(x)


class NewtonInverse(MirrorMap):
    """A map whose ``to_primal`` is a surrogate, with the true inverse: ∇ψ*(y) solves ∇ψ(x) = y."""

    def __init__(self, mirror: MirrorMap) -> None:
        super().__init__()
        self.mirror = mirror
        self.certified = mirror.certified
        self.primal_domain = mirror.primal_domain
        self.dual_domain = mirror.dual_domain
        self.field: Potential
        if isinstance(mirror, LearnedPair):
            self.field = mirror.forward_potential
        else:
            self.field = LineIntegralPotential(mirror._to_dual)

    @property
    def strong_convexity(self) -> StrongConvexity | None:
        return self.mirror.strong_convexity

    def to_primal_from(self, y: Tree, start: Tree) -> Tree:
        """Return ∇ψ*(y), with Newton's method started at a point nearby."""
        return tree_map(lambda y, x: invert(self.field, y, start=x).x, y, start)

    def _potential(self, x: Tensor) -> Tensor:
        return self.mirror._potential(x)

    def _to_dual(self, x: Tensor) -> Tensor:
        return self.mirror._to_dual(x)

    def _to_primal(self, y: Tensor) -> Tensor:
        return invert(self.field, y).x


class Coupling:
    """F(u, y) = ψ(u) + ψ*(y) − ⟨y, u⟩, the distance of ∇ψ*(y) from a fixed point u.

    If ∇ψ is invertible, F(u, y) = B_ψ(u, ∇ψ*(y)) = B_ψ*(y, ∇ψ(u)). On a set with a boundary F is
    the larger one, and the proofs for dual-stored methods need F instead of B: there y is a
    subgradient of ψ at ∇ψ*(y) that remembers how far beyond the boundary the iterate was sent. In
    all cases F(u, y) ≥ (α/2)‖∇ψ*(y) − u‖².

    Args:
        mirror: Exact mirror map with potential ψ.
        u: Fixed point, one per sample.
        tested: Whether the map is known to be exact, so that it need not be tested again.
    """

    def __init__(self, mirror: MirrorMap, u: Tree, tested: bool = False) -> None:
        self.mirror = mirror
        self.u = u
        self.tested = tested
        self.potential_at_u = mirror.potential(u)

    def __call__(self, y: Tree, x: Tree | None = None) -> Tensor:
        """Return F(u, y), given x = ∇ψ*(y) if it is known: (batch,)."""
        if isinstance(self.mirror, Conjugate):
            return self.potential_at_u + self.mirror.dual_value(y) - dot(y, self.u)
        if x is None:
            x = self.mirror.to_primal(y)
        # With ψ*(y) = ⟨y, x⟩ − ψ(x) the products combine to ⟨y, u − x⟩, which rounds less.
        return self.potential_at_u - self.mirror.potential(x) - dot(y, difference(self.u, x))


def squared_dual_norm(mirror: MirrorMap, v: Tree) -> Tensor:
    """Return ‖v‖_*² per sample: (batch,).

    The norm is dual to the norm ℓ_p in which the map states its strong convexity, and ℓ₂ if the
    map states none. If the potential is a sum over parts (simplices along the last dimension,
    leaves of a dict), the squares of the parts add up.
    """
    stated = mirror.strong_convexity
    if stated is None or stated.p == 2:
        return dot(v, v)
    dual_order = stated.p / (stated.p - 1) if stated.p > 1 else torch.inf
    on_simplices = isinstance(mirror.primal_domain, Simplex)

    def squared(leaf: Tensor) -> Tensor:
        parts = leaf if on_simplices else leaf.flatten(1)
        norms = torch.linalg.vector_norm(parts, ord=dual_order, dim=-1)
        return norms.square().reshape(leaf.shape[0], -1).sum(1)

    return add_over_leaves(squared, v)


def difference(first: Tree, second: Tree) -> Tree:
    """Return first − second."""
    return tree_map(torch.sub, first, second)


def move_inside(x: Tree, domain: Domain, sizes: Tree | None = None) -> Tree:
    """Return x if it lies in the domain, else its projection, pulled away from the boundary.

    Args:
        x: Points.
        domain: Domain.
        sizes: Typical size of an entry of every leaf; by default that of x.
    """
    if bool(domain.contains(x).all()):
        return x
    inner = inner_point(domain, x, entry_sizes(x) if sizes is None else sizes)
    return mix(INTERIOR_SHARE, domain.project(x), inner)


def usable_domain(mirror: MirrorMap | None, problem: Problem) -> Domain:
    """Return the map's domain, or the problem's if the map is defined everywhere or absent."""
    if mirror is None or isinstance(mirror.primal_domain, WholeSpace):
        return problem.domain
    return mirror.primal_domain


def expand_like(point: Tree, like: Tree) -> Tree:
    """Return a point, or one per sample, with the batch size, precision and device of a batch."""
    return tree_map(lambda p, x: p.to(x).expand_as(x), point, like)
