"""Learning from a file: a family, a map, a method and settings as a small TOML document.

.. code-block:: toml

    name = "my-map"

    [family]                # what to learn on
    type = "inpainting"     # inpainting, denoising, svm, moons, or "my_module:MyFamily" with its arguments below
    source = "bundled"      # bsds500, stl10, a folder or an archive of pictures
    pool = 128              # as many problems, with certified lower bounds; without it, always new ones

    [map]                   # what is learned
    type = "conjugate"      # conjugate, pair, diagonal, or "my_module:MyMap" with its arguments below
    filters = 16

    [method]                # and in what it is used
    name = "lsmd"
    step = 0.3

    [settings]              # the fields of Settings
    meta_steps = 1000

    [settings.objective]    # the fields of Objective
    weights = "log_gap"
"""

from __future__ import annotations

import importlib
import inspect
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from mirrordescent import data
from mirrordescent.learn.families import DenoisingFamily, InpaintingFamily, Pooled, ProblemFamily, SVMFamily
from mirrordescent.learn.networks import moons_family
from mirrordescent.learn.trainer import Settings
from mirrordescent.methods import Method, named
from mirrordescent.mirrors import Conjugate, ConvICNN, DenseICNN, Diagonal, LearnedPair, MirrorMap
from mirrordescent.names import require_known
from mirrordescent.schedules import Extension, Prefix
from mirrordescent.trees import Tree

Entries = dict[str, Any]
TABLES = ("family", "map", "method", "settings")


@dataclass(frozen=True)
class Config:
    """What a document says. ``folder`` is where it lies: modules of one's own are looked for there."""

    name: str
    description: str
    folder: Path
    family: Entries
    map: Entries
    method: Entries
    settings: Settings

    def make_family(self, directory: Path | None = None) -> ProblemFamily:
        """Return the family, with lower bounds if it is a pool."""
        entries = dict(self.family)
        pool = entries.pop("pool", None)
        family = cast(ProblemFamily, self._make("family", FAMILIES, entries, directory=directory, folder=self.folder))
        return family if pool is None else Pooled(family, pool)

    def make_method(self, example: Tree) -> Method[Any]:
        """Return the method before learning; its map fits points like the example."""
        if not isinstance(example, Tensor):
            raise ValueError("a method of networks is learned in Python: see mirrordescent.mirrors.layerwise")
        mirror = cast(MirrorMap, self._make("map", MAPS, dict(self.map), example=example))
        return _called(_method, self.method, "[method]", mirror=mirror, horizon=self.settings.horizon)

    def load(self, path: str | Path, example: Tree) -> Method[Any]:
        """Return the method with the numbers that were learned: the way for maps of one's own."""
        method = self.make_method(example)
        method.load_state_dict(load_file(path))
        return method.requires_grad_(False)

    def _make(self, table: str, known: Mapping[str, Callable[..., Any]], entries: Entries, **given: Any) -> Any:
        kind = str(entries.pop("type", next(iter(known))))
        if ":" in kind:
            made = _imported(kind, self.folder)(**entries)
            wanted = ProblemFamily if table == "family" else MirrorMap
            if not isinstance(made, wanted):
                raise TypeError(f"{kind} makes a {type(made).__name__}, but [{table}] needs a {wanted.__name__}")
            return made
        require_known(kind, known, f"type of [{table}]")
        return _called(known[kind], entries, f"[{table}]", **given)


def read_config(path: str | Path, changes: Sequence[str] = ()) -> Config:
    """Read a document, with changes ``table.key=value``."""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML document: {error}") from error
    for keys, value in map(parse_change, changes):
        inner = document
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{'.'.join(keys)} cannot be set: {key} is no table")
        inner[keys[-1]] = value
    for key in document:
        require_known(key, ("name", "description", *TABLES), f"entry of {path}")
    tables = {table: document.get(table, {}) for table in TABLES}
    for table, entries in tables.items():
        if not isinstance(entries, dict):
            raise ValueError(f"{table} in {path} must be a table: [{table}]")
    name = str(document.get("name", path.stem))
    if Path(name).name != name:
        raise ValueError(f"a name is no path, got {name!r}")
    description = str(document.get("description", f"learned from {path.name}"))
    settings = settings_from(tables.pop("settings"))
    return Config(name, description, path.resolve().parent, settings=settings, **tables)


def parse_change(change: str) -> tuple[list[str], Any]:
    """Split ``key=value``: the keys, and the value as TOML, or else as text.

    >>> parse_change("settings.meta_steps=200"), parse_change("family.type=denoising")
    ((['settings', 'meta_steps'], 200), (['family', 'type'], 'denoising'))
    """
    key, equals, text = change.partition("=")
    if not (key.strip() and equals):
        raise ValueError(f"a change has the form key=value, got {change!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    return key.strip().split("."), value


def settings_from(entries: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """Return settings with some of them, and of their objective, changed."""
    objective = (base or Settings()).objective
    changed = dict(entries)
    if "objective" in changed:
        changed["objective"] = _changed(objective, changed["objective"], "[settings.objective]")
    return cast(Settings, _changed(base or Settings(), changed, "[settings]"))


def _changed(base: Any, entries: Mapping[str, Any], where: str) -> Any:
    known = [field.name for field in fields(base)]
    for key in entries:
        require_known(key, known, f"entry of {where}")
    return type(base)(**{name: getattr(base, name) for name in known} | dict(entries))


def _inpainting(directory: Path | None, folder: Path, source: str = "bundled", **options: Any) -> InpaintingFamily:
    return InpaintingFamily(*_pictures(source, directory, folder), **options)


def _denoising(
    directory: Path | None, folder: Path, source: str = "bundled", noise: float = 0.05, **options: Any
) -> DenoisingFamily:
    generator = torch.Generator().manual_seed(0)
    noisy = [
        [picture + noise * torch.randn(picture.shape, generator=generator) for picture in pictures]
        for pictures in _pictures(source, directory, folder)
    ]
    return DenoisingFamily(*noisy, **options)


def _machine(directory: Path | None, folder: Path, source: Any = "digits", C: float = 1.0) -> SVMFamily:
    features = data.four_nine_features(source, directory=directory)
    return SVMFamily(features.train, features.train_labels, C)


def _moons(directory: Path | None, folder: Path, **options: Any) -> ProblemFamily:
    return moons_family(**options)


def _pictures(source: str, directory: Path | None, folder: Path) -> list[list[Tensor]]:
    if source not in ("bundled", "bsds500", "stl10") and (folder / source).exists():
        source = str(folder / source)  # relative to the document
    return [data.pictures(source, split, directory) for split in ("train", "test")]


FAMILIES: dict[str, Callable[..., ProblemFamily]] = {
    "inpainting": _inpainting,
    "denoising": _denoising,
    "svm": _machine,
    "moons": _moons,
}


def _potential(example: Tensor, options: Entries) -> Any:
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


MAPS: dict[str, Callable[..., MirrorMap]] = {"conjugate": _conjugate, "pair": _pair, "diagonal": _diagonal}


def _method(
    mirror: MirrorMap, horizon: int, name: str = "lsmd", step: float = 0.3, extension: Extension = "reciprocal"
) -> Method[Any]:
    return named(name, mirror, Prefix([step] * horizon, extension))


def _called(function: Callable[..., Any], entries: Entries, where: str, **given: Any) -> Any:
    """Call a function with the entries of a table, of which it must know every one."""
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        known = [p.name for p in parameters if p.name not in given]
        for key in entries:
            require_known(key, known, f"entry of {where}")
    return function(**given, **entries)


def _imported(kind: str, folder: Path) -> Callable[..., Any]:
    module, _, name = kind.partition(":")
    with _on_path(folder, Path.cwd()):
        try:
            return cast(Callable[..., Any], getattr(importlib.import_module(module), name))
        except ImportError as error:
            raise ValueError(f"{kind} cannot be imported: {error}") from error
        except AttributeError:
            raise ValueError(f"the module {module} has no {name!r}") from None


@contextmanager
def _on_path(*folders: Path) -> Any:
    before = list(sys.path)
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        sys.path[:] = before
