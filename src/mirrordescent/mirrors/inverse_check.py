"""Is a map what it says? Asked before any learning begins."""

from __future__ import annotations

import torch
from torch import Tensor

from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.parts import claim_holds
from mirrordescent.trees import Tree, dot, norm, tree_map

SAMPLES = 2  # of a batch are enough: a map is the same for all


@torch.no_grad()
def require_inverse(mirror: MirrorMap, like: Tree) -> None:
    """Raise unless ∇ψ*(∇ψ(x)) = x and ∇ψ is the gradient of ψ, at points x inside the domain, of
    the shape of others.

    Maps that are proven, and have not been changed by a subclass, are believed.
    """
    if mirror.proven and claim_holds(
        type(mirror), "proven", "_potential", "_to_dual", "_to_primal"
    ):
        return
    x = _inside(mirror, tree_map(lambda leaf: leaf[:SAMPLES], like))
    back = mirror.to_primal(mirror.to_dual(x))
    error = norm(tree_map(torch.sub, back, x)) / (1e-12 + norm(x))
    if mirror.exact and not bool((error < 1e-2).all()):
        raise ValueError(
            f"to_primal of {type(mirror).__name__} is not the inverse of to_dual: ∇ψ*(∇ψ(x)) is "
            f"{float(error.max()):.2g} times ‖x‖ away from x. Say exact = False if that is meant"
        )
    with torch.enable_grad():
        points = tree_map(lambda leaf: leaf.detach().requires_grad_(), x)
        try:
            potential = mirror.potential(points).sum()
        except (
            NotImplementedError
        ):  # a map may do without a potential, and then there is nothing to compare
            return
        found = torch.autograd.grad(
            potential, list(points.values()) if isinstance(points, dict) else [points]
        )
    gradient = dict(zip(x, found, strict=True)) if isinstance(x, dict) else found[0]
    dual = mirror.to_dual(x)
    # Up to constants, which are nothing on a simplex: compared along a direction that stays in the
    # domain.
    toward = tree_map(torch.sub, mirror.primal_domain.inner_point(x), x)
    off = (dot(tree_map(torch.sub, gradient, dual), toward)).abs()
    if not bool((off <= 1e-2 * (1e-6 + norm(dual) * norm(toward))).all()):
        raise ValueError(f"to_dual of {type(mirror).__name__} is not the gradient of its potential")


def _inside(mirror: MirrorMap, like: Tree) -> Tree:
    """Return points without symmetries, halfway between the middle of the domain and points beside
    the given ones.
    """
    domain = mirror.primal_domain
    beside = domain.project(tree_map(lambda leaf: leaf + _wave(leaf), like))
    return tree_map(lambda a, b: (a + b) / 2, beside, domain.inner_point(like))


def _wave(leaf: Tensor) -> Tensor:
    """Return numbers of the size of a tensor's, or of 1 if it is 0, and no two of them alike."""
    size = leaf.square().mean().sqrt()
    count = torch.arange(leaf.numel(), dtype=leaf.dtype, device=leaf.device).view_as(leaf)
    return torch.where(size > 0, size, 1.0) * torch.sin(1.0 + count)
