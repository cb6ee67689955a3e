"""Numbers of mirror maps for steps that do not call the map: multipliers and cached tables."""

from collections.abc import Callable, Iterable
from operator import attrgetter, is_
from typing import Any, Generic, TypeVar

from torch import Tensor

from mirrordescent._internal.derived import version_of
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.parts import claim_holds
from mirrordescent.trees import fits

T = TypeVar("T")
_MAPPINGS = ("_to_dual", "_to_primal", "_step", "to_dual", "to_primal", "step")
_version = attrgetter("_version")


def usable_diagonal(mirror: MirrorMap, like: Tensor) -> Tensor | float | None:
    """Return d of a map with ∇ψ(x) = d·x, or None if d cannot be used on tensors like this one.

    A subclass that overrides the map but inherits ``diagonal`` has no usable diagonal.
    """
    if not claim_holds(type(mirror), "diagonal", *_MAPPINGS):
        return None
    d = mirror.diagonal()
    if isinstance(d, Tensor) and not (has_type_of(d, like) and fits(d.shape, like.shape)):
        return None
    return d


def has_type_of(tensor: Tensor, like: Tensor) -> bool:
    """Return whether two tensors have the same dtype and device."""
    return tensor.dtype == like.dtype and tensor.device == like.device


class CachedMapValue(Generic[T]):
    """A value computed from the tensors of some maps, recomputed when one of them changes.

    Args:
        maps: Maps that the value depends on.
        compute: Function that returns the value.
    """

    def __init__(self, maps: Iterable[MirrorMap], compute: Callable[[], T]) -> None:
        self._compute = compute
        # Dicts of tensors instead of attributes: with hundreds of maps, the attribute lookup of
        # nn.Module would take longer than a step.
        self._places: list[tuple[dict[str, Any], str]] = []
        modules = {module for mirror in maps for module in mirror.modules()}
        for module in modules:
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and tensor.is_floating_point():
                        self._places.append((tensors, name))
        self._tensors: list[Tensor] = []
        self._versions: list[object] = []
        self._value: T | None = None

    def __call__(self) -> T:
        tensors = [holder[name] for holder, name in self._places]
        versions: list[object]
        try:
            versions = list(map(_version, tensors))
        except RuntimeError:  # inference tensors count no changes
            versions = list(map(version_of, tensors))
        if (
            self._value is None
            or versions != self._versions
            or not all(map(is_, tensors, self._tensors))
        ):
            self._value = self._compute()
            self._tensors = tensors
            self._versions = versions
        return self._value
