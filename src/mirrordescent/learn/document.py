"""A recipe from a TOML document: its tables are ``[family]``, ``[map]``, ``[method]`` and
``[settings]``.

A document imports nothing. Modules that it names, as in ``type = "my_module:MyMap"``, must be
imported before: by ``--import my_module`` on the command line, by ``import my_module`` in Python.
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
from mirrordescent.learn.tables import Table, apply, changed, require_fits
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

# bytes and operations to make a map or a family of problems: more is a slip of the pen
MEMORY = 8e9
CALLS = 100_000
SIZES = {"layers": 1000, "filters": 4096, "width": 65536}  # of networks
TABLES = ("family", "map", "method", "settings")


def read_recipe(path: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a document, with changes ``table.key=value``, as a recipe.

    ``[family]`` has a ``type``: inpainting, denoising, svm, moons, or your own class; ``pool =
    128`` makes it a pool of that many problems with certified lower bounds. ``[map]`` has a
    ``type``: conjugate, pair, diagonal or spline, made to fit the family, a map of the library by
    the name of its class, or one of yours. ``[method]`` has a ``name``, such as lsmd, or a class of
    yours, the first ``step``, and the ``extension`` of the step sizes beyond the horizon; or
    ``schedule = "power-laws"``, a few numbers with a ``power`` of k beyond it. All other entries
    are arguments of what is made. ``[settings]`` has the fields of :class:`Settings`. With
    ``control = true`` at the top it is the recipe of the control: the same with the identity for
    the map.
    """
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
    named = {"name": path.stem, "description": f"learned from {path.name}"}
    named |= {key: document[key] for key in named if key in document}
    for key, value in named.items():
        require_fits(value, str, key)
    require_fits(document.get("control", False), bool, "control")
    recipe = Recipe(
        name=named["name"],
        description=named["description"],
        family=lambda directory: _family(tables["family"], path.resolve().parent),
        method=lambda generator, family: _method(tables, settings.horizon, generator, family),
        stages=[Unrolled(settings)],
        on=", ".join(f"{key} = {value}" for key, value in tables["family"].items()),
        data=source,
        problems=settings.validation.batch,
    )
    return recipe.control() if document.get("control") else recipe


def _family(table: Table, folder: Path) -> ProblemFamily:
    entries = dict(table)
    pool = entries.pop("pool", None)
    kind = str(entries.pop("type", "inpainting"))
    if ":" in kind:
        family = _called(_own(kind, ProblemFamily), entries, "[family]")
    else:
        require_known(kind, FAMILIES, "type of [family]")
        family = _called(FAMILIES[kind], entries, "[family]", folder=folder)
    if pool is None:
        return family
    require_fits(pool, int, "[family] pool")
    return _made("[family] pool", lambda: Pooled(family, pool))


def _inpainting(folder: Path, source: str = "bundled", **options: Any) -> InpaintingFamily:
    _require_options(InpaintingFamily, options)
    return InpaintingFamily(*_pictures(source, folder), **options)


def _denoising(
    folder: Path, source: str = "bundled", noise: float = 0.05, **options: Any
) -> DenoisingFamily:
    _require_options(DenoisingFamily, options)
    generator = torch.Generator().manual_seed(0)
    noisy = [
        [picture + noise * torch.randn(picture.shape, generator=generator) for picture in pictures]
        for pictures in _pictures(source, folder)
    ]
    return DenoisingFamily(*noisy, **options)


def _require_options(family: type, options: Table) -> None:
    for key, value in options.items():
        require_fits(value, _hints(family).get(key), f"[family] {key}")


def _machine(folder: Path, first: int = 4, second: int = 9, C: float = 1.0) -> SVMFamily:
    """Tell two of the bundled digits apart, by their pixels."""
    images, labels = data.digits("train")
    kept = (labels == first) | (labels == second)
    return SVMFamily(images[kept].flatten(1), torch.where(labels[kept] == second, 1.0, -1.0), C)


def _pictures(source: str, folder: Path) -> list[list[Tensor]]:
    if source != "bundled" and (folder / source).exists():
        source = str(folder / source)  # relative to the document
    return [data.pictures(source, split) for split in ("train", "test")]


FAMILIES: dict[str, Callable[..., ProblemFamily]] = {
    "inpainting": _inpainting,
    "denoising": _denoising,
    "svm": _machine,
    "moons": lambda folder, **options: moons_family(**options),
}


def _method(
    tables: Mapping[str, Table], horizon: int, generator: Generator, family: ProblemFamily
) -> Method[Any]:
    entries: Table = {"name": "lsmd", **tables["method"]}
    for key, kind in (
        ("name", str),
        ("step", float),
        ("schedule", str),
        ("extension", str),
        ("power", float),
    ):
        if key in entries:
            require_fits(entries[key], kind, f"[method] {key}")
    name = str(entries.pop("name"))
    steps = _steps(entries, horizon)
    with torch.random.fork_rng(
        devices=[]
    ):  # so that classes that take no generator are the same every time
        torch.manual_seed(generator.initial_seed())
        if ":" not in name:
            require_known(name.casefold(), names(), "method")
            for key in entries:
                require_known(
                    key, ("name", "step", "schedule", "extension", "power"), "entry of [method]"
                )
            wanted = takes(name.casefold(), "mirror") or tables["map"]
            return named(name, _map(tables["map"], family) if wanted else None, steps)
        cls = _own(name, Method)
        taken = inspect.signature(cls).parameters
        given: Table = ({"mirror": _map(tables["map"], family)} if "mirror" in taken else {}) | (
            {"t": steps} if "t" in taken else {}
        )
        return _called(cls, entries, "[method]", **given)


def _steps(entries: Table, horizon: int) -> Schedule:
    """Return step sizes to be learned: one for every step, or a few values that powers of k
    connect.
    """
    step = entries.pop("step", 0.3)
    kind = entries.pop("schedule", "prefix")
    require_known(kind, ("prefix", "power-laws"), "schedule of [method]")
    if kind == "prefix":
        return Prefix([step] * horizon, entries.pop("extension", "reciprocal"))
    counts = sorted({2**i for i in range(horizon.bit_length()) if 2**i < horizon} | {horizon})
    return PowerLaws(counts, [step] * len(counts), entries.pop("power", 1.0))


def _map(table: Table, family: ProblemFamily) -> MirrorMap:
    entries = dict(table)
    draw = family.validation(1)
    networks = draw.problem if isinstance(draw.problem, NetworkTraining) else None
    kind = str(entries.pop("type", "conjugate" if networks is None else "diagonal"))
    if ":" in kind:
        return _called(_own(kind, MirrorMap), entries, "[map]")
    if networks is not None and kind in NETWORK_MAPS:
        model = copy.deepcopy(networks.model).requires_grad_(True)
        inputs = networks.inputs.flatten(0, networks.targets.ndim - 1)[:1]
        return _made("[map]", lambda: layerwise(model, kind, example=inputs, **entries))  # type: ignore[arg-type]
    if kind in MAPS:
        if not isinstance(draw.x0, Tensor):
            raise ValueError(
                f"[map] type = {kind!r} is not for networks: choose one of {', '.join(NETWORK_MAPS)}"
            )
        return _called(MAPS[kind], entries, "[map]", example=draw.x0)
    require_known(kind, (*LIBRARY, *MAPS), "type of [map]")
    built = _made("[map]", lambda: {key: build(value, {}) for key, value in entries.items()})
    return _called(find(kind), built, "[map]")


def _potential(example: Tensor, options: Table) -> Any:
    made = ConvICNN if example.ndim == 4 else DenseICNN
    for key, value in options.items():
        require_fits(value, _hints(made).get(key, int if key == "seed" else None), f"[map] {key}")
    for key, most in SIZES.items():
        if options.get(key, 1) > most:
            raise ValueError(f"[map] {key} must be at most {most}, got {options[key]}")
    generator = torch.Generator().manual_seed(options.pop("seed", 0))
    if example.ndim == 4:
        options.setdefault("layers", 1)  # as good on images as two, at half the cost
        return ConvICNN(example.shape[1], **options, generator=generator)
    return DenseICNN(example.shape[-1], **options, generator=generator)


def _conjugate(example: Tensor, start: Any = "scaled", **options: Any) -> Conjugate:
    return Conjugate(_potential(example, options), start)


def _pair(example: Tensor, seed: int = 0, **options: Any) -> LearnedPair:
    forward, backward = (_potential(example, {**options, "seed": seed + i}) for i in range(2))
    return LearnedPair(forward, backward)


def _diagonal(example: Tensor) -> Diagonal:
    return Diagonal(nn.Parameter(torch.ones_like(example[0])))


MAPS: dict[str, Callable[..., MirrorMap]] = {
    "conjugate": _conjugate,
    "pair": _pair,
    "diagonal": _diagonal,
}
NETWORK_MAPS = ("diagonal", "spline")  # layerwise maps of these kinds
LIBRARY = [
    name
    for name, each in vars(mirrors).items()
    if isinstance(each, type) and issubclass(each, MirrorMap)
]


def _called(function: Callable[..., Any], entries: Table, where: str, **given: Any) -> Any:
    """Call a function with the entries of a table, all of which must be its arguments."""
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for key in entries:
            require_known(
                key, [p.name for p in parameters if p.name not in given], f"entry of {where}"
            )
    for key, value in entries.items():
        require_fits(value, _hints(function).get(key), f"{where} {key}")
    return _made(where, lambda: function(**given, **entries))


def _made(where: str, make: Callable[[], Any]) -> Any:
    """Make something within a bound of memory; what goes wrong is said with the table that it comes
    from.
    """
    try:
        with Bounded(where, MEMORY, CALLS):
            return make()
    except (TypeError, RuntimeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{where}: {error}") from error


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a function or of a class's constructor, as far as they can
    be read.
    """
    try:
        return get_type_hints(function.__init__ if isinstance(function, type) else function)  # type: ignore[misc]
    except (NameError, TypeError):
        return {}


def _own(kind: str, wanted: type) -> Callable[..., Any]:
    """Return one of the user's classes, whose module has been imported."""
    module, _, name = kind.rpartition(":")
    if module not in sys.modules:
        raise ValueError(
            f"{kind} is in a module that has not been imported, and a document imports nothing by itself: "
            f"give --import {module}, or in Python import {module} first"
        )
    cls = vars(sys.modules[module]).get(name)  # not getattr, which may import something
    if cls is None:
        raise ValueError(f"the module {module} has no {name!r}")
    if not (isinstance(cls, type) and issubclass(cls, wanted)):
        raise TypeError(f"{kind} is not a {wanted.__name__}")
    return cls
