"""Check of a class of problems before learning begins."""

from __future__ import annotations

import torch

from mirrordescent.learn.families import Draw
from mirrordescent.problems.base import in_double
from mirrordescent.problems.sizes import entry_sizes, natural_length
from mirrordescent.trees import Tree, dot, is_finite, norm, tree_map


@torch.no_grad()
def check_family(draw: Draw) -> None:
    """Raise an error if values or gradients at the start are not finite or contradict each other.

    For a convex f, ⟨∇f(x), d⟩ lies between (f(x) − f(x − hd))/h and (f(x + hd) − f(x))/h for every
    direction d. This is checked up to rounding, in double precision if the problem allows it, at a
    point near the start. At the start itself f may have kinks, where a gradient says little.

    Args:
        draw: Problems of the class.
    """
    _require_finite(draw)
    problem, start = in_double(draw.problem, draw.x0)
    domain = problem.domain
    sizes = entry_sizes(start, natural_length(problem, start))
    x = domain.project(tree_map(lambda a, size: a + 0.01 * size * _wave(a).flip(-1), start, sizes))
    ahead = domain.project(tree_map(lambda a, size: a + size * _wave(a), x, sizes))
    direction = tree_map(torch.sub, ahead, x)
    gradient = problem.grad(x)
    rounding = torch.finfo(dot(gradient, gradient).dtype).eps
    h = 1e-4 if rounding < 1e-12 else 1e-2

    def value_at(step: float) -> torch.Tensor:
        moved: Tree = tree_map(lambda leaf, d: leaf + step * d, x, direction)
        return problem.value(moved)

    middle = value_at(0.0)
    right = (value_at(h) - middle) / h
    left = (middle - value_at(-h)) / h
    low = torch.minimum(left, right)
    high = torch.maximum(left, right)
    slope = dot(gradient, direction)
    # f is computed from numbers of the size of f and of ⟨∇f(x), x⟩.
    size = middle.abs() + norm(gradient) * (norm(x) + norm(direction))
    tolerance = (
        1e-6 * norm(gradient) * norm(direction)
        + 1e-3 * (right.abs() + left.abs())
        + 32 * rounding * size / h
    )
    wrong = (slope < low - tolerance) | (slope > high + tolerance)
    if bool(wrong.any()):
        i = int(wrong.nonzero()[0])
        raise ValueError(
            "grad() is not the gradient of value(): the slope of problem "
            f"{i} along a direction lies between {float(low[i]):.6g} and {float(high[i]):.6g}, "
            f"but its gradient gives {float(slope[i]):.6g}"
        )


def _require_finite(draw: Draw) -> None:
    problem = draw.problem
    x0 = draw.x0
    problem.check(x0)
    value = problem.value(x0)
    if value.ndim != 1 or len(value) != len(norm(x0)):
        raise ValueError(
            f"value() must return one number per problem, got shape {tuple(value.shape)}"
        )
    if not bool(value.isfinite().all()):
        raise ValueError("f is not finite at the start: check the data for NaN, or change x0")
    if not bool(is_finite(problem.grad(x0)).all()):
        raise ValueError(
            "the gradient is not finite at the start: check the data for NaN, or change x0"
        )


def _wave(leaf: torch.Tensor) -> torch.Tensor:
    """Return a direction without symmetries, with entries of size 1."""
    angles = 1.0 + torch.arange(leaf.numel(), dtype=leaf.dtype, device=leaf.device)
    return torch.sin(angles).view_as(leaf)
