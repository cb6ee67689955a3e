"""A hash of everything that defines a problem, used as a cache key.

It covers the data of the problem, and the code of every class that is defined outside this library:
its methods, class attributes and base classes, and everything that they close over or read as a
global variable. If the content of one of these is unknown, there is no key, and nothing is cached.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.metadata
import inspect
import json
import sys
import sysconfig
from functools import cache, cached_property, partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from mirrordescent._internal.cache import VERSION
from mirrordescent._internal.files import content_of
from mirrordescent.parts import Part, describe
from mirrordescent.problems.origin import LIBRARY

MOST_DEFINITIONS = 2000
"""Largest number of definitions that are followed from a problem's class."""

_OF_MODULES = frozenset(vars(nn.Module()))


class _Unknown(Exception):
    """The content of an object is unknown."""


def fingerprint(module: nn.Module, purpose: str) -> str | None:
    """Hash everything that defines a problem or another module.

    If an attribute is neither a tensor nor a plain value, return None. An example is an operator
    that is not a module, because its content is unknown. Return None also if the code of a class
    that is not in this library depends on an object of unknown content.

    Args:
        module: Problem or other module.
        purpose: Text that distinguishes different uses of the cache.
    """
    digest = hashlib.sha256(f"{VERSION} {purpose}".encode())
    for name, part in module.named_modules():
        digest.update(f"{name} {type(part).__module__}.{type(part).__qualname__}".encode())
        code = code_digest(type(part))
        if code is None:
            return None
        digest.update(code.encode())
        for key, value in sorted(vars(part).items()):
            if key in _OF_MODULES or key in ("batch", "sample_shape"):
                continue
            if isinstance(value, Part) and not isinstance(value, nn.Module):  # such as a Domain
                code = code_digest(type(value))
                if code is None:
                    return None
                value = json.dumps(describe(value), sort_keys=True) + code
            if not _is_plain(value):
                return None
            digest.update(f"{key}={value!r}".encode())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(content_of(tensor) if tensor.ndim else repr(tensor.item()).encode())
    return digest.hexdigest()


def _is_plain(value: Any) -> bool:
    """Tell whether the text of a value says all about it: numbers, texts, tuples of these."""
    if isinstance(value, tuple):
        return all(_is_plain(item) for item in value)
    return isinstance(value, bool | int | float | str | None)


def code_digest(definition: Any) -> str | None:
    """Hash the code of a class or function, and everything that it depends on.

    Classes and functions of this library, of installed packages and of Python itself are
    identified by their names and versions. The result is None if something that the code depends
    on is unknown.
    """
    try:
        reader = _Reader()
        reader.add(definition)
    except _Unknown:
        return None
    return reader.digest.hexdigest()


class _Reader:
    """Hashes definitions, each of them once."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256(sys.version.encode())
        self.seen: dict[int, int] = {}
        self.kept: list[object] = []  # so that no identity is used twice

    def add(self, value: Any) -> None:
        """Add the content of a value."""
        if isinstance(value, bool | int | float | complex | str | bytes | type(None)):
            self._text(repr(value))
            return
        if isinstance(value, torch.dtype | torch.device | torch.Size | range | slice):
            self._text(repr(value))
            return
        if value is Ellipsis or value is NotImplemented:
            self._text(repr(value))
            return
        if id(value) in self.seen:
            self._text(f"again {self.seen[id(value)]}")
            return
        if len(self.seen) > MOST_DEFINITIONS:
            raise _Unknown
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        self._text(type(value).__qualname__)
        self._add_object(value)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, list | tuple):
            self._text(str(len(value)))
            for item in value:
                self.add(item)
        elif isinstance(value, dict):
            self._text(str(len(value)))
            for key, item in value.items():
                self.add(key)
                self.add(item)
        elif isinstance(value, set | frozenset):
            self._text(repr(sorted(map(repr, value))))
            if not all(isinstance(item, str | int | float | bytes) for item in value):
                raise _Unknown
        elif isinstance(value, Tensor):
            self._text(f"{value.dtype} {tuple(value.shape)}")
            self.digest.update(content_of(value) if value.ndim else repr(value.item()).encode())
        elif isinstance(value, CodeType):
            self._add_code(value)
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, ModuleType):
            self._text(f"{value.__name__} {_version(value.__name__)}")
            if not _installed(value.__name__):
                raise _Unknown  # its attributes are added where they are named
        else:
            self._add_wrapper(value)

    def _add_wrapper(self, value: Any) -> None:
        """Add what wraps a function, or an object with a description."""
        if isinstance(value, property):
            self.add((value.fget, value.fset, value.fdel))
        elif isinstance(value, staticmethod | classmethod):
            self.add(value.__func__)
        elif isinstance(value, MethodType):
            self.add((value.__func__, value.__self__))
        elif isinstance(value, cached_property):
            self.add(value.func)
        elif isinstance(value, partial):
            self.add((value.func, value.args, value.keywords))
        elif isinstance(value, nn.Module):
            content = fingerprint(value, "part")
            if content is None:
                raise _Unknown
            self._text(content)
        elif isinstance(value, Part):
            self._text(json.dumps(describe(value), sort_keys=True))
            self.add(type(value))
        elif isinstance(value, BuiltinFunctionType) or _installed(
            getattr(value, "__module__", None) or ""
        ):
            if not callable(value) or not hasattr(value, "__qualname__"):
                self._add_array(value)
                return
            module = value.__module__ or ""
            self._text(f"{module}.{value.__qualname__} {_version(module)}")
        else:
            self._add_array(value)

    def _add_array(self, value: Any) -> None:
        """Add a NumPy array or number."""
        if type(value).__module__ != "numpy" or not hasattr(value, "tobytes"):
            raise _Unknown
        if value.dtype.hasobject:
            raise _Unknown
        self._text(f"{value.dtype} {value.shape}")
        self.digest.update(value.tobytes())

    def _add_class(self, cls: type) -> None:
        self._text(f"{cls.__module__}.{cls.__qualname__}")
        if _installed(cls.__module__):
            self._text(_version(cls.__module__))
            return
        for base in cls.__bases__:
            self.add(base)
        for name, value in sorted(vars(cls).items()):
            dunder = name.startswith("__") and name.endswith("__")
            if (dunder and not isinstance(value, FunctionType)) or name.startswith("_abc_"):
                continue
            if inspect.isgetsetdescriptor(value) or inspect.ismemberdescriptor(value):
                continue
            self._text(name)
            self.add(value)

    def _add_function(self, function: FunctionType) -> None:
        if _installed(function.__module__ or ""):
            self._text(f"{function.__module__}.{function.__qualname__}")
            self._text(_version(function.__module__))
            return
        self.add(function.__code__)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._text(name)
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self.add(content)
        self._add_globals(function.__code__, function.__globals__)

    def _add_code(self, code: CodeType) -> None:
        """Add instructions and constants, without names of files and numbers of lines."""
        self.digest.update(code.co_code)
        self._text(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)))
        for constant in code.co_consts:
            self.add(constant)

    def _add_globals(self, code: CodeType, variables: dict[str, Any]) -> None:
        """Add the global variables and imported modules that code reads."""
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in variables:
                self._add_variable(name, variables[name], code)
            elif instruction.opname == "IMPORT_NAME":
                if _installed(name):
                    self._text(f"{name} {_version(name)}")
                    continue
                if name not in sys.modules:
                    raise _Unknown
                self._add_variable(name, sys.modules[name], code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add_globals(constant, variables)

    def _add_variable(self, name: str, value: Any, code: CodeType) -> None:
        """Add a global variable; of a user's module, the attributes that the code names."""
        self._text(name)
        if not isinstance(value, ModuleType) or _installed(value.__name__):
            self.add(value)
            return
        for attribute in code.co_names:
            content = getattr(value, attribute, None)
            if isinstance(content, ModuleType) and not _installed(content.__name__):
                raise _Unknown
            if attribute in vars(value):
                self._text(attribute)
                self.add(content)

    def _text(self, text: str) -> None:
        self.digest.update(f"{len(text)}:{text};".encode())


@cache
def _installed(module: str) -> bool:
    """Tell whether a module belongs to this library, to Python or to an installed package."""
    root = module.partition(".")[0]
    if root == LIBRARY:
        return True
    if root in sys.stdlib_module_names:
        return root != "__main__"
    loaded = sys.modules.get(root)
    file = getattr(loaded, "__file__", None)
    if file is None:
        return False
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return any(Path(folder) in Path(file).parents for folder in folders)


@cache
def _version(module: str) -> str:
    """Return the version of the package of a module; empty for Python's own modules."""
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names:
        return ""
    version = getattr(sys.modules.get(root), "__version__", None)
    if version is not None:
        return str(version)
    try:
        return importlib.metadata.version(root)
    except importlib.metadata.PackageNotFoundError:
        return ""
