"""The exact geometry a run is held against, and the distances of the theory in it."""

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
from mirrordescent.trees import Tree, add_over_leaves, dot, mix, sum_per_sample, tree_map

NODES = 16  # of the quadrature along a line: exact for polynomials of degree 31


def exact_geometry(mirror: MirrorMap, storage: Storage, exact: bool | None = None) -> MirrorMap:
    """Return the exact mirror map whose theory covers a run with this map.

    ==============  ================  =============================================================
    map             storage           ψ ==============  ================
    ============================================================= exact           primal or dual
    its own a pair          primal            M, whose true inverse is found by Newton's method. To
    go through
                                      ∇M* instead is an error that every step makes
    a pair          dual              (M*)*, for which the run is exact: ∇M enters only through y⁰
    ==============  ================  =============================================================

    ``exact`` is what the map says of itself, unless it is known better.
    """
    if mirror.exact if exact is None else exact:
        return mirror
    if storage == "primal":
        return Inverted(mirror)
    return Conjugate(
        mirror.backward_potential if isinstance(mirror, LearnedPair) else Field(mirror._to_primal)
    )


class Field(Potential):
    """ψ(x) = ∫₀¹ ⟨F(sx), x⟩ ds: the potential with ψ(0) = 0 of a gradient field F = ∇ψ on all of
    Rⁿ.

    For maps that know only their gradients; the integral is by Gauss–Legendre quadrature.
    """

    def __init__(self, field: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.field = field

    def value(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for node, weight in zip(
            *(each.tolist() for each in np.polynomial.legendre.leggauss(NODES)), strict=True
        ):
            total = total + 0.5 * weight * self.field(0.5 * (node + 1) * x)
        return sum_per_sample(total * x)

    def gradient(self, x: Tensor) -> Tensor:
        return self.field(x)


class Inverted(MirrorMap):
    """ψ of a map whose ``to_primal`` is a surrogate, with the true inverse: ∇ψ*(y) solves ∇ψ(x) =
    y.
    """

    def __init__(self, mirror: MirrorMap) -> None:
        super().__init__()
        self.mirror = mirror
        self.certified = mirror.certified
        self.primal_domain = mirror.primal_domain
        self.dual_domain = mirror.dual_domain
        self.field = (
            mirror.forward_potential if isinstance(mirror, LearnedPair) else Field(mirror._to_dual)
        )

    @property
    def strong_convexity(self) -> StrongConvexity | None:
        return self.mirror.strong_convexity

    def near(self, y: Tree, start: Tree) -> Tree:
        """∇ψ*(y), found from a point nearby."""
        return tree_map(lambda y, x: invert(self.field, y, start=x).x, y, start)

    def _potential(self, x: Tensor) -> Tensor:
        return self.mirror._potential(x)

    def _to_dual(self, x: Tensor) -> Tensor:
        return self.mirror._to_dual(x)

    def _to_primal(self, y: Tensor) -> Tensor:
        return invert(self.field, y).x


class Coupling:
    """F(u, y) = ψ(u) + ψ*(y) − ⟨y, u⟩, how far ∇ψ*(y) is from a fixed point u.

    Where ∇ψ is invertible F(u, y) = B_ψ(u, ∇ψ*(y)) = B_ψ*(y, ∇ψ(u)). On a set with an edge F is the
    larger one, and it is F, not B, that the proofs need for dual-stored methods: y is then a
    subgradient of ψ at ∇ψ*(y) that remembers how far beyond the edge the iterate has been sent. In
    any case F(u, y) ≥ (α/2)‖∇ψ*(y) − u‖². The map has to be exact; ``tested`` says that this is
    known, so that it is not tested again.
    """

    def __init__(self, mirror: MirrorMap, u: Tree, tested: bool = False) -> None:
        self.mirror = mirror
        self.u = u
        self.tested = tested
        self.potential_at_u = mirror.potential(u)

    def __call__(self, y: Tree, x: Tree | None = None) -> Tensor:
        """F(u, y), with x = ∇ψ*(y) if it is known: (batch,)."""
        if isinstance(self.mirror, Conjugate):
            return self.potential_at_u + self.mirror.dual_value(y) - dot(y, self.u)
        x = self.mirror.to_primal(y) if x is None else x
        # With ψ*(y) = ⟨y, x⟩ − ψ(x), one product of small differences.
        return self.potential_at_u - self.mirror.potential(x) - dot(y, difference(self.u, x))


def squared_dual_norm(mirror: MirrorMap, v: Tree) -> Tensor:
    """‖v‖_*², dual to the norm ℓ_p in which the map states its strong convexity, ℓ₂ if it states
    none: (batch,).

    Over several parts with a potential each (simplices along the last dimension, leaves of a dict)
    squares add up.
    """
    stated = mirror.strong_convexity
    if stated is None or stated.p == 2:
        return dot(v, v)
    q = stated.p / (stated.p - 1) if stated.p > 1 else torch.inf

    def squared(leaf: Tensor) -> Tensor:
        parts = leaf if isinstance(mirror.primal_domain, Simplex) else leaf.flatten(1)
        return (
            torch.linalg.vector_norm(parts, ord=q, dim=-1)
            .square()
            .reshape(leaf.shape[0], -1)
            .sum(1)
        )

    return add_over_leaves(squared, v)


def difference(first: Tree, second: Tree) -> Tree:
    """Return first − second."""
    return tree_map(torch.sub, first, second)


def inside(x: Tree, domain: Domain) -> Tree:
    """Return a point in the interior of a domain: x itself, or its projection drawn away from the
    edge.
    """
    return (
        x if bool(domain.contains(x).all()) else mix(0.9, domain.project(x), domain.inner_point(x))
    )


def domain_of(mirror: MirrorMap | None, problem: Problem) -> Domain:
    """Return where a map can be used on a problem: its own domain, or the problem's if it has no
    limits itself.
    """
    return (
        problem.domain
        if mirror is None or isinstance(mirror.primal_domain, WholeSpace)
        else mirror.primal_domain
    )


def expanded(point: Tree, like: Tree) -> Tree:
    """Return a point, or one per sample, as a batch like another, in its precision and on its
    device.
    """
    return tree_map(lambda p, x: p.to(x).expand_as(x), point, like)
