"""The map and the method of each parameter, from the arguments of an optimiser."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from mirrordescent import zoo
from mirrordescent.execution.sharding import local_map
from mirrordescent.methods.base import GradientMethod
from mirrordescent.mirrors import Euclidean, Layerwise, MirrorMap
from mirrordescent.parts import Part, describe, replace_children
from mirrordescent.schedules import Constant, Schedule, ScheduleLike, as_schedule
from mirrordescent.zoo.hub import is_address
from mirrordescent.zoo.versions import split_version

MirrorLike: TypeAlias = MirrorMap | GradientMethod[Any] | str | Path | None
MakeMethod: TypeAlias = Callable[[MirrorMap, Schedule], GradientMethod[Any]]
Entries: TypeAlias = dict[str, nn.Module]


class GroupGeometry(NamedTuple):
    """A map, the schedule s of t_k = lr·s(k), and the entry of the zoo they come from, if any.

    Attributes:
        mirror: Map.
        schedule: Schedule s.
        method: Learned method, if the entry is one.
        entry: Name of the entry with its version.
    """

    mirror: MirrorMap
    schedule: Schedule
    method: GradientMethod[Any] | None = None
    entry: str | None = None


def resolve_geometry(
    mirror: MirrorLike, t: ScheduleLike | None, device: torch.device, entries: Entries
) -> GroupGeometry:
    """Return the geometry that a user has named.

    Args:
        mirror: A map, a learned method, the name or file of an entry of the zoo, or None for the
            Euclidean map.
        t: Schedule s; None for the schedule of a learned method, or 1.
        device: Device of the parameters.
        entries: Entries of the zoo that were loaded before; new ones are added.
    """
    schedule = Constant(1.0) if t is None else as_schedule(t, "t")
    if mirror is None:
        return GroupGeometry(Euclidean(), schedule)
    if isinstance(mirror, MirrorMap):
        return GroupGeometry(mirror, schedule)
    if isinstance(mirror, GradientMethod):
        given = require_usable(copy.deepcopy(mirror).to(device), "mirror")
        if given.mirror is None:
            raise ValueError(f"the method given as mirror, {type(given).__name__}, has no map")
        return GroupGeometry(
            given.mirror, schedule if t is not None else cast(Schedule, given.t), given
        )
    if not isinstance(mirror, str | Path):
        raise TypeError(
            f"mirror must be a MirrorMap, a learned method, the name of an entry of the zoo, or "
            f"None; got {mirror!r}"
        )
    entry = entry_on_device(mirror, device, entries)
    name = zoo.versioned(mirror)
    if isinstance(entry, MirrorMap):
        return GroupGeometry(entry, schedule, entry=name)
    source = f"{str(mirror)!r} in the zoo"
    if getattr(entry, "mirror", None) is None:
        raise ValueError(f"{source} ({type(entry).__name__}) has no mirror map")
    method: Any = require_usable(entry, source)
    if t is None:
        schedule = getattr(method, "t", schedule)
    return GroupGeometry(method.mirror, schedule, method, name)


def saved_version_of(mirror: MirrorLike, present: str, saved: str) -> str | Path:
    """Return the entry that a state was saved with, as an argument for an optimiser.

    Args:
        mirror: Name or file of the entry that the optimiser was constructed with.
        present: Entry of the optimiser, with its version.
        saved: Another version of the same entry.

    Raises:
        ValueError: The version was chosen by the user, or is not installed.
    """
    name, version = split_version(saved)
    reason = f"this is a state of {saved}, and this optimiser was constructed with {present}"
    if not isinstance(mirror, str | Path) or version is None:
        raise ValueError(f"{reason}: construct it with mirror={saved!r}")
    if split_version(str(mirror).removesuffix(".safetensors"))[1] is not None:
        raise ValueError(f"{reason}: construct it with mirror={saved!r} or mirror={name!r}")
    try:
        return zoo.at_version(mirror, version)
    except KeyError as error:
        raise ValueError(
            f"{reason}. {saved} is not installed: {error.args[0]}; or continue from the parameters "
            f"alone, without this state"
        ) from None


def other_versions(mirror: MirrorLike) -> list[str | Path]:
    """Return all versions of the entry that an optimiser was constructed with, the newest first.

    Entries on the hub cannot be listed, and a version that the user chose has no others.
    """
    if not isinstance(mirror, str | Path) or is_address(mirror):
        return []
    if split_version(str(mirror).removesuffix(".safetensors"))[1] is not None:
        return []
    return [zoo.at_version(mirror, version) for version in reversed(zoo.versions(mirror))]


def load_entry(name: str | Path, entries: Entries) -> nn.Module:
    """Return an entry of the zoo. It is read from its file once for each ``entries``."""
    key = str(name)
    if key not in entries:
        entries[key] = zoo.load(name)
    return entries[key]


def entry_on_device(name: str | Path, device: torch.device, entries: Entries) -> nn.Module:
    """Return an entry of the zoo on a device, one copy for each device."""
    key = f"{name} on {device}"
    if key not in entries:
        entries[key] = copy.deepcopy(load_entry(name, entries)).to(device)
    return entries[key]


def require_usable(method: object, source: str) -> GradientMethod[Any]:
    """Return a method if it can be run with the gradients in ``p.grad``, or raise."""
    if not isinstance(method, GradientMethod):
        raise TypeError(
            f"an optimiser needs a GradientMethod; got {type(method).__name__} from {source}"
        )
    if method.oracle is not None:
        raise ValueError(
            f"{source} brings its own oracle, {type(method.oracle).__name__}, but an optimiser "
            f"takes the gradients in p.grad. Use its map alone: mirror=zoo.load(…).mirror"
        )
    return method


class NamedTensor(NamedTuple):
    """A parameter with its name, or with its position if no names were given."""

    name: str
    tensor: Tensor
    has_name: bool

    def map_from(self, mirror: MirrorMap) -> MirrorMap:
        """Return the map of this parameter: its part of a layer-wise map, or the map itself."""
        if not isinstance(mirror, Layerwise):
            return local_map(mirror, self.tensor, self.name)
        if not self.has_name:
            raise ValueError(
                "a layer-wise map needs the names of the parameters: pass model.named_parameters()"
            )
        name = self._name_in(mirror)
        if name is None and self.tensor.requires_grad:
            raise ValueError(
                f"a map made for another model: it has no map for {self.name!r}, only for "
                f"{', '.join(mirror.names)}"
            )
        if name is None:
            return _MissingMap(self.name)
        shape = tuple(self.tensor.shape)
        expected = (mirror.shapes or {}).get(name, shape)
        if expected != shape:
            raise ValueError(
                f"a map made for another model: {name!r} has shape {expected} there and "
                f"{shape} here"
            )
        return local_map(mirror[name], self.tensor, self.name)

    def _name_in(self, mirror: Layerwise) -> str | None:
        """Return the name of this parameter in a layer-wise map.

        ``torch.compile`` adds ``_orig_mod.`` to names, ``DistributedDataParallel`` adds
        ``module.``.
        """
        bare = self.name.replace("_orig_mod.", "")
        for name in (self.name, bare, bare.removeprefix("module.")):
            if name in mirror.names:
                return name
        return None

    def method(
        self, make: MakeMethod | None, geometry: GroupGeometry, mirror: MirrorMap, t: Schedule
    ) -> GradientMethod[Any]:
        """Return the method of this parameter.

        Args:
            make: Class or function that returns a method.
            geometry: Geometry of the group. If it comes from a learned method, that method is used,
                unless ``make`` returns one of an unrelated class.
            mirror: Map of this parameter.
            t: Step sizes.
        """
        made = None if make is None else require_usable(make(mirror, t), "the method")
        learned = geometry.method
        if learned is None or (made is not None and not _is_compatible(made, learned)):
            if made is None:
                raise TypeError(
                    "give a method, such as method=methods.SMD, or an entry of the zoo that is one"
                )
            return made
        if "t" not in learned._modules:
            raise ValueError(f"{type(learned).__name__} has no step sizes t for lr to scale")
        parts = {
            name: self._adapted_part(part, learned, mirror)
            for name, part in learned._modules.items()
        }
        return replace_children(learned, {**parts, "t": t})

    def _adapted_part(
        self, part: nn.Module | None, learned: GradientMethod[Any], mirror: MirrorMap
    ) -> nn.Module | None:
        """Return a part of a learned method for this parameter."""
        if part is learned.mirror:
            return mirror
        if isinstance(part, Euclidean) and isinstance(learned.mirror, Layerwise):
            # Its domain is a product; the map of this parameter knows its factor.
            return part if part.diagonal() else Euclidean(mirror.primal_domain)
        return self.map_from(part) if isinstance(part, MirrorMap) else part


def _is_compatible(made: GradientMethod[Any], learned: GradientMethod[Any]) -> bool:
    """Return whether two methods have the same class, or one class extends the other."""
    return isinstance(learned, type(made)) or isinstance(made, type(learned))


class _MissingMap(MirrorMap):
    """Placeholder for the map of a parameter that was frozen when a layer-wise map was made."""

    elementwise = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _to_dual(self, x: Tensor) -> Tensor:
        raise ValueError(
            f"parameter {self.name} was frozen when the layer-wise map was made, and has no map: "
            f"construct the map and the optimiser again"
        )


def map_name(mirror: MirrorMap) -> str:
    """Return the class of a map and, if it is layer-wise, the classes of its parts.

    A checkpoint can be loaded only where this name is the same.
    """
    name = type(mirror).__name__
    if not isinstance(mirror, Layerwise):
        return name
    parts = sorted({type(part).__name__ for part in mirror.maps})
    return f"{name}({', '.join(parts)})"


def describe_settings(method: GradientMethod[Any], mirror: MirrorMap) -> str:
    """Return a map and the settings of a method, without step sizes, as JSON.

    A value that cannot be described is null.
    """
    settings: dict[str, Any] = {"mirror": mirror}
    for name, value in _config(method).items():
        if name not in ("mirror", "t"):
            settings[name] = "the map" if value is method.mirror else value
    described = {name: _description(value) for name, value in settings.items()}
    return json.dumps(described, sort_keys=True)


def require_same_settings(saved: str, present: str) -> None:
    """Raise ValueError if two descriptions differ in a setting that both have."""
    old = json.loads(saved)
    new = json.loads(present)
    for name in sorted(old.keys() & new.keys()):
        if None not in (old[name], new[name]) and old[name] != new[name]:
            raise ValueError(
                f"this is a state of an optimiser with {name} = {_shortened(old[name])}, and "
                f"cannot be loaded where it is {_shortened(new[name])}"
            )


def have_same_settings(saved: str | None, present: str | None) -> bool:
    """Return whether two descriptions agree as far as both are known."""
    try:
        require_same_settings(saved or "{}", present or "{}")
    except ValueError:
        return False
    return True


def _config(method: GradientMethod[Any]) -> dict[str, Any]:
    try:
        return method.config()
    except TypeError:  # the class cannot be stored
        return {}


def _description(value: Any) -> Any:
    try:
        return describe(value) if isinstance(value, Part) else json.loads(json.dumps(value))
    except TypeError:
        return None


def _shortened(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 200 else f"{text[:200]}…"
