"""C functions that are called by the names of their arguments, as declared in the C sources."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mirrordescent.kernels import sources
from mirrordescent.kernels.loading import level, library

TYPES = {torch.float32: "float", torch.float64: "double"}
_NUMBER_TYPES: dict[str, Any] = {
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
    "int": ctypes.c_int,
}


def supports(x: Tensor) -> bool:
    """Return whether kernels can work on a tensor: on a CPU, in single or double precision."""
    return x.device.type == "cpu" and x.dtype in TYPES


def tracked(*tensors: Tensor) -> bool:
    """Return whether autograd or a transform of ``torch.func`` tracks operations on a tensor.

    Then they must be operations of torch.
    """
    for tensor in tensors:
        if tensor.requires_grad and torch.is_grad_enabled():
            return True
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return True
        unpacked = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
        if unpacked.tangent is not None:
            return True
    return False


class Declaration(NamedTuple):
    """The return type of a C function, and the ctypes of its arguments by name."""

    result: Any
    arguments: dict[str, Any]


@cache
def declarations() -> dict[str, Declaration]:
    """Return the declarations of the C functions, read from their sources."""
    declared: dict[str, Declaration] = {}
    for result, name, arguments in sources.declarations():
        types: dict[str, Any] = {}
        for argument in arguments.split(","):
            if "*" in argument:
                types[argument.rpartition("*")[2]] = ctypes.c_void_p
            else:
                type_name, _, argument_name = argument.strip().rpartition(" ")
                types[argument_name] = _NUMBER_TYPES[type_name.strip()]
        declared[name] = Declaration(_NUMBER_TYPES.get(result), types)
    return declared


class KernelFunction:
    """A C function for one precision, called by the names of its arguments.

    A missing or unknown argument is an error. Tensors and arrays are passed by address, None as
    null. ``threads`` is filled in. ``numbers`` are the names of the real arguments.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        declared = declarations()[name]
        self.name = name
        self.names = list(declared.arguments)
        self.numbers = [
            argument for argument, kind in declared.arguments.items() if kind is ctypes.c_double
        ]
        self._expected = declared.arguments.keys() - {"threads"}
        self._function = library()[f"{name}_{TYPES[dtype]}_{level()}"]
        self._function.restype = declared.result
        self._function.argtypes = list(declared.arguments.values())

    def __call__(self, **arguments: Tensor | array[Any] | float | None) -> None:
        """Call the function."""
        if arguments.keys() != self._expected:
            wrong = ", ".join(sorted(arguments.keys() ^ self._expected))
            raise TypeError(
                f"the kernel {self.name} takes {', '.join(self.names)}; wrong or missing: {wrong}"
            )
        arguments["threads"] = torch.get_num_threads()
        values: list[float | None] = []
        for name in self.names:
            value = arguments[name]
            if isinstance(value, array):
                values.append(value.buffer_info()[0])
            elif isinstance(value, Tensor):
                values.append(value.data_ptr())
            else:
                values.append(value)
        if self._function(*values):
            raise MemoryError("a kernel could not allocate its workspace")


def function(name: str, dtype: torch.dtype) -> KernelFunction:
    """Return a C function, looked up once."""
    return _function(name, dtype, level())


@cache
def _function(name: str, dtype: torch.dtype, level: str) -> KernelFunction:
    return KernelFunction(name, dtype)


def addresses(tensors: Sequence[Tensor | None]) -> array[int]:
    """Return the addresses of tensors as an array for a C function; None becomes 0."""
    return array("Q", [0 if tensor is None else tensor.data_ptr() for tensor in tensors])
