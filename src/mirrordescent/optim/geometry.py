"""Which map each parameter gets, from what a user names: nothing, a map, a layer-wise map, an entry of the zoo."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from mirrordescent import methods
from mirrordescent.domains import PositiveOrthant, WholeSpace
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.layerwise import Layerwise
from mirrordescent.mirrors.quadratic import Euclidean
from mirrordescent.schedules import Constant, Schedule, ScheduleLike, as_schedule
from mirrordescent.zoo import load

MirrorLike: TypeAlias = MirrorMap | str | Path | None


def as_mirror(mirror: MirrorLike, t: ScheduleLike | None, device: torch.device) -> tuple[MirrorMap, Schedule]:
    """Return the map and the schedule s of t_k = lr·s(k); a learned method brings its own unless ``t`` is given."""
    schedule = None if t is None else as_schedule(t, "t")
    if mirror is None:
        return Euclidean(), schedule or Constant(1.0)
    if isinstance(mirror, MirrorMap):
        return mirror, schedule or Constant(1.0)
    if not isinstance(mirror, str | Path):
        raise TypeError(f"mirror must be a MirrorMap, the name of an entry of the zoo, or None; got {mirror!r}")
    entry = load(mirror).to(device)
    if isinstance(entry, MirrorMap):
        return entry, schedule or Constant(1.0)
    if not isinstance(entry, (methods.MD, methods.SMD, methods.AMD, methods.ASMD)):
        raise ValueError(f"{mirror!r} in the zoo is a {type(entry).__name__}, which has no mirror map")
    return entry.mirror, schedule or entry.t


def map_of(mirror: MirrorMap, name: str | None, parameter: Tensor) -> MirrorMap:
    """Return the map of one parameter: a layer-wise map has it by name, any other is shared by all."""
    if not isinstance(mirror, Layerwise):
        return mirror
    if name is None:
        raise ValueError("a layer-wise map goes by the names of parameters: pass model.named_parameters()")
    own = _name_in(mirror, name)
    if own is None and not parameter.requires_grad:
        return _Unmapped(name)
    if own is None:
        raise ValueError(f"a map made for another model: it has none for {name!r}, but for {', '.join(mirror.names)}")
    if mirror.shapes is not None and mirror.shapes[own] != tuple(parameter.shape):
        raise ValueError(
            f"a map made for another model: {own!r} has shape {mirror.shapes[own]} there and "
            f"{tuple(parameter.shape)} here"
        )
    return mirror[own]


def _name_in(mirror: Layerwise, name: str) -> str | None:
    """Find a parameter under the name it has without the wrappers of torch.compile and DistributedDataParallel."""
    bare = name.replace("_orig_mod.", "")
    candidates = (bare, bare.removeprefix("module."))
    return next((candidate for candidate in candidates if candidate in mirror.names), None)


class _Unmapped(MirrorMap):
    """In place of the map of a parameter that was frozen when a layer-wise map was made, and has none."""

    elementwise = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _to_dual(self, x: Tensor) -> Tensor:
        raise ValueError(
            f"parameter {self.name} was frozen when the layer-wise map was made, and has none: "
            f"make the map and the optimiser anew"
        )


def kind(mirror: MirrorMap) -> str:
    """Name a map by its type and, if layer-wise, those of its parts: what a checkpoint must agree with."""
    name = type(mirror).__name__
    parts = sorted({type(part).__name__ for part in mirror.maps}) if isinstance(mirror, Layerwise) else ()
    return f"{name}({', '.join(parts)})" if parts else name


def determines_its_dual(mirror: MirrorMap) -> bool:
    """Tell whether y = ∇ψ(x) can be had from x = ∇ψ*(y) at any time, entry by entry, so that y need not be stored.

    Not after a projection, and not at the ends of an interval, where x is rounded to the end and would stay there.
    """
    domain = mirror.primal_domain
    open_end = isinstance(domain, PositiveOrthant) and not mirror.defined_on_boundary
    return mirror.exact and mirror.elementwise and (isinstance(domain, WholeSpace) or open_end)
