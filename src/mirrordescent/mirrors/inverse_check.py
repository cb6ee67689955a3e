"""A numerical check of a map's gradient and inverse, before learning begins."""

from __future__ import annotations

import torch
from torch import Tensor

from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.parts import claim_holds
from mirrordescent.trees import Tree, dot, leaves, norm, tree_map

SAMPLES = 2
"""Number of samples to check; a map is the same for all samples of a batch."""


@torch.no_grad()
def require_inverse(mirror: MirrorMap, like: Tree) -> None:
    """Raise an error unless ∇ψ*(∇ψ(x)) = x and ∇ψ is the gradient of ψ at some test points.

    Maps with ``proven = True`` are not checked, unless a subclass has overridden a mapping.

    Args:
        mirror: Map.
        like: Points, for the shape of the test points.
    """
    if mirror.proven and claim_holds(
        type(mirror), "proven", "_potential", "_to_dual", "_to_primal"
    ):
        return
    x = _test_points(mirror, tree_map(lambda leaf: leaf[:SAMPLES], like))
    dual = mirror.to_dual(x)
    error = norm(tree_map(torch.sub, mirror.to_primal(dual), x)) / (1e-12 + norm(x))
    if mirror.exact and not bool((error < 1e-2).all()):
        raise ValueError(
            f"to_primal of {type(mirror).__name__} is not the inverse of to_dual: ∇ψ*(∇ψ(x)) is "
            f"{float(error.max()):.2g} times ‖x‖ away from x. "
            "If the inverse is approximate, set exact = False"
        )
    gradient = _gradient_of_potential(mirror, x)
    if gradient is None:
        return
    # On a simplex, dual points are defined up to a constant. So compare along a direction that
    # stays in the domain.
    direction = tree_map(torch.sub, mirror.primal_domain.inner_point(x), x)
    difference = dot(tree_map(torch.sub, gradient, dual), direction).abs()
    if not bool((difference <= 1e-2 * (1e-6 + norm(dual) * norm(direction))).all()):
        raise ValueError(f"to_dual of {type(mirror).__name__} is not the gradient of its potential")


def _gradient_of_potential(mirror: MirrorMap, x: Tree) -> Tree | None:
    """Return ∇ψ(x) by automatic differentiation; None if the map has no potential."""
    with torch.enable_grad():
        points = tree_map(lambda leaf: leaf.detach().requires_grad_(), x)
        try:
            potential = mirror.potential(points).sum()
        except NotImplementedError:
            return None
        gradients = torch.autograd.grad(potential, list(leaves(points)))
    return dict(zip(x, gradients, strict=True)) if isinstance(x, dict) else gradients[0]


def _test_points(mirror: MirrorMap, like: Tree) -> Tree:
    """Return points inside the domain, without symmetries.

    They lie halfway between the centre of the domain and perturbations of the given points.
    """
    domain = mirror.primal_domain
    perturbed = domain.project(tree_map(lambda leaf: leaf + _perturbation(leaf), like))
    return tree_map(lambda a, b: (a + b) / 2, perturbed, domain.inner_point(like))


def _perturbation(leaf: Tensor) -> Tensor:
    """Return distinct numbers of the magnitude of a tensor, or of magnitude 1 if it is 0."""
    size = leaf.square().mean().sqrt()
    count = torch.arange(leaf.numel(), dtype=leaf.dtype, device=leaf.device).view_as(leaf)
    return torch.where(size > 0, size, 1.0) * torch.sin(1.0 + count)
