"""Is a class of problems what it says? Asked before any learning begins."""

from __future__ import annotations

import torch

from mirrordescent.learn.families import Draw
from mirrordescent.problems.base import in_double
from mirrordescent.trees import dot, is_finite, norm, tree_map


@torch.no_grad()
def check_family(draw: Draw) -> None:
    """Raise unless values and gradients at the start are finite, and the gradient is that of the
    value.

    Along a direction d, ⟨∇f(x), d⟩ has to lie between (f(x) − f(x − hd))/h and (f(x + hd) −
    f(x))/h, up to rounding, as for every convex f, and for a smooth one to the order of h. In
    double precision, if that can be had, beside the
    start: at the start itself there may be kinks, where a gradient tells little.
    """
    problem = draw.problem
    x0 = draw.x0
    problem.check(x0)
    value = problem.value(x0)
    g = problem.grad(x0)
    if value.ndim != 1 or len(value) != len(norm(x0)):
        raise ValueError(
            f"value() must return one number per problem, got shape {tuple(value.shape)}"
        )
    if not bool(value.isfinite().all()):
        raise ValueError(
            "f is not finite at the start: look for NaN in the data, or give another x0"
        )
    if not bool(is_finite(g).all()):
        raise ValueError("the gradient is not finite at the start")
    precise, start = in_double(problem, x0)
    x = problem.domain.project(tree_map(_beside, start))
    toward = tree_map(
        torch.sub, problem.domain.project(tree_map(lambda leaf: leaf + _wave(leaf), x)), x
    )
    gradient = precise.grad(x)
    rounding = torch.finfo(dot(gradient, gradient).dtype).eps
    h = 1e-4 if rounding < 1e-12 else 1e-2
    middle, ahead, behind = (
        precise.value(tree_map(lambda leaf, d, s=s: leaf + s * d, x, toward)) for s in (0.0, h, -h)
    )
    slope = dot(gradient, toward)
    right = (ahead - middle) / h
    left = (middle - behind) / h
    low = torch.minimum(left, right)
    high = torch.maximum(left, right)
    size = (
        1e-6 * norm(gradient) * norm(toward)
        + 1e-3 * (right.abs() + left.abs())
        + max(1e-9, 8 * rounding) * (1 + middle.abs()) / h
    )
    wrong = (slope < low - size) | (slope > high + size)
    if bool(wrong.any()):
        i = int(wrong.nonzero()[0])
        raise ValueError(
            f"grad() is not the gradient of value(): along a direction, problem {i} changes by "
            f"{float(low[i]):.6g} to {float(high[i]):.6g}, and its gradient says {float(slope[i]):.6g}"
        )


def _wave(leaf: torch.Tensor) -> torch.Tensor:
    """Return a direction without symmetries, of the size of the tensor."""
    size = leaf.square().mean().sqrt().clamp(min=1e-3)
    return size * torch.sin(
        1.0 + torch.arange(leaf.numel(), dtype=leaf.dtype, device=leaf.device)
    ).view_as(leaf)


def _beside(leaf: torch.Tensor) -> torch.Tensor:
    return leaf + 0.01 * _wave(leaf).flip(-1)
