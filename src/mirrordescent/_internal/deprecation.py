"""Names that were renamed or removed: they keep working for one version, with a warning.

A name that is renamed in version 0.N works in all versions 0.N.x, and is removed in 0.(N + 1).0.
All names of this module, and all callers of :func:`warn_deprecated`, were renamed in
``DEPRECATED_IN``. When the version of the library is raised beyond it, a test fails until the old
names are removed.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from mirrordescent._internal.user_warnings import warn_user

DEPRECATED_IN = "0.3"
"""Version in which the names of the tables were renamed."""


def removal(version: str) -> str:
    """Return the version that removes the names that were renamed in a version.

    >>> removal("0.3")
    '0.4'
    """
    major, minor = version.split(".")[:2]
    return f"{major}.{int(minor) + 1}"


REMOVED_IN = removal(DEPRECATED_IN)

OUTLOOK = f"the old name will be removed in version {REMOVED_IN}"
"""End of the warnings about old names."""

MOVED_MODULES = {
    "alike": "_internal.reproducible",
    "auto": "automatic",
    "auto.course": "automatic.time_plan",
    "auto.race": "racing.race",
    "auto.soundness": "automatic.family_check",
    "auto.teaching": "automatic.training",
    "cache": "_internal.cache",
    "checks": "_internal.checks",
    "cosine": "_internal.dct",
    "data.holes": "data.random_masks",
    "data.images": "data.image_files",
    "files": "_internal.files",
    "images": "_internal.image_arrays",
    "interruption": "_internal.interruption",
    "kernels.images": "kernels.image_steps",
    "kernels.matrices": "kernels.preconditioning",
    "kernels.moments": "kernels.preconditioning",
    "learn.networks": "learn.network_families",
    "learn.unroll": "learn.unrolling",
    "limits": "_internal.memory_limits",
    "methods.hand_over": "methods.switch",
    "methods.relay": "methods.switch",
    "mirrors.matrices": "mirrors.singular_values",
    "mirrors.soundness": "mirrors.inverse_check",
    "mirrors.together": "execution.matrices",
    "names": "_internal.suggestions",
    "optim.compiled": "execution.compiled",
    "optim.forms": "execution.map_values",
    "optim.plan": "execution.parameters",
    "optim.sharding": "execution.sharding",
    "optim.slot": "execution.parameter_update",
    "optim.watch": "execution.changes",
    "problems.bounds": "problems.tv_bounds",
    "problems.holes": "problems.hole_duals",
    "problems.matrices": "problems.quadratics",
    "problems.networks": "problems.network_training",
    "progress": "_internal.progress",
    "restore.holes": "restore.deep_holes",
    "rounding": "_internal.rounding",
    "solve": "solving",
    "theory.beforehand": "theory.prior_bounds",
    "theory.dual": "theory.dual_preconditioning",
    "theory.findings": "theory.diagnosis_results",
    "theory.held": "theory.bound_checks",
    "theory.inconsistency": "theory.inverse_consistency",
    "theory.recommend": "theory.recommendation",
    "theory.watched": "theory.recording",
}
"""Old module paths and their replacements, relative to the library."""

CALLABLE = {
    "auto": "auto",
    "solve": "solve",
    "theory.inconsistency": "inconsistency",
    "theory.recommend": "recommend",
}
"""Old modules whose name is a function of the same package."""

RENAMED_ATTRIBUTES: dict[str, dict[str, str]] = {}
"""Renamed names by module, filled by :func:`renamed_attributes`. The documentation lists them."""


class _MovedModule(ModuleType):
    """A module under its old name: attributes and calls are forwarded to the new module."""

    def __init__(self, name: str, target: ModuleType, function: str | None) -> None:
        super().__init__(name, target.__doc__)
        self.__dict__["_target"] = target
        self.__dict__["_function"] = function
        if hasattr(target, "__path__"):
            self.__path__: list[str] = []  # a package, so that its submodules can be imported

    def __getattr__(self, name: str) -> Any:
        target = self.__dict__["_target"]
        package = target.__name__.rpartition(".")[0]
        if not hasattr(target, name) and name in RENAMED_ATTRIBUTES.get(package, {}):
            return getattr(importlib.import_module(package), name)
        return getattr(target, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self.__dict__["_function"]
        if function is None:
            raise TypeError(f"module {self.__name__!r} is not callable")
        return getattr(self.__dict__["_target"], function)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


class _MovedModules(MetaPathFinder, Loader):
    """Finds modules of the library under their old names and warns."""

    def __init__(self, library: str) -> None:
        self.prefix = f"{library}."

    def _new_name(self, fullname: str) -> str | None:
        if not fullname.startswith(self.prefix):
            return None
        old = fullname.removeprefix(self.prefix)
        if old in MOVED_MODULES:
            return self.prefix + MOVED_MODULES[old]
        package, _, module = old.partition(".")
        if package in CALLABLE and module:
            return f"{self.prefix}{MOVED_MODULES[package]}.{module}"
        return None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = self._new_name(fullname)
        if new is None:
            return None
        return ModuleSpec(fullname, self, origin=new)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        assert spec.origin is not None
        warnings.warn(
            f"{spec.name} was renamed to {spec.origin}; {OUTLOOK}",
            DeprecationWarning,
            stacklevel=2,
        )
        target = importlib.import_module(spec.origin)
        return _MovedModule(spec.name, target, CALLABLE.get(spec.name.removeprefix(self.prefix)))

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module under the new name has been executed."""


def install_moved_modules(library: str) -> None:
    """Let modules be imported under the names they had before, with a warning."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(_MovedModules(library))


def warn_deprecated(message: str) -> None:
    """Warn at the line outside the library that uses an old name.

    Python shows a DeprecationWarning by default only if it belongs to the user's own script.
    """
    warn_user(message, DeprecationWarning)


def renamed_attributes(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module-level ``__getattr__`` for names that were renamed or moved.

    Args:
        module: The full name of the module.
        renamed: New places by old names: ``"name"`` in the same module, or ``"module:name"``.
    """
    RENAMED_ATTRIBUTES[module] = dict(renamed)

    def __getattr__(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = renamed[name].rpartition(":")
        place = place or module
        warn_deprecated(f"{module}.{name} was renamed to {place}.{new}; {OUTLOOK}")
        return getattr(importlib.import_module(place), new)

    return __getattr__


def rename_hooks(cls: type, renamed: Mapping[str, str]) -> None:
    """Let a subclass define hooks under their old names, with a warning.

    Call this from ``__init_subclass__`` of the class that declares the hooks.

    Args:
        cls: The subclass.
        renamed: New names by old names.
    """
    for old, new in renamed.items():
        if old not in vars(cls) or new in vars(cls):
            continue
        warnings.warn(
            f"{cls.__name__}.{old} was renamed to {new}; {OUTLOOK}",
            DeprecationWarning,
            stacklevel=4,
        )
        setattr(cls, new, vars(cls)[old])


def renamed_property(old: str, new: str) -> property:
    """Return a read-only property for the old name of an attribute; reading it warns.

    >>> class Circle:
    ...     radius = 1.0
    ...     size = renamed_property("size", "radius")
    """

    def get(instance: object) -> Any:
        owner = type(instance).__name__
        warn_deprecated(f"{owner}.{old} was renamed to {owner}.{new}; {OUTLOOK}")
        return getattr(instance, new)

    return property(get, doc=f"Deprecated: use ``{new}``.")
