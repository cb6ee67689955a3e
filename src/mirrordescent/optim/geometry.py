"""Which map and method each parameter gets, from what a user names: a map, a layer-wise map, an
entry of the zoo.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from mirrordescent.methods.base import GradientMethod
from mirrordescent.mirrors import Euclidean, Layerwise, MirrorMap
from mirrordescent.optim.sharding import local_map
from mirrordescent.parts import Part, describe
from mirrordescent.schedules import Constant, Schedule, ScheduleLike, as_schedule
from mirrordescent.zoo import load

MirrorLike: TypeAlias = MirrorMap | str | Path | None
MakeMethod: TypeAlias = Callable[[MirrorMap, Schedule], GradientMethod[Any]]


class Chosen(NamedTuple):
    """A map, the schedule s of t_k = lr·s(k), and the learned method that brought both, if
    one did.
    """

    mirror: MirrorMap
    schedule: Schedule
    method: GradientMethod[Any] | None = None


def choose(mirror: MirrorLike, t: ScheduleLike | None, device: torch.device) -> Chosen:
    """Find out what a user has named; a learned method brings its own schedule unless ``t`` is
    given.
    """
    schedule = Constant(1.0) if t is None else as_schedule(t, "t")
    if mirror is None:
        return Chosen(Euclidean(), schedule)
    if isinstance(mirror, str | Path):
        entry = load(mirror).to(device)
        called = f"{str(mirror)!r} in the zoo"
        if not isinstance(entry, MirrorMap):
            if getattr(entry, "mirror", None) is None:
                raise ValueError(f"{called} ({type(entry).__name__}) has no mirror map")
            method: Any = usable(entry, called)
            return Chosen(
                method.mirror, schedule if t is not None else getattr(method, "t", schedule), method
            )
        mirror = entry
    if not isinstance(mirror, MirrorMap):
        raise TypeError(
            f"mirror must be a MirrorMap, the name of an entry of the zoo, or None; got {mirror!r}"
        )
    return Chosen(mirror, schedule)


def usable(method: object, called: str) -> GradientMethod[Any]:
    """Return a method if an optimiser can run it: all it can be given is the gradient in
    ``p.grad``.
    """
    if not isinstance(method, GradientMethod):
        raise TypeError(
            f"{called} ({type(method).__name__}) is not a method that is told gradients"
        )
    if method.oracle is not None:
        raise ValueError(
            f"{called} brings its own oracle, {type(method.oracle).__name__}, but an optimiser has no other gradients "
            f"than those in p.grad. Its map can be used alone: mirror=zoo.load(…).mirror"
        )
    return method


class Leaf(NamedTuple):
    """A parameter, and what it is called: by its name, if names were given."""

    called: str
    tensor: Tensor
    named: bool

    def part(self, mirror: MirrorMap) -> MirrorMap:
        """Return the map of this parameter: a layer-wise map has it by name, any other is shared by
        all.
        """
        if not isinstance(mirror, Layerwise):
            return local_map(mirror, self.tensor, self.called)
        if not self.named:
            raise ValueError(
                "a layer-wise map goes by the names of parameters: pass model.named_parameters()"
            )
        bare = self.called.replace(
            "_orig_mod.", ""
        )  # of torch.compile; the prefix is of DistributedDataParallel
        name = next(
            (
                each
                for each in (self.called, bare, bare.removeprefix("module."))
                if each in mirror.names
            ),
            None,
        )
        other = "a map made for another model:"
        if name is None and self.tensor.requires_grad:
            raise ValueError(
                f"{other} it has none for {self.called!r}, but for {', '.join(mirror.names)}"
            )
        if name is None:
            return _Unmapped(self.called)
        here = tuple(self.tensor.shape)
        there = (mirror.shapes or {}).get(name)
        if there not in (None, here):
            raise ValueError(f"{other} {name!r} has shape {there} there and {here} here")
        return local_map(mirror[name], self.tensor, self.called)

    def method(
        self, make: MakeMethod | None, chosen: Chosen, own: MirrorMap, t: Schedule
    ) -> GradientMethod[Any]:
        """Return the method of this parameter, with its own map and step sizes t: as made, or a
        learned one like it.
        """
        made = None if make is None else usable(make(own, t), "the method")
        learned = chosen.method
        if learned is None and made is None:
            raise TypeError(
                "give a method, such as method=methods.SMD, or an entry of the zoo that is one"
            )
        if learned is None or (made is not None and not _alike(made, learned)):
            return made  # type: ignore[return-value]
        if "t" not in learned._modules:
            raise ValueError(f"{type(learned).__name__} has no step sizes t for lr to scale")
        like = copy.copy(learned)
        like._modules = {
            name: self._on(module, learned, own) for name, module in learned._modules.items()
        } | {"t": t}
        return like

    def _on(
        self, module: nn.Module | None, learned: GradientMethod[Any], own: MirrorMap
    ) -> nn.Module | None:
        """Return a part of a learned method as it is on this parameter."""
        if module is learned.mirror:
            return own
        if isinstance(module, Euclidean) and isinstance(learned.mirror, Layerwise):
            return (
                module if module.diagonal() else Euclidean(own.primal_domain)
            )  # its set is a product
        return self.part(module) if isinstance(module, MirrorMap) else module


def _alike(made: GradientMethod[Any], learned: GradientMethod[Any]) -> bool:
    """Tell whether a learned method may take the place of another: of the same class, or one
    extends the other.
    """
    return isinstance(learned, type(made)) or isinstance(made, type(learned))


class _Unmapped(MirrorMap):
    """Stands in for the map of a parameter that has none, because it was frozen when a layer-wise
    map was made.
    """

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
    """Name a map by its type and, if layer-wise, those of its parts; a checkpoint must agree with
    it.
    """
    name = type(mirror).__name__
    parts = (
        sorted({type(part).__name__ for part in mirror.maps})
        if isinstance(mirror, Layerwise)
        else ()
    )
    return f"{name}({', '.join(parts)})" if parts else name


def settings_of(method: GradientMethod[Any], mirror: MirrorMap) -> str:
    """Describe a map and the settings of a method but for its step sizes, as JSON; null for what
    cannot be told.
    """
    taken = {name: value for name, value in _config(method).items() if name not in ("mirror", "t")}
    parts = {
        "mirror": mirror,
        **{name: "the map" if value is method.mirror else value for name, value in taken.items()},
    }
    return json.dumps({name: _described(value) for name, value in parts.items()}, sort_keys=True)


def require_same(saved: str, here: str) -> None:
    """Raise if two descriptions differ in what both of them describe."""
    there = json.loads(saved)
    ours = json.loads(here)
    for name in sorted(there.keys() & ours.keys()):
        if None not in (there[name], ours[name]) and there[name] != ours[name]:
            raise ValueError(
                f"this is a state of an optimiser with {name} = {_brief(there[name])}, and cannot be loaded where "
                f"it is {_brief(ours[name])}"
            )


def _config(method: GradientMethod[Any]) -> dict[str, Any]:
    try:
        return method.config()
    except TypeError:  # of a class that cannot be stored
        return {}


def _described(value: Any) -> Any:
    try:
        return describe(value) if isinstance(value, Part) else json.loads(json.dumps(value))
    except TypeError:
        return None


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 200 else f"{text[:200]}…"
