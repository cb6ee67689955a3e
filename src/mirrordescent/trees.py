"""Iterates: a tensor, or a dict of tensors, with the batch as the leading dimension.

Methods are written once, leaf by leaf, over both: an image batch is one tensor, the parameters of
a network are a dict of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tree: TypeAlias = Tensor | dict[str, Tensor]


def tree_map(function: Callable[..., Tensor], first: Tree, *rest: Tree) -> Tree:
    """Apply ``function`` to the corresponding leaves of trees of one structure.

    >>> import torch
    >>> tree_map(torch.add, {"w": torch.ones(1, 2)}, {"w": torch.ones(1, 2)})
    {'w': tensor([[2., 2.]])}
    """
    if isinstance(first, Tensor):
        return function(first, *rest)
    return {name: function(leaf, *(tree[name] for tree in rest)) for name, leaf in first.items()}  # type: ignore[index]


def leaves(tree: Tree) -> Iterator[Tensor]:
    """Yield the tensors of a tree."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        yield from tree.values()


def batch_size(tree: Tree) -> int:
    """Return the common length of the leading dimension."""
    return next(leaves(tree)).shape[0]


def fits(shape: torch.Size, target: torch.Size) -> bool:
    """Tell whether a tensor of one shape broadcasts to the other, and so leaves it as it is."""
    return len(shape) <= len(target) and all(
        n in (1, m) for n, m in zip(reversed(shape), reversed(target), strict=False)
    )


def descend(y: Tensor, g: Tensor, t: float | Tensor) -> Tensor:
    """Return y − t·g, in one pass where t is a plain number."""
    return y - t * g if isinstance(t, Tensor) else torch.sub(y, g, alpha=t)


def mix(weight: float | Tensor, first: Tree, second: Tree) -> Tree:
    """Return the convex combination weight·first + (1 − weight)·second."""

    def combine(a: Tensor, b: Tensor) -> Tensor:
        return torch.lerp(b, a, weight.to(a.dtype) if isinstance(weight, Tensor) else weight)

    return tree_map(combine, first, second)


def sum_per_sample(x: Tensor) -> Tensor:
    """Sum one tensor over every dimension but the leading one."""
    return x.reshape(x.shape[0], -1).sum(1)


def add_over_leaves(function: Callable[..., Tensor], first: Tree, *rest: Tree) -> Tensor:
    """Sum a per-sample number over the leaves of trees: (batch,)."""
    if isinstance(first, Tensor):
        return function(first, *rest)
    return torch.stack(list(leaves(tree_map(function, first, *rest)))).sum(0)


def all_over_leaves(function: Callable[[Tensor], Tensor], tree: Tree) -> Tensor:
    """Tell per sample whether a per-sample truth holds on every leaf: (batch,) bool."""
    return torch.stack([function(leaf) for leaf in leaves(tree)]).all(0)


def dot(first: Tree, second: Tree) -> Tensor:
    """Return the inner product per sample, ⟨first, second⟩: (batch,)."""
    return add_over_leaves(lambda a, b: sum_per_sample(a * b), first, second)


def norm(tree: Tree) -> Tensor:
    """Return the Euclidean norm per sample: (batch,)."""
    return dot(tree, tree).sqrt()


def is_finite(tree: Tree) -> Tensor:
    """Tell per sample whether every entry is finite: (batch,) bool."""
    return all_over_leaves(lambda leaf: leaf.isfinite().reshape(leaf.shape[0], -1).all(1), tree)


def per_sample(numbers: Tensor, like: Tensor) -> Tensor:
    """Reshape one number per sample, (batch,), so that it broadcasts to a tensor (batch, …)."""
    return numbers.reshape(-1, *[1] * (like.ndim - 1))


def where(mask: Tensor, first: Tree, second: Tree) -> Tree:
    """Choose whole samples: first where ``mask`` (batch,) is true, else second."""
    if bool(mask.all()):  # the usual case, which need not copy
        return first
    return tree_map(lambda a, b: torch.where(per_sample(mask, a), a, b), first, second)


def map_tensors(function: Callable[..., Any], first: Any, *rest: Any) -> Any:
    """Apply ``function`` to the corresponding tensors of states of one structure: NamedTuples, dicts, lists.

    What is not a tensor, such as a count, is taken from the first; so is what has another structure in the others.
    """
    if any(type(each) is not type(first) for each in rest):
        return first
    if isinstance(first, Tensor):
        return function(first, *rest)
    if isinstance(first, dict):
        return {name: map_tensors(function, part, *(each[name] for each in rest)) for name, part in first.items()}
    if isinstance(first, list | tuple):
        parts = [map_tensors(function, *each) for each in zip(first, *rest, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first


def choose_samples(mask: Tensor, first: Any, second: Any) -> Any:
    """Take whole samples of one state where ``mask`` (batch,) is true, and the others of another state."""
    if bool(mask.all()):
        return first
    return map_tensors(lambda a, b: torch.where(per_sample(mask, a), a, b) if a.ndim else a, first, second)
