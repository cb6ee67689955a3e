"""What maps declare (``MirrorMap.diagonal``, ``MirrorMap.lines``), for steps that do without
``update``.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter, is_
from typing import Any, Generic, TypeVar

from torch import Tensor

from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.parts import written_together
from mirrordescent.trees import fits

T = TypeVar("T")
_COMPUTED = ("_to_dual", "_to_primal", "_step", "to_dual", "to_primal", "step")
_version = attrgetter("_version")


def diagonal(mirror: MirrorMap, like: Tensor) -> Tensor | float | None:
    """Return the d of a map with ∇ψ(x) = d·x, if it is one and d can be used on such tensors as it
    is.
    """
    d = mirror.diagonal() if written_together(type(mirror), "diagonal", *_COMPUTED) else None
    return (
        d if not isinstance(d, Tensor) or (_alike(d, like) and fits(d.shape, like.shape)) else None
    )


def lines(mirror: MirrorMap, like: Tensor) -> Tensor | None:
    """Return the lines of a map that is piecewise linear, if it is one and they are of the type of
    such tensors.
    """
    found = mirror.lines() if written_together(type(mirror), "lines", *_COMPUTED) else None
    return found if found is not None and _alike(found, like) else None


def _alike(tensor: Tensor, like: Tensor) -> bool:
    return tensor.dtype == like.dtype and tensor.device == like.device


class Reading(Generic[T]):
    """Something computed from the numbers of some maps, and recomputed whenever one of them has
    changed.
    """

    def __init__(self, maps: Iterable[MirrorMap], make: Callable[[], T]) -> None:
        modules = {module for mirror in maps for module in mirror.modules()}
        # Not by attribute: hundreds of maps have less time for one step than a module takes to find
        # its attribute.
        held: list[dict[str, Any]] = [
            part for each in modules for part in (each._parameters, each._buffers)
        ]
        named = [
            (part, name) for part in held for name, tensor in part.items() if tensor is not None
        ]
        self._where = [(part, name) for part, name in named if part[name].is_floating_point()]
        self._make = make
        self._seen = list[Tensor]()
        self._versions = list[int]()
        self._made: T | None = None

    def __call__(self) -> T:
        seen = [part[name] for part, name in self._where]
        versions = list(map(_version, seen))
        if self._made is None or versions != self._versions or not all(map(is_, seen, self._seen)):
            self._seen, self._versions, self._made = seen, versions, self._make()
        return self._made
