"""Trees: a tensor, or a dict of tensors, with the batch as the leading dimension.

Iterates are trees: a batch of images is one tensor, the parameters of networks are a dict. Methods
are written once for both, leaf by leaf.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

Tree: TypeAlias = Tensor | dict[str, Tensor]
Point: TypeAlias = Any
"""A tree in an interface whose implementations say whether it is a tensor or a dict."""
S = TypeVar("S")
SameTree = TypeVar("SameTree", bound=Tree)
"""A tensor or a dict; a function with it returns what it is given."""


def tree_map(function: Callable[..., Tensor], first: SameTree, *rest: Tree) -> SameTree:
    """Apply ``function`` to the corresponding leaves of trees of the same structure.

    >>> import torch
    >>> tree_map(torch.add, {"w": torch.ones(1, 2)}, {"w": torch.ones(1, 2)})
    {'w': tensor([[2., 2.]])}
    """
    if isinstance(first, Tensor):
        return function(first, *rest)  # type: ignore[return-value]
    mapped = {}
    for name, leaf in first.items():
        mapped[name] = function(leaf, *(tree[name] for tree in rest))  # type: ignore[index]
    return mapped  # type: ignore[return-value]


def leaves(tree: Tree) -> Iterator[Tensor]:
    """Yield the tensors of a tree."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        yield from tree.values()


def batch_size(tree: Tree) -> int:
    """Return the size of the leading dimension."""
    return next(leaves(tree)).shape[0]


def fits(shape: torch.Size, target: torch.Size) -> bool:
    """Tell whether a tensor of one shape broadcasts to exactly the target shape."""
    if len(shape) > len(target):
        return False
    last_dimensions = zip(reversed(shape), reversed(target), strict=False)
    return all(n in (1, m) for n, m in last_dimensions)


def descend(y: Tensor, g: Tensor, t: float | Tensor) -> Tensor:
    """Return y − t·g, where t is a number, or a tensor with one number for every sample."""
    if isinstance(t, Tensor):
        return y - spread(t, g) * g
    return torch.sub(y, g, alpha=t)  # in one pass


def mix(weight: float | Tensor, first: Tree, second: Tree) -> Tree:
    """Return weight·first + (1 − weight)·second.

    The weight is a number, or a tensor with one number for every sample.
    """

    def combine(a: Tensor, b: Tensor) -> Tensor:
        if isinstance(weight, Tensor):
            return torch.lerp(b, a, spread(weight, a).to(a.dtype))
        return torch.lerp(b, a, weight)

    return tree_map(combine, first, second)


def sum_per_sample(x: Tensor) -> Tensor:
    """Sum one tensor over every dimension but the leading one."""
    return x.reshape(x.shape[0], -1).sum(1)


def add_over_leaves(function: Callable[..., Tensor], first: Tree, *rest: Tree) -> Tensor:
    """Apply a function with values (batch,) to the leaves of trees, and return the sum."""
    if isinstance(first, Tensor):
        return function(first, *rest)
    return torch.stack(list(leaves(tree_map(function, first, *rest)))).sum(0)


def all_over_leaves(function: Callable[[Tensor], Tensor], tree: Tree) -> Tensor:
    """Tell for every sample whether a condition holds on all leaves: (batch,) bool."""
    return torch.stack([function(leaf) for leaf in leaves(tree)]).all(0)


def dot(first: Tree, second: Tree) -> Tensor:
    """Return the inner product ⟨first, second⟩ of every sample: (batch,)."""
    return add_over_leaves(lambda a, b: sum_per_sample(a * b), first, second)


def norm(tree: Tree) -> Tensor:
    """Return the Euclidean norm of every sample: (batch,)."""
    return dot(tree, tree).sqrt()


def is_finite(tree: Tree) -> Tensor:
    """Tell for every sample whether all entries are finite: (batch,) bool.

    A sum of finite numbers is finite unless it overflows, and a sum with another number never is.
    It is cheaper than testing the entries, which is done only if a sum is not finite.
    """
    by_sum = all_over_leaves(lambda leaf: sum_per_sample(leaf).isfinite(), tree)
    if bool(by_sum.all()):
        return by_sum
    return all_over_leaves(lambda leaf: leaf.isfinite().reshape(leaf.shape[0], -1).all(1), tree)


def per_sample(numbers: Tensor, like: Tensor) -> Tensor:
    """Reshape numbers (batch,) so that they broadcast to a tensor (batch, …)."""
    return numbers.reshape(-1, *[1] * (like.ndim - 1))


def spread(number: Tensor, like: Tensor) -> Tensor:
    """Reshape numbers (batch,) so that they broadcast to a tensor; return others as they are."""
    if number.ndim == 1:
        return per_sample(number, like)
    return number


def where(mask: Tensor, first: S, second: S) -> S:
    """Return a tree or state with samples of ``first`` where ``mask`` is true, else of ``second``.

    Args:
        mask: Samples to take from the first, (batch,) bool.
        first: Tree or state.
        second: Tree or state of the same structure.
    """
    if bool(mask.all()):  # the usual case, without a copy
        return first

    def choose(a: Tensor, b: Tensor) -> Tensor:
        if a.ndim == 0:
            return a
        return torch.where(per_sample(mask, a), a, b)

    return cast(S, map_tensors(choose, first, second))


def map_tensors(function: Callable[..., Any], first: Any, *rest: Any) -> Any:
    """Apply ``function`` to the corresponding tensors of states of the same structure.

    States are nested NamedTuples, dicts and lists. Values that are not tensors, such as counts, and
    parts that other states do not have are taken from the first state.
    """
    if isinstance(first, Tensor):
        if all(isinstance(each, Tensor) for each in rest):
            return function(first, *rest)
        return first
    if any(type(each) is not type(first) for each in rest):
        return first
    if isinstance(first, dict):
        return {
            name: map_tensors(function, part, *(each[name] for each in rest))
            for name, part in first.items()
        }
    if isinstance(first, list | tuple):
        parts = [map_tensors(function, *each) for each in zip(first, *rest, strict=True)]
        if hasattr(first, "_fields"):  # a NamedTuple
            return type(first)(*parts)
        return type(first)(parts)
    return first
