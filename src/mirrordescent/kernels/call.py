"""C functions, called by the names of their arguments. The declarations in C are the only ones."""

from __future__ import annotations

import ctypes
import re
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrordescent.kernels.build import library, sources

TYPES = {torch.float32: "float", torch.float64: "double"}
_DECLARED = re.compile(r"^(void|int) NAME\((\w+)\)\((.*?)\) *\{", re.MULTILINE | re.DOTALL)
_NUMBERS: dict[str, Any] = {"long": ctypes.c_long, "double": ctypes.c_double, "int": ctypes.c_int}


def supports(x: Tensor) -> bool:
    """Return whether kernels can work on a tensor: on a CPU, in single or double precision."""
    return x.device.type == "cpu" and x.dtype in TYPES


class Declaration(NamedTuple):
    """What a C function returns, and the ctypes of its arguments by their names."""

    result: Any
    arguments: dict[str, Any]


@cache
def declarations() -> dict[str, Declaration]:
    """Return the declarations of the C functions, as their sources have them."""
    text = "\n".join(path.read_text() for path in sources("h"))
    found: dict[str, Declaration] = {}
    for result, name, listed in _DECLARED.findall(text):
        found[name] = Declaration(_NUMBERS.get(result), {})
        for argument in listed.split(","):
            pointer = "*" in argument
            kind, _, called = argument.strip().rpartition("*" if pointer else " ")
            found[name].arguments[called] = ctypes.c_void_p if pointer else _NUMBERS[kind.strip()]
    return found


class Function:
    """A C function for one precision, called by the names of its arguments; a missing or unknown
    one is an error.

    Tensors and arrays are passed by address, None as null. ``threads`` is filled in. ``numbers``
    are the names of the arguments that are real numbers.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        declared = declarations()[name]
        self.name = name
        self.names = list(declared.arguments)
        self.numbers = [
            argument for argument, kind in declared.arguments.items() if kind is ctypes.c_double
        ]
        self._expected = declared.arguments.keys() - {"threads"}
        self._function = library()[f"{name}_{TYPES[dtype]}"]
        self._function.restype = declared.result
        self._function.argtypes = list(declared.arguments.values())

    def __call__(self, **arguments: Tensor | array[Any] | float | None) -> None:
        """Call it."""
        if arguments.keys() != self._expected:
            wrong = ", ".join(sorted(arguments.keys() ^ self._expected))
            raise TypeError(
                f"the kernel {self.name} takes {', '.join(self.names)}; wrong or missing: {wrong}"
            )
        arguments["threads"] = torch.get_num_threads()
        if self._function(*[_passed(arguments[name]) for name in self.names]):
            raise MemoryError("there is no memory left for a kernel to work in")


@cache
def function(name: str, dtype: torch.dtype) -> Function:
    """Return a C function, looked up once."""
    return Function(name, dtype)


def addresses(tensors: Sequence[Tensor | None]) -> array[int]:
    """Return where tensors are in memory, 0 for those that are not there, as C functions take a
    list of them.
    """
    return array("Q", [0 if tensor is None else tensor.data_ptr() for tensor in tensors])


def _passed(value: Tensor | array[Any] | float | None) -> float | None:
    if isinstance(value, array):
        return value.buffer_info()[0]
    return value.data_ptr() if isinstance(value, Tensor) else value
