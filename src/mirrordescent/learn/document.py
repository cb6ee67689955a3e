"""Recipes in TOML documents with the tables [family], [map], [method] and [settings].

A document imports nothing. A module that it names, as in ``type = "my_module:MyMap"``, must have
been imported: by ``--import my_module`` on the command line, or by ``import my_module`` in Python.
"""

import copy
import inspect
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Generator, Tensor, nn

from mirrordescent import data, mirrors
from mirrordescent._internal.memory_limits import Bounded
from mirrordescent._internal.suggestions import require_known
from mirrordescent.learn.families import (
    DenoisingFamily,
    InpaintingFamily,
    Pooled,
    ProblemFamily,
    SVMFamily,
)
from mirrordescent.learn.network_families import moons_family
from mirrordescent.learn.recipe import Recipe, Unrolled
from mirrordescent.learn.settings import Settings
from mirrordescent.learn.tables import Table, apply, changed, require_type
from mirrordescent.methods import Method, named, names
from mirrordescent.methods.naming import takes
from mirrordescent.mirrors import (
    Conjugate,
    ConvICNN,
    DenseICNN,
    Diagonal,
    LearnedPair,
    MirrorMap,
    layerwise,
)
from mirrordescent.parts import build, find
from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.schedules import PowerLaws, Prefix, Schedule

MEMORY = 8e9
"""Largest memory in bytes for a map or a family. More is probably a typing error."""
CALLS = 100_000
"""Largest number of operations for a map or a family."""
LARGEST = {"layers": 1000, "filters": 4096, "width": 65536}
"""Largest sizes of networks."""
TABLES = ("family", "map", "method", "settings")
METHOD_ENTRIES: dict[str, type] = {
    "name": str,
    "step": float,
    "schedule": str,
    "extension": str,
    "power": float,
}
"""Types of the entries of [method]."""


def read_recipe(path: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a TOML document.

    - ``[family]`` has a ``type``: inpainting, denoising, svm, moons, or your own class. With
      ``pool = 128`` the problems are a pool of 128 with certified lower bounds.
    - ``[map]`` has a ``type``: conjugate, pair, diagonal or spline, with the shape of the family's
      points; the name of a map of the library; or your own class.
    - ``[method]`` has a ``name``, such as lsmd, or your own class; the first ``step``; and the
      ``extension`` of the step sizes beyond the horizon. With ``schedule = "power-laws"``, the step
      sizes are a few numbers that powers of k connect, with the exponent ``power`` beyond the
      horizon.
    - ``[settings]`` has the fields of :class:`Settings`.

    All other entries are arguments of the family, the map or the method. With ``control = true`` at
    the top, the recipe is that of the control, with the identity instead of the map.

    Args:
        path: TOML file.
        changes: Changes ``table.key=value`` of the document.
    """
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a TOML document: {error}") from error
    apply(changes, document)
    for key in document:
        require_known(key, ("name", "description", "control", *TABLES), f"entry of {path}")
    tables = {table: document.get(table, {}) for table in TABLES}
    for table, entries in tables.items():
        if not isinstance(entries, dict):
            raise ValueError(f"{table} in {path} must be a table: [{table}]")
    settings = changed(Settings(), tables["settings"], "settings")
    source = str(tables["family"].get("source", ""))
    name = document.get("name", path.stem)
    description = document.get("description", f"learned from {path.name}")
    control = document.get("control", False)
    require_type(name, str, "name")
    require_type(description, str, "description")
    require_type(control, bool, "control")
    recipe = Recipe(
        name=name,
        description=description,
        family=lambda directory: _family(tables["family"], path.resolve().parent),
        method=lambda generator, family: _method(tables, settings.horizon, generator, family),
        stages=[Unrolled(settings)],
        on=", ".join(f"{key} = {value}" for key, value in tables["family"].items()),
        data=source,
        problems=settings.validation.batch,
    )
    return recipe.control() if control else recipe


def _family(table: Table, folder: Path) -> ProblemFamily:
    """Return the family that [family] describes. Paths are relative to the folder."""
    entries = dict(table)
    pool = entries.pop("pool", None)
    kind = str(entries.pop("type", "inpainting"))
    if ":" in kind:
        family = _call(_user_class(kind, ProblemFamily), entries, "[family]")
    else:
        require_known(kind, FAMILIES, "type of [family]")
        family = _call(FAMILIES[kind], entries, "[family]", folder=folder)
    if pool is None:
        return family
    require_type(pool, int, "[family] pool")
    return _construct("[family] pool", lambda: Pooled(family, pool))


def _inpainting(folder: Path, source: str = "bundled", **options: Any) -> InpaintingFamily:
    _require_options(InpaintingFamily, options)
    return InpaintingFamily(*_pictures(source, folder), **options)


def _denoising(
    folder: Path, source: str = "bundled", noise: float = 0.05, **options: Any
) -> DenoisingFamily:
    _require_options(DenoisingFamily, options)
    generator = torch.Generator().manual_seed(0)

    def add_noise(pictures: list[Tensor]) -> list[Tensor]:
        return [
            picture + noise * torch.randn(picture.shape, generator=generator)
            for picture in pictures
        ]

    training, held_out = _pictures(source, folder)
    noisy_training = add_noise(training)
    return DenoisingFamily(noisy_training, add_noise(held_out), **options)


def _require_options(family: type, options: Table) -> None:
    for key, value in options.items():
        require_type(value, _hints(family).get(key), f"[family] {key}")


def _svm(folder: Path, first: int = 4, second: int = 9, C: float = 1.0) -> SVMFamily:
    """Classify two of the bundled digits by their pixels."""
    images, labels = data.digits("train")
    chosen = (labels == first) | (labels == second)
    signs = torch.where(labels[chosen] == second, 1.0, -1.0)
    return SVMFamily(images[chosen].flatten(1), signs, C)


def _pictures(source: str, folder: Path) -> tuple[list[Tensor], list[Tensor]]:
    """Return pictures for training and for validation."""
    if source != "bundled" and (folder / source).exists():
        source = str(folder / source)  # relative to the document
    return data.pictures(source, "train"), data.pictures(source, "test")


def _moons(folder: Path, **options: Any) -> ProblemFamily:
    return moons_family(**options)


FAMILIES: dict[str, Callable[..., ProblemFamily]] = {
    "inpainting": _inpainting,
    "denoising": _denoising,
    "svm": _svm,
    "moons": _moons,
}


def _method(
    tables: Mapping[str, Table], horizon: int, generator: Generator, family: ProblemFamily
) -> Method[Any]:
    """Return the method that [method] and [map] describe."""
    entries: Table = {"name": "lsmd", **tables["method"]}
    for key, kind in METHOD_ENTRIES.items():
        if key in entries:
            require_type(entries[key], kind, f"[method] {key}")
    name = str(entries.pop("name"))
    steps = _steps(entries, horizon)
    # Classes that take no generator use the global one, which is seeded here.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        if ":" in name:
            return _user_method(name, entries, steps, tables["map"], family)
        require_known(name.casefold(), names(), "method")
        for key in entries:
            require_known(key, list(METHOD_ENTRIES), "entry of [method]")
        mirror = None
        if takes(name.casefold(), "mirror") or tables["map"]:
            mirror = _map(tables["map"], family)
        return named(name, mirror, steps)


def _user_method(
    name: str, entries: Table, steps: Schedule, map_table: Table, family: ProblemFamily
) -> Method[Any]:
    """Return a method of a user's class, with a map and step sizes if its constructor has them."""
    cls = _user_class(name, Method)
    accepted = inspect.signature(cls).parameters
    arguments: Table = {}
    if "mirror" in accepted:
        arguments["mirror"] = _map(map_table, family)
    if "t" in accepted:
        arguments["t"] = steps
    method: Method[Any] = _call(cls, entries, "[method]", **arguments)
    return method


def _steps(entries: Table, horizon: int) -> Schedule:
    """Return step sizes to learn: one for every step, or a few values that powers of k connect."""
    step = entries.pop("step", 0.3)
    kind = entries.pop("schedule", "prefix")
    require_known(kind, ("prefix", "power-laws"), "schedule of [method]")
    if kind == "prefix":
        return Prefix([step] * horizon, entries.pop("extension", "reciprocal"))
    powers = [2**i for i in range(horizon.bit_length()) if 2**i < horizon]
    counts = [*powers, horizon]
    return PowerLaws(counts, [step] * len(counts), entries.pop("power", 1.0))


def _map(table: Table, family: ProblemFamily) -> MirrorMap:
    """Return the map that [map] describes."""
    entries = dict(table)
    draw = family.validation(1)
    networks = draw.problem if isinstance(draw.problem, NetworkTraining) else None
    default = "conjugate" if networks is None else "diagonal"
    kind = str(entries.pop("type", default))
    if ":" in kind:
        return _call(_user_class(kind, MirrorMap), entries, "[map]")
    if networks is not None and kind in NETWORK_MAPS:
        model = copy.deepcopy(networks.model).requires_grad_(True)
        inputs = networks.inputs.flatten(0, networks.targets.ndim - 1)[:1]
        return _construct("[map]", lambda: layerwise(model, kind, example=inputs, **entries))  # type: ignore[arg-type]
    if kind in MAPS:
        if not isinstance(draw.x0, Tensor):
            known = ", ".join(NETWORK_MAPS)
            raise ValueError(f"[map] type must be one of {known} for networks, got {kind!r}")
        return _call(MAPS[kind], entries, "[map]", example=draw.x0)
    require_known(kind, (*LIBRARY, *MAPS), "type of [map]")
    arguments = _construct(
        "[map]", lambda: {key: build(value, {}) for key, value in entries.items()}
    )
    return _call(find(kind), arguments, "[map]")


def _potential(example: Tensor, options: Table) -> ConvICNN | DenseICNN:
    """Return an input-convex network for points with the shape of an example."""
    hints = {"seed": int, **_hints(ConvICNN if example.ndim == 4 else DenseICNN)}
    for key, value in options.items():
        require_type(value, hints.get(key), f"[map] {key}")
    for key, largest in LARGEST.items():
        if options.get(key, 1) > largest:
            raise ValueError(f"[map] {key} must be at most {largest}, got {options[key]}")
    generator = torch.Generator().manual_seed(options.pop("seed", 0))
    if example.ndim == 4:
        options.setdefault("layers", 1)  # on images as good as two layers, at half the cost
        return ConvICNN(example.shape[1], **options, generator=generator)
    return DenseICNN(example.shape[-1], **options, generator=generator)


def _conjugate(example: Tensor, start: Any = "scaled", **options: Any) -> Conjugate:
    return Conjugate(_potential(example, options), start)


def _pair(example: Tensor, seed: int = 0, **options: Any) -> LearnedPair:
    forward = _potential(example, {**options, "seed": seed})
    backward = _potential(example, {**options, "seed": seed + 1})
    return LearnedPair(forward, backward)


def _diagonal(example: Tensor) -> Diagonal:
    return Diagonal(nn.Parameter(torch.ones_like(example[0])))


MAPS: dict[str, Callable[..., MirrorMap]] = {
    "conjugate": _conjugate,
    "pair": _pair,
    "diagonal": _diagonal,
}
NETWORK_MAPS = ("diagonal", "spline")
"""Kinds of layerwise maps."""
LIBRARY = [
    name
    for name, each in vars(mirrors).items()
    if isinstance(each, type) and issubclass(each, MirrorMap)
]
"""Names of the library's maps."""


def _call(function: Callable[..., Any], entries: Table, where: str, **given: Any) -> Any:
    """Call a function with the entries of a table as arguments.

    Args:
        function: Function or class.
        entries: Entries of the table.
        where: Name of the table, for error messages.
        given: Arguments that are not in the table.
    """
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        accepted = [p.name for p in parameters if p.name not in given]
        for key in entries:
            require_known(key, accepted, f"entry of {where}")
    hints = _hints(function)
    for key, value in entries.items():
        require_type(value, hints.get(key), f"{where} {key}")
    return _construct(where, lambda: function(**given, **entries))


def _construct(where: str, make: Callable[[], Any]) -> Any:
    """Call ``make`` with bounded memory, and name the table in error messages."""
    try:
        with Bounded(where, MEMORY, CALLS):
            return make()
    except (TypeError, RuntimeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{where}: {error}") from error


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a function or of a class's constructor, if they can be read."""
    annotated: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        return get_type_hints(annotated)
    except (NameError, TypeError):
        return {}


def _user_class(kind: str, base: type) -> Callable[..., Any]:
    """Return a class ``module:Class`` of the user, whose module has been imported.

    Args:
        kind: Name of the class.
        base: Required base class.
    """
    module, _, name = kind.rpartition(":")
    if module not in sys.modules:
        raise ValueError(
            f"{kind} is in a module that has not been imported, and a document imports nothing: "
            f"give --import {module}, or in Python import {module} first"
        )
    cls = vars(sys.modules[module]).get(name)  # getattr may import something
    if cls is None:
        raise ValueError(f"the module {module} has no {name!r}")
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise TypeError(f"{kind} is not a {base.__name__}")
    return cls
