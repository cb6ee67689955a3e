"""Iterates: a tensor, or a dict of tensors, with the batch as the leading dimension.

Methods are written once for both, leaf by leaf: a batch of images is one tensor, the parameters of
networks are a dict.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

Tree: TypeAlias = Tensor | dict[str, Tensor]
Point: TypeAlias = (
    Any  # a tree, where an implementation of the interface says which of the two it takes
)
S = TypeVar("S")


def tree_map(function: Callable[..., Tensor], first: Tree, *rest: Tree) -> Tree:
    """Apply ``function`` to the corresponding leaves of trees of the same structure.

    >>> import torch
    >>> tree_map(torch.add, {"w": torch.ones(1, 2)}, {"w": torch.ones(1, 2)})
    {'w': tensor([[2., 2.]])}
    """
    if isinstance(first, Tensor):
        return function(first, *rest)
    return {name: function(leaf, *(tree[name] for tree in rest)) for name, leaf in first.items()}  # type: ignore[index]


def leaves(tree: Tree) -> Iterator[Tensor]:
    """Yield the tensors of a tree."""
    yield from (tree,) if isinstance(tree, Tensor) else tree.values()


def batch_size(tree: Tree) -> int:
    """Return the common length of the leading dimension."""
    return next(leaves(tree)).shape[0]


def fits(shape: torch.Size, target: torch.Size) -> bool:
    """Tell whether a tensor of one shape broadcasts to the other without changing it."""
    last = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(n in (1, m) for n, m in last)


def descend(y: Tensor, g: Tensor, t: float | Tensor) -> Tensor:
    """Return y − t·g, in one pass where t is a plain number; t may be one for every sample."""
    return y - spread(t, g) * g if isinstance(t, Tensor) else torch.sub(y, g, alpha=t)


def mix(weight: float | Tensor, first: Tree, second: Tree) -> Tree:
    """Return the convex combination weight·first + (1 − weight)·second; the weight may be one for
    every sample.
    """

    def combine(a: Tensor, b: Tensor) -> Tensor:
        return torch.lerp(
            b, a, spread(weight, a).to(a.dtype) if isinstance(weight, Tensor) else weight
        )

    return tree_map(combine, first, second)


def sum_per_sample(x: Tensor) -> Tensor:
    """Sum one tensor over every dimension but the leading one."""
    return x.reshape(x.shape[0], -1).sum(1)


def add_over_leaves(function: Callable[..., Tensor], first: Tree, *rest: Tree) -> Tensor:
    """Sum a number per sample over the leaves of trees: (batch,)."""
    if isinstance(first, Tensor):
        return function(first, *rest)
    return torch.stack(list(leaves(tree_map(function, first, *rest)))).sum(0)


def all_over_leaves(function: Callable[[Tensor], Tensor], tree: Tree) -> Tensor:
    """Tell per sample whether something holds on every leaf: (batch,) bool."""
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


def spread(number: Tensor, like: Tensor) -> Tensor:
    """Return a number as it is, or one for every sample so that it broadcasts."""
    return per_sample(number, like) if number.ndim == 1 else number


def where(mask: Tensor, first: S, second: S) -> S:
    """Take whole samples of one tree or state where ``mask`` (batch,) is true, and the others from
    a second one.
    """
    if bool(mask.all()):  # the usual case, which need not copy
        return first

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(per_sample(mask, a), a, b) if a.ndim else a

    return cast(S, map_tensors(choose, first, second))


def map_tensors(function: Callable[..., Any], first: Any, *rest: Any) -> Any:
    """Apply ``function`` to the corresponding tensors of states of the same structure: NamedTuples,
    dicts, lists.

    What is not a tensor, such as a count, is taken from the first state, and so is what the others
    do not have.
    """
    if isinstance(first, Tensor):
        return function(first, *rest) if all(isinstance(each, Tensor) for each in rest) else first
    if any(type(each) is not type(first) for each in rest):
        return first
    if isinstance(first, dict):
        return {
            name: map_tensors(function, part, *(each[name] for each in rest))
            for name, part in first.items()
        }
    if isinstance(first, list | tuple):
        parts = [map_tensors(function, *each) for each in zip(first, *rest, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first
