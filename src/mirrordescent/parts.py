"""Parts: what can be described by plain data and built again, so that it can be stored and shared.

A part says how it was made (``config``): the arguments of its constructor, as numbers, text, lists,
tensors and other parts. Every subclass of a part is one; there is no list to add it to. A
description is built only from classes that are defined already: nothing is imported or run because
a file says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

Config: TypeAlias = dict[str, Any]
M = TypeVar("M", bound=nn.Module)

_LIBRARY = __name__.partition(".")[0]
_CLASSES: dict[str, type[Part]] = {}
_TOGETHER: dict[
    tuple[object, ...], bool
] = {}  # answers of written_together, which every solve asks for


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
    """Something that can be stored, because it knows the arguments it was made with.

    By default these are the attributes that have the names of the constructor's arguments. A class
    that keeps them in another way overrides ``config`` and, if it has to, ``from_config``.
    """

    kind: ClassVar[str] = "part"
    """What it is, in a word, for the card of an entry."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _CLASSES[type_name(cls)] = cls

    def config(self) -> Config:
        """Return the arguments to make another like this one. Learned numbers need not be among
        them.
        """
        made = (
            type(self)
            if type(self).__init__ not in (nn.Module.__init__, object.__init__)
            else object
        )
        taken = inspect.signature(made).parameters.values()
        names = [
            f"{'*' if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) else ''}{p.name}" for p in taken
        ]
        if missing := [name for name in names if not hasattr(self, name) or name == "type"]:
            raise TypeError(
                f"{type(self).__name__} cannot be stored: its constructor takes {missing[0]!r}, but it has no "
                f"attribute of that name. Keep it as self.{missing[0]}, or write config() and from_config()"
            )
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, *arguments: Any, **config: Any) -> Self:
        """Make a part from what ``config`` returned, with lists in place of tuples."""
        return cls(*arguments, **config)

    def replace(self, **changes: Any) -> Self:
        """Return another like this one, made with some other arguments; it shares the parts that
        are not changed.

        Numbers that were learned and are not among the arguments (see :meth:`config`) are as in a
        new one.

        >>> from mirrordescent.schedules import OverRun
        >>> OverRun(100, power=2.0).replace(steps=50)
        OverRun(steps=50, warmup=0.05, power=2, length=0)
        """
        return self.from_config(**{**self.config(), **changes})

    def extra_repr(self) -> str:
        """Show the numbers and texts it was made with."""
        try:
            config = self.config()
        except TypeError:  # of a class that cannot be stored
            return ""
        return ", ".join(
            f"{name}={text}" for name, value in config.items() if (text := _shown(value))
        )


def _shown(value: Any) -> str:
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, float):
        return f"{value:.4g}"
    return repr(value) if isinstance(value, bool | int | str) else ""


def type_name(cls: type[Part]) -> str:
    """Name a class: those of the library by themselves, others with the module they come from."""
    own = cls.__module__.partition(".")[0] == _LIBRARY
    return cls.__qualname__ if own else f"{cls.__module__}:{cls.__qualname__}"


def describe(part: Part) -> Config:
    """Describe how a part is made, as JSON data. Tensors are named by their place in its state.

    >>> from mirrordescent.schedules import Reciprocal
    >>> describe(Reciprocal(0.5))
    {'type': 'Reciprocal', 'c': 0.5}
    """
    named = [*part.named_parameters(), *part.named_buffers()] if isinstance(part, nn.Module) else []
    places = {id(tensor): name for name, tensor in named}
    written: dict[int, str] = {}

    def write(value: Any, path: str) -> Any:
        if isinstance(value, Part):
            if (
                id(value) in written
            ):  # one part in two places, such as a map that is its own regulariser
                return {"same": written[id(value)]}
            written[id(value)] = path
            inner = {key: write(item, f"{path}.{key}") for key, item in value.config().items()}
            return {"type": type_name(type(value)), **inner}
        if isinstance(value, Tensor):
            if id(value) in places:
                return {"tensor": places[id(value)], "learned": isinstance(value, nn.Parameter)}
            return value.detach().tolist()  # made of stored numbers, which will replace it
        if isinstance(value, Mapping):
            return {"dict": {str(key): write(item, f"{path}.{key}") for key, item in value.items()}}
        if isinstance(value, list | tuple):
            return [write(item, f"{path}.{i}") for i, item in enumerate(value)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(
            f"{path.removeprefix('.')} of {type(part).__name__} cannot be stored: a {type(value).__name__} is neither "
            f"data nor a part. A function of your own becomes one as a subclass, such as of Schedule"
        )

    return write(part, "")


def build(description: Config, tensors: Mapping[str, Tensor]) -> Part:
    """Build what a description says, with the tensors of the state that it names."""
    built: dict[str, Any] = {}

    def make(value: Any, path: str) -> Any:
        if isinstance(value, list):
            return [make(item, f"{path}.{i}") for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if "same" in value and "type" not in value:
            return built[value["same"]]
        if "tensor" in value and "type" not in value:
            tensor = tensors[value["tensor"]].clone()
            return nn.Parameter(tensor) if value["learned"] else tensor
        if "dict" in value and "type" not in value:
            return {key: make(item, f"{path}.{key}") for key, item in value["dict"].items()}
        arguments = {
            key: make(item, f"{path}.{key}") for key, item in value.items() if key != "type"
        }
        name, defaults = RENAMED_TYPES.get(value["type"], (value["type"], {}))
        built[path] = find(name).from_config(**{**defaults, **arguments})
        return built[path]

    return make(description, "")


def find(name: str) -> type[Part]:
    """Return the class of a name, or say what has to be imported first."""
    if name in _CLASSES:
        return _CLASSES[name]
    module, colon, cls = name.rpartition(":")
    if not colon:
        raise PartMissing(f"there is no part {name!r} in this version of the library")
    raise PartMissing(
        f"it needs {cls} of the module {module}, which has not been imported: import {module}, then load"
    )


def modules_of(description: Any) -> list[str]:
    """Return the modules outside the library whose classes a description names, in order."""
    if isinstance(description, list):
        inner = [module for item in description for module in modules_of(item)]
    elif isinstance(description, dict):
        named = description.get("type")
        own = [named.rpartition(":")[0]] if isinstance(named, str) and ":" in named else []
        inner = own + [module for item in description.values() for module in modules_of(item)]
    else:
        inner = []
    return sorted(set(inner))


def hold(module: nn.Module, name: str, value: Tensor | float) -> None:
    """Keep a tensor in a module: as a parameter if it is one (it will be learned), else as a
    buffer.
    """
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
            rebuilt[id(part)] = change(part if isinstance(part, opaque) else with_children(part))
        return rebuilt[id(part)]

    def with_children(part: nn.Module) -> nn.Module:
        children = {
            name: visit(child) for name, child in part._modules.items() if child is not None
        }
        if all(child is part._modules[name] for name, child in children.items()):
            return part
        return shallow_copy(part, _modules={**part._modules, **children})

    return visit(module)  # type: ignore[return-value]


def written_together(cls: type, form: str, *originals: str) -> bool:
    """Tell whether a fast form of a class belongs to its methods: no subclass changed those but
    inherited the form.

    >>> class A:
    ...     def step(self): ...
    ...     def fast_step(self): ...
    >>> class B(A):
    ...     def step(self): ...
    >>> written_together(A, "fast_step", "step"), written_together(B, "fast_step", "step")
    (True, False)
    """

    key = (cls, form, *originals)
    if key not in _TOGETHER:

        def depth(name: str) -> int:
            return next(
                (i for i, each in enumerate(cls.__mro__) if name in vars(each)), len(cls.__mro__)
            )

        _TOGETHER[key] = all(depth(form) <= depth(original) for original in originals)
    return _TOGETHER[key]
