"""Controls: the same method without a geometry, to measure how much of a gain is due to the map."""

import copy
from typing import TypeVar

import torch
from torch import nn

from mirrordescent._internal.checks import require_positive
from mirrordescent.domains import PositiveOrthant, WholeSpace
from mirrordescent.mirrors import ByKind, Diagonal, Euclidean, MirrorMap
from mirrordescent.mirrors.by_kind import KINDS, ScaledMap
from mirrordescent.parts import rebuild_module

M = TypeVar("M", bound=nn.Module)


def without_map(method: M, scale: float = 1.0) -> M:
    """Return a copy of a method with ∇ψ(x) = scale·x in place of its mirror maps.

    Schedules, oracles and all other parts stay as they are. On a constrained domain the identity is
    the projection onto the domain; multiples of it exist if the domain is a cone. In a map by kinds
    of layers, the maps are replaced and the scales of the kinds stay.

    >>> from mirrordescent import AMD
    >>> from mirrordescent.mirrors import Stencil
    >>> stencil = Stencil(0.7)
    >>> control = without_map(AMD(stencil, 0.1, regulariser=stencil))
    >>> control.mirror, control.mirror is control.regulariser
    (Euclidean(WholeSpace), True)
    """
    require_positive(scale=scale)
    numbers = [*method.parameters(), *method.buffers()]
    like = next((each for each in numbers if each.is_floating_point()), torch.empty(0))

    def change(part: nn.Module) -> nn.Module:
        return _identity(part, scale).to(like) if isinstance(part, MirrorMap) else part

    return rebuild_module(copy.deepcopy(method), change, opaque=MirrorMap)


def has_map(method: nn.Module) -> bool:
    """Return whether a method has a mirror map other than the identity.

    >>> from mirrordescent import AMD, GD
    >>> from mirrordescent.mirrors import Stencil
    >>> has_map(AMD(Stencil(0.7), 0.1)), has_map(GD(0.1))
    (True, False)
    """
    return any(
        isinstance(part, MirrorMap) and not isinstance(part, Euclidean) for part in method.modules()
    )


def _identity(mirror: MirrorMap, scale: float) -> MirrorMap:
    if isinstance(mirror, ByKind):
        maps = {kind: _identity(each, scale) for kind, each in zip(KINDS, mirror.maps, strict=True)}  # type: ignore[arg-type]
        return mirror.replace(maps=maps)
    if isinstance(mirror.primal_domain, WholeSpace):
        return Euclidean() if scale == 1 else Diagonal(scale)
    identity = Euclidean(mirror.primal_domain)
    if scale != 1 and not isinstance(mirror.primal_domain, PositiveOrthant):
        raise TypeError(
            f"scale must be 1 on {mirror.primal_domain.description}, which has no multiple of the "
            f"identity, got {scale:g}: scale the step sizes instead"
        )
    return identity if scale == 1 else ScaledMap(identity, 1 / scale)
