"""Typical sizes of points, so that tests at samples do not depend on the units of the data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mirrordescent.domains import Domain
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, leaves, norm, tree_map


def entry_sizes(start: Tree, length: float = 1.0) -> Tree:
    """Return the typical size of an entry, for every leaf: its root mean square.

    Args:
        start: Point.
        length: Size for leaves that are 0.
    """

    def size(leaf: Tensor) -> Tensor:
        largest = leaf.detach().abs().amax()
        if not bool(largest > 0):
            return leaf.new_tensor(length)
        return (leaf.detach() / largest).square().mean().sqrt() * largest

    return tree_map(size, start)


@torch.no_grad()
def natural_length(problem: Problem, start: Tree) -> float:
    """Return the size of the steps on which f changes, for a start with entries that are all 0.

    It is ‖∇f(0)‖/L for a known smoothness L, else |f(0)|/‖∇f(0)‖, both divided by √n. In other
    units of x and f, it changes like x. The result is 1 if it is not needed, because no leaf of the
    start is 0 or the domain is bounded; or if these numbers are 0 or not finite.
    """
    if problem.domain.bounded or all(bool(leaf.any()) for leaf in leaves(start)):
        return 1.0
    entries = sum(leaf[0].numel() for leaf in leaves(start))
    steepness = float(norm(problem.grad(start)).max())
    smoothness = problem.smoothness()
    if smoothness is not None and 0 < smoothness < math.inf:
        length = steepness / smoothness
    else:
        length = float(problem.value(start).abs().max()) / (steepness or math.inf)
    length /= math.sqrt(entries)
    return length if 0 < length < math.inf else 1.0


def inner_point(domain: Domain, x: Tree, sizes: Tree) -> Tree:
    """Return an inner point of a set; of a cone, one whose entries have given sizes."""
    inner = domain.inner_point(x)
    if domain.bounded:
        return inner
    return tree_map(torch.mul, inner, sizes)
