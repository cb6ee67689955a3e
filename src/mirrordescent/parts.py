"""Parts: objects that can be described by plain data and built again, to be stored and shared.

A part describes itself by the arguments of its constructor (``config``): numbers, text, lists,
tensors and other parts. Every subclass of :class:`Part` can be stored; there is no list to add it
to. A description is built only from classes that are already defined: no code is imported or run
because a file says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from mirrordescent._internal import html

Config: TypeAlias = dict[str, Any]
M = TypeVar("M", bound=nn.Module)

_LIBRARY = __name__.partition(".")[0]
_CLASSES: dict[str, type[Part]] = {}
_CLAIMS: dict[tuple[object, ...], bool] = {}  # results of claim_holds, which every solve needs

RENAMED_TYPES: dict[str, tuple[str, Config]] = {
    "HandOver": ("Switch", {}),
    "Relay": ("Switch", {"certified": False, "dual_start": False}),
}
"""Old names of the library's classes in stored descriptions.

The values are the new name, and arguments that the old class did not have.
"""


class PartMissing(LookupError):
    """A description names a class that has not been defined yet."""


class Part:
    """An object that can be stored, because it knows the arguments of its constructor.

    By default these are the attributes with the names of the arguments. A class that keeps them in
    another way overrides ``config`` and, if necessary, ``from_config``.
    """

    kind: ClassVar[str] = "part"
    """Kind of part in one word, for the card of an entry."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _CLASSES[type_name(cls)] = cls

    def config(self) -> Config:
        """Return the arguments of the constructor. Learned numbers need not be among them."""
        names = _argument_names(type(self))
        for name in names:
            if name == "type" or not hasattr(self, name):
                raise TypeError(
                    f"{type(self).__name__} cannot be stored: its constructor takes {name!r}, "
                    f"but it has no attribute of that name. Keep it as self.{name}, "
                    "or write config() and from_config()"
                )
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, *arguments: Any, **config: Any) -> Self:
        """Construct a part from the result of ``config``, with lists in place of tuples."""
        return cls(*arguments, **config)

    def replace(self, **changes: Any) -> Self:
        """Return another part of this class, with some arguments replaced.

        Other parts among the arguments are shared. Learned numbers that are not arguments (see
        :meth:`config`) are those of a new part.

        >>> from mirrordescent.schedules import OverRun
        >>> OverRun(100, power=2.0).replace(steps=50)
        OverRun(steps=50, warmup=0.05, power=2, length=0)
        """
        return self.from_config(**{**self.config(), **changes})

    def extra_repr(self) -> str:
        """Show the arguments that are numbers or text."""
        try:
            config = self.config()
        except TypeError:  # the class cannot be stored
            return ""
        shown = {name: _short_repr(value) for name, value in config.items()}
        return ", ".join(f"{name}={text}" for name, text in shown.items() if text)

    def _repr_html_(self) -> str:
        """Return the name of the class, and all parts when it is clicked, for notebooks."""
        return html.details(type(self).__name__, repr(self))


def _argument_names(cls: type) -> list[str]:
    """Return the names of the constructor's arguments; variadic ones begin with an asterisk."""
    constructor: object = inspect.getattr_static(cls, "__init__")
    if constructor in (nn.Module.__init__, object.__init__):
        return []
    names = []
    for parameter in inspect.signature(cls).parameters.values():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        names.append(f"*{parameter.name}" if variadic else parameter.name)
    return names


def _short_repr(value: Any) -> str:
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, bool | int | str):
        return repr(value)
    return ""


def type_name(cls: type[Part]) -> str:
    """Return the name of a class in descriptions.

    Classes of the library are named without their module, other classes with it.
    """
    if cls.__module__.partition(".")[0] == _LIBRARY:
        return cls.__qualname__
    return f"{cls.__module__}:{cls.__qualname__}"


def describe(part: Part) -> Config:
    """Return a description of a part as JSON data, with tensors by their names in its state.

    >>> from mirrordescent.schedules import Reciprocal
    >>> describe(Reciprocal(0.5))
    {'type': 'Reciprocal', 'c': 0.5}
    """
    places: dict[int, str] = {}
    if isinstance(part, nn.Module):
        for name, tensor in (*part.named_parameters(), *part.named_buffers()):
            places[id(tensor)] = name
    paths: dict[int, str] = {}

    def write_part(value: Part, path: str) -> Any:
        if id(value) in paths:  # one part in two places, such as a map that is its own regulariser
            return {"same": paths[id(value)]}
        paths[id(value)] = path
        inner = {key: write(item, f"{path}.{key}") for key, item in value.config().items()}
        return {"type": type_name(type(value)), **inner}

    def write(value: Any, path: str) -> Any:
        if isinstance(value, Part):
            return write_part(value, path)
        if isinstance(value, Tensor):
            if id(value) in places:
                return {"tensor": places[id(value)], "learned": isinstance(value, nn.Parameter)}
            return value.detach().tolist()  # derived from stored tensors, which are loaded later
        if isinstance(value, Mapping):
            return {"dict": {str(key): write(item, f"{path}.{key}") for key, item in value.items()}}
        if isinstance(value, list | tuple):
            return [write(item, f"{path}.{i}") for i, item in enumerate(value)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(
            f"{path.removeprefix('.')} of {type(part).__name__} cannot be stored: "
            f"a {type(value).__name__} is neither data nor a part. "
            "Write a function of your own as a subclass, such as of Schedule"
        )

    return write(part, "")


def build(description: Config, tensors: Mapping[str, Tensor]) -> Part:
    """Build the part of a description, with tensors by their names in its state."""
    built: dict[str, Any] = {}

    def build_part(value: Config, path: str) -> Part:
        arguments = {
            key: build_value(item, f"{path}.{key}") for key, item in value.items() if key != "type"
        }
        name, defaults = RENAMED_TYPES.get(value["type"], (value["type"], {}))
        built[path] = find(name).from_config(**{**defaults, **arguments})
        return built[path]

    def build_value(value: Any, path: str) -> Any:
        if isinstance(value, list):
            return [build_value(item, f"{path}.{i}") for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if "type" in value:
            return build_part(value, path)
        if "same" in value:
            return built[value["same"]]
        if "tensor" in value:
            tensor = tensors[value["tensor"]].clone()
            return nn.Parameter(tensor) if value["learned"] else tensor
        if "dict" in value:
            return {key: build_value(item, f"{path}.{key}") for key, item in value["dict"].items()}
        return build_part(value, path)  # raises KeyError: a description needs a type

    return build_value(description, "")


def find(name: str) -> type[Part]:
    """Return the class that a name in a description refers to.

    Raises:
        PartMissing: If there is no such class. The message names the module to import.
    """
    if name in _CLASSES:
        return _CLASSES[name]
    module, colon, cls = name.rpartition(":")
    if not colon:
        raise PartMissing(f"there is no part {name!r} in this version of the library")
    raise PartMissing(
        f"it needs {cls} of the module {module}, which has not been imported: "
        f"import {module}, then load"
    )


def modules_of(description: Any) -> list[str]:
    """Return the modules outside the library whose classes a description names, in order."""
    modules: set[str] = set()

    def visit(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                visit(item)
        elif isinstance(value, dict):
            name = value.get("type")
            if isinstance(name, str) and ":" in name:
                modules.add(name.rpartition(":")[0])
            for item in value.values():
                visit(item)

    visit(description)
    return sorted(modules)


def register_tensor(module: nn.Module, name: str, value: Tensor | float) -> None:
    """Register a value with a module: a parameter as a parameter, any other value as a buffer."""
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, torch.as_tensor(value))


def shallow_copy(module: M, **changed: object) -> M:
    """Return a copy that shares parameters and submodules, with some attributes replaced.

    It does what ``copy.copy`` does in a tenth of the time.
    """
    other = object.__new__(type(module))
    other.__dict__.update(module.__dict__, **changed)
    return other


def replace_children(module: M, children: Mapping[str, nn.Module | None]) -> M:
    """Return a shallow copy of a module with some of its direct submodules replaced.

    Args:
        module: The module. It stays as it is.
        children: New submodules by name.
    """
    return shallow_copy(module, _modules={**module._modules, **children})


def rebuild_module(
    module: M,
    change: Callable[[nn.Module], nn.Module],
    opaque: type[nn.Module] | tuple[type[nn.Module], ...] = (),
) -> M:
    """Return a module in which submodules are replaced, from the innermost outwards.

    Modules without a change are shared, not copied. A submodule that occurs twice is replaced by
    one module that occurs twice.

    Args:
        module: The module to rebuild. It stays as it is.
        change: Returns the replacement of a submodule, or the submodule itself.
        opaque: Types whose submodules are not visited. ``change`` is called with such a module as
            it is.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> other = rebuild_module(model, lambda m: nn.Tanh() if isinstance(m, nn.ReLU) else m)
    >>> other[1], other[0] is model[0], model[1]
    (Tanh(), True, ReLU())
    """
    rebuilt: dict[int, nn.Module] = {}

    def visit(part: nn.Module) -> nn.Module:
        if id(part) not in rebuilt:
            rebuilt[id(part)] = change(part if isinstance(part, opaque) else visit_children(part))
        return rebuilt[id(part)]

    def visit_children(part: nn.Module) -> nn.Module:
        children = {
            name: visit(child) for name, child in part._modules.items() if child is not None
        }
        if all(child is part._modules[name] for name, child in children.items()):
            return part
        return replace_children(part, children)

    return visit(module)  # type: ignore[return-value]


def claim_holds(cls: type, claim: str, *methods: str) -> bool:
    """Tell whether a claim of a class about its methods holds for a subclass too.

    A subclass that overrides one of the methods, but not the claim, does not inherit the claim.

    >>> class A:
    ...     linear = True
    ...     def apply(self, x): ...
    >>> class B(A):
    ...     def apply(self, x): ...
    >>> claim_holds(A, "linear", "apply"), claim_holds(B, "linear", "apply")
    (True, False)
    """
    key = (cls, claim, *methods)
    if key not in _CLAIMS:
        depth = _definition_depth(cls, claim)
        _CLAIMS[key] = all(depth <= _definition_depth(cls, method) for method in methods)
    return _CLAIMS[key]


def _definition_depth(cls: type, name: str) -> int:
    """Return the index of the class that defines a name in the method resolution order."""
    for depth, each in enumerate(cls.__mro__):
        if name in vars(each):
            return depth
    return len(cls.__mro__)
