"""Lazy attributes of a package, by the module-level ``__getattr__`` of PEP 562."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

LazyAttributes = tuple[Callable[[str], Any], Callable[[], list[str]]]


def lazy_attributes(
    package: str,
    packages: Sequence[str],
    names: Mapping[str, Sequence[str]],
    public: Sequence[str],
) -> LazyAttributes:
    """Return ``__getattr__`` and ``__dir__`` for a package that imports its parts on first use.

    Args:
        package: The package's full name.
        packages: Subpackages and submodules available as attributes.
        names: Objects available as attributes, by the submodule that defines them.
        public: Names that ``dir`` shows.
    """
    homes = {name: module for module, members in names.items() for name in members}

    def __getattr__(name: str) -> Any:
        if name in packages:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted(public)

    return __getattr__, __dir__
