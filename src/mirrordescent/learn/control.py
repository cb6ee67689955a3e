"""Controls: the same method without a geometry, which tells what of a gain is the map's."""

import copy
from typing import TypeVar

import torch
from torch import nn

from mirrordescent._internal.checks import require_positive
from mirrordescent.domains import PositiveOrthant, WholeSpace
from mirrordescent.mirrors import ByKind, Diagonal, Euclidean, MirrorMap
from mirrordescent.mirrors.by_kind import KINDS, ScaledMap

M = TypeVar("M", bound=nn.Module)


def without_map(method: M, scale: float = 1.0) -> M:
    """Return a copy of a method with the identity in the place of its maps, or a multiple of it:
    ∇ψ(x) = scale·x.

    Schedules, oracles and everything else stay as they are. On a set the identity is the projection
    onto it, which has multiples if the set is a cone; of a map by kinds of layers only the maps are
    replaced, not the scales of the kinds.

    >>> from mirrordescent import AMD
    >>> from mirrordescent.mirrors import Stencil
    >>> stencil = Stencil(0.7)
    >>> control = without_map(AMD(stencil, 0.1, regulariser=stencil))
    >>> control.mirror, control.mirror is control.regulariser
    (Euclidean(WholeSpace), True)
    """
    require_positive(scale=scale)
    changed = copy.deepcopy(method)
    numbers = [*method.parameters(), *method.buffers()]
    like = next((each for each in numbers if each.is_floating_point()), torch.empty(0))
    replaced: dict[
        MirrorMap, MirrorMap
    ] = {}  # a map that serves twice is replaced by one that does
    for owner in list(changed.modules()):
        if isinstance(owner, MirrorMap):
            continue
        for name, child in list(owner._modules.items()):
            if isinstance(child, MirrorMap):
                owner._modules[name] = replaced.setdefault(child, _identity(child, scale).to(like))
    return changed


def _identity(mirror: MirrorMap, scale: float) -> MirrorMap:
    if isinstance(mirror, ByKind):
        maps = {kind: _identity(each, scale) for kind, each in zip(KINDS, mirror.maps, strict=True)}  # type: ignore[arg-type]
        return mirror.replace(maps=maps)
    if isinstance(mirror.primal_domain, WholeSpace):
        return Euclidean() if scale == 1 else Diagonal(scale)
    identity = Euclidean(mirror.primal_domain)
    if scale != 1 and not isinstance(mirror.primal_domain, PositiveOrthant):
        raise TypeError(
            f"on {mirror.primal_domain.description} there is no multiple of the identity: scale the steps"
        )
    return identity if scale == 1 else ScaledMap(identity, 1 / scale)
