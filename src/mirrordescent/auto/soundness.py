"""Is a class of problems what it says? Asked before any learning begins."""

from __future__ import annotations

import copy

import torch

from mirrordescent.learn.families import Draw
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.trees import Tree, dot, is_finite, norm, tree_map


@torch.no_grad()
def require_sound(draw: Draw) -> None:
    """Raise unless values and gradients at the start are finite, and the gradient is that of the value.

    Along a direction d, ⟨∇f(x), d⟩ has to lie between (f(x) − f(x − hd))/h and (f(x + hd) − f(x))/h, up to rounding, as
    for every convex f, and for a smooth one to the order of h. In double precision, beside the start: at the start
    itself there may be kinks, where a gradient tells little.
    """
    problem, x0 = draw.problem, draw.x0
    problem.check(x0)
    value, g = problem.value(x0), problem.grad(x0)
    if value.ndim != 1 or len(value) != len(norm(x0)):
        raise ValueError(f"value() must return one number per problem, got shape {tuple(value.shape)}")
    if not bool(value.isfinite().all()):
        raise ValueError("f is not finite at the start: look for NaN in the data, or give another x0")
    if not bool(is_finite(g).all()):
        raise ValueError("the gradient is not finite at the start")
    precise = copy.deepcopy(problem).double()
    x = problem.domain.project(tree_map(lambda leaf: _beside(leaf.double()), x0))
    toward = tree_map(torch.sub, problem.domain.project(tree_map(lambda leaf: leaf + _wave(leaf), x)), x)
    h, gradient = 1e-4, precise.grad(x)
    middle, ahead, behind = (
        precise.value(tree_map(lambda leaf, d, s=s: leaf + s * d, x, toward)) for s in (0.0, h, -h)
    )
    slope, right, left = dot(gradient, toward), (ahead - middle) / h, (middle - behind) / h
    low, high = torch.minimum(left, right), torch.maximum(left, right)
    size = 1e-6 * norm(gradient) * norm(toward) + 1e-3 * (right.abs() + left.abs()) + 1e-9 * (1 + middle.abs()) / h
    wrong = (slope < low - size) | (slope > high + size)
    if bool(wrong.any()):
        i = int(wrong.nonzero()[0])
        raise ValueError(
            f"grad() is not the gradient of value(): along a direction, problem {i} changes by "
            f"{float(low[i]):.6g} to {float(high[i]):.6g}, and its gradient says {float(slope[i]):.6g}"
        )


@torch.no_grad()
def require_inverse(mirror: MirrorMap, x: Tree) -> None:
    """Raise unless ∇ψ*(∇ψ(x)) = x and ∇ψ is the gradient of ψ, at a point."""
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
        except NotImplementedError:  # a map may do without a potential, and then there is nothing to compare
            return
        found = torch.autograd.grad(potential, list(points.values()) if isinstance(points, dict) else [points])
    gradient = dict(zip(x, found, strict=True)) if isinstance(x, dict) else found[0]
    dual = mirror.to_dual(x)
    # Up to constants, which are nothing on a simplex: compared along differences of the points of a batch.
    toward = tree_map(lambda leaf: leaf.roll(1, 0) - leaf, x)
    off = (dot(tree_map(torch.sub, gradient, dual), toward)).abs()
    if not bool((off <= 1e-2 * (1e-6 + norm(dual) * norm(toward))).all()):
        raise ValueError(f"to_dual of {type(mirror).__name__} is not the gradient of its potential")


def _wave(leaf: torch.Tensor) -> torch.Tensor:
    """Return a direction without symmetries, of the size of the tensor."""
    size = leaf.square().mean().sqrt().clamp(min=1e-3)
    return size * torch.sin(1.0 + torch.arange(leaf.numel(), dtype=leaf.dtype, device=leaf.device)).view_as(leaf)


def _beside(leaf: torch.Tensor) -> torch.Tensor:
    return leaf + 0.01 * _wave(leaf).flip(-1)
