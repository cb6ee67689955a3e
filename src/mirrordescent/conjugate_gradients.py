"""The method of conjugate gradients for batches of linear systems."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from mirrordescent.trees import Tree, descend, dot, tree_map

T = TypeVar("T", bound=Tree)


class LinearSolution(NamedTuple, Generic[T]):
    """The solution of a batch of linear systems.

    Attributes:
        x: Solution.
        converged: Samples that reached the tolerance, (batch,) bool.
        singular: Samples that stopped because H has no curvature along a direction, (batch,) bool.
    """

    x: T
    converged: Tensor
    singular: Tensor


def conjugate_gradients(
    product: Callable[[T], T],
    b: T,
    tolerance: float | Tensor,
    max_iterations: int = 1000,
    start: T | None = None,
) -> LinearSolution[T]:
    """Solve Hx = b for symmetric, positive definite H, sample by sample, from x = 0.

    A sample stops when ‖b − Hx‖ ≤ tolerance·‖b‖, or when pᵀHp ≤ 0 for a direction p, which rounding
    or a singular H can cause.

    Args:
        product: Function v ↦ Hv.
        b: Right-hand side.
        tolerance: Tolerance of all samples, or of each, (batch,).
        max_iterations: Largest number of products.
        start: If given, the method begins there, and b is the residual at this point.

    >>> import torch
    >>> H = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> conjugate_gradients(lambda v: v @ H, torch.tensor([[3.0, 4.0]]), 1e-6).x
    tensor([[1.0000, 1.0000]])
    """
    x = tree_map(torch.zeros_like, b) if start is None else start
    residual = b
    direction = b
    square = dot(residual, residual)
    bound = torch.as_tensor(tolerance).to(square).square() * square
    running = square > bound
    singular = torch.zeros_like(running)
    for _ in range(max_iterations):
        if not bool(running.any()):
            break
        image = product(direction)
        curvature = dot(direction, image)
        positive = curvature > 0
        singular = singular | (running & ~positive)
        length = torch.where(running & positive, square / curvature, 0.0)
        x = _add(x, length, direction)
        residual = _add(residual, -length, image)
        previous = square
        square = dot(residual, residual)
        direction = _add(residual, torch.where(previous > 0, square / previous, 0.0), direction)
        running = running & positive & (square > bound)
    return LinearSolution(x, square <= bound, singular)


def _add(first: T, factor: Tensor, second: T) -> T:
    """Return first + factor·second, with a factor for every sample."""
    return tree_map(lambda a, b: descend(a, b, -factor), first, second)
