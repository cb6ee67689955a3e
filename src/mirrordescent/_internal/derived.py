"""Numbers derived from tensors, computed again when the tensors change."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

T = TypeVar("T")


class Derived(Generic[T]):
    """Keep the result of a function of some tensors for each owner.

    The result is computed again if a tensor was replaced or changed in place by torch. It is always
    computed again if a tensor needs a gradient or was made in inference mode, which counts no
    changes. A change through another view of the memory, such as a NumPy array, is not noticed: use
    the function itself where a proof depends on the result.

    Args:
        compute: Function of the tensors.
        with_owner: Whether the owner is the first argument of the function.
    """

    def __init__(self, compute: Callable[..., T], with_owner: bool = False) -> None:
        self.compute = compute
        self.with_owner = with_owner
        self._kept: WeakKeyDictionary[Any, tuple[list[tuple[Tensor | None, int]], T]]
        self._kept = WeakKeyDictionary()

    def __call__(self, owner: object, *tensors: Tensor | None) -> T:
        """Return the result for the tensors of an owner."""
        kept = self._kept.get(owner)
        if kept is not None and _unchanged(kept[0], tensors):
            return kept[1]
        return self.computed_again(owner, *tensors)

    def computed_again(self, owner: object, *tensors: Tensor | None) -> T:
        """Compute the result for the tensors of an owner anew, and keep it."""
        arguments = (owner, *tensors) if self.with_owner else tensors
        for tensor in tensors:
            if tensor is not None and (tensor.requires_grad or tensor.is_inference()):
                return self.compute(*arguments)
        with torch.inference_mode(False):
            result = self.compute(*arguments)
        versions = [(t, 0 if t is None else t._version) for t in tensors]
        self._kept[owner] = versions, result
        return result


def version_of(tensor: Tensor) -> object:
    """Return a value that changes whenever torch changes a tensor in place.

    Inference tensors do not count changes, so every call for one of them returns a new value.
    """
    return object() if tensor.is_inference() else tensor._version


def _unchanged(
    versions: list[tuple[Tensor | None, int]], tensors: tuple[Tensor | None, ...]
) -> bool:
    for (tensor, version), current in zip(versions, tensors, strict=True):
        if current is not tensor:
            return False
        if current is not None and (current.requires_grad or current._version != version):
            return False
    return True
