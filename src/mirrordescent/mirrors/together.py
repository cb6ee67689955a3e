"""Directions of all tensors of a network in few calls."""

from functools import cached_property

from torch import Tensor

from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.by_kind import unscaled
from mirrordescent.mirrors.singular_values import SingularValues, approximate_directions


class Maps(tuple[MirrorMap, ...]):
    """Maps of many tensors, one each, of which those that are alike share their work.

    They are sorted out once, and their scales read once.
    """

    @cached_property
    def sizes(self) -> list[float]:
        """ℓ of each (:attr:`MirrorMap.direction_size`)."""
        return [each.direction_size for each in self]

    @cached_property
    def _matrices(self) -> dict[int, SingularValues]:
        bare = enumerate(map(unscaled, self))
        return {
            i: each
            for i, each in bare
            if isinstance(each, SingularValues) and each.products is not None
        }

    @cached_property
    def _others(self) -> dict[MirrorMap, list[int]]:
        found: dict[MirrorMap, list[int]] = {}
        for i, each in enumerate(map(unscaled, self)):
            if i not in self._matrices:
                found.setdefault(each, []).append(i)
        return found

    def unit_directions(self, ys: list[Tensor]) -> list[Tensor]:
        """Return the directions of tensors, one sample each, divided by ℓ: with entries of mean
        square 1.
        """
        found = list(ys)
        made = approximate_directions([(mirror, ys[i]) for i, mirror in self._matrices.items()])
        for i, d in zip(self._matrices, made, strict=True):
            found[i] = d
        for mirror, together in self._others.items():
            for i, d in zip(together, mirror.directions([ys[i] for i in together]), strict=True):
                found[i] = d if mirror.direction_size == 1 else d / mirror.direction_size
        return found
