"""Which facts are derived by this library, and which are stated by a user's class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

LIBRARY = __name__.partition(".")[0]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def in_library(definition: Any) -> bool:
    """Tell whether a class or function is defined in this library."""
    module = getattr(definition, "__module__", None) or ""
    return module.partition(".")[0] == LIBRARY


def parts_of(thing: object) -> Iterator[object]:
    """Yield an object and everything that it is composed of: modules, sets, operators, functions.

    Tensors and plain values are left out.
    """
    seen: set[int] = set()
    queue = [thing]
    while queue:
        part = queue.pop()
        if id(part) in seen or isinstance(part, _PLAIN):
            continue
        seen.add(id(part))
        if isinstance(part, list | tuple):
            queue.extend(part)
        elif isinstance(part, dict):
            queue.extend(part.values())
        elif isinstance(part, nn.Module):
            yield part
            queue.extend(part.children())
            queue.extend(value for name, value in vars(part).items() if name not in _OF_MODULES)
        elif callable(part) or in_library(type(part)):
            yield part
            if in_library(type(part)):
                queue.extend(getattr(part, "__dict__", {}).values())
        elif hasattr(part, "A"):
            yield part


_OF_MODULES = frozenset(vars(nn.Module()))


def user_definition(thing: object, *names: str) -> str | None:
    """Return the name of the class outside this library that defines one of some attributes.

    Attributes that were set on the object itself count as the user's. A class that redefines a
    private method of this library counts too, because any of the attributes may rest on it. The
    result is None if the library defines all of them.

    Args:
        thing: Problem, term, operator or set.
        names: Names of attributes or methods.
    """
    for name in names:
        if name in vars(thing):
            return type(thing).__name__
        for cls in type(thing).__mro__:
            if name in vars(cls):
                if not in_library(cls):
                    return cls.__name__
                break
    return _redefining_class(type(thing))


def _redefining_class(cls: type) -> str | None:
    """Return the name of the class outside this library that redefines a private method of it."""
    private: set[str] = set()
    for base in reversed(cls.__mro__):
        names = {name for name in vars(base) if name.startswith("_")}
        names = {name for name in names if not name.startswith(("__", "_abc_"))}
        if in_library(base):
            private |= names
        elif names & private:
            return base.__name__
    return None


def defined_in_library(thing: object) -> bool:
    """Tell whether an object, and everything that it is composed of, is the library's own.

    Functions that a user gave to a class of this library, such as ``Linear``, are the user's.
    """
    for part in parts_of(thing):
        definition = part if isinstance(part, type) or hasattr(part, "__code__") else type(part)
        if not in_library(definition) and not isinstance(part, nn.ModuleList | nn.ModuleDict):
            return False
    return True
