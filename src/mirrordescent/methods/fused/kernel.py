"""What every kernel for total-variation problems is, and how it is called."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mirrordescent.kernels import library

if TYPE_CHECKING:
    from mirrordescent.methods.base import Method
    from mirrordescent.methods.watching import Means
    from mirrordescent.problems.tv import TVInpainting

TYPES = {torch.float32: "float", torch.float64: "double"}


class Kernel(ABC):
    """A whole iteration of one kind of method, in C, on f(x) = s·(‖Z(x − y)‖² + λ‖Dx‖₁) without an operator."""

    kind: str
    """What it is for, in words."""

    @classmethod
    @abstractmethod
    def of(cls, method: Method[Any]) -> Kernel | None:
        """Return the kernel for a method, or None if the method is of another kind."""

    @abstractmethod
    def step(self, problem: TVInpainting, state: Any, means: Means | None) -> Any:
        """Return the state after a step, from tensors on the CPU, without a graph.

        Methods that go by gradients tell them, if there is somebody to tell.
        """


def call(name: str, x: Tensor, *arguments: Tensor | int | float | None) -> None:
    """Call a kernel of x's type with its shape, then the arguments: tensors by address, none as null; and threads."""
    *_, height, width = x.shape
    planes = x.numel() // (height * width)
    converted = [_convert(argument) for argument in (planes, height, width, x, *arguments)]
    if library()[f"{name}_{TYPES[x.dtype]}"](*converted, ctypes.c_int(torch.get_num_threads())):
        raise MemoryError("there is no memory left for a row of pixels")


def planes_of(mask: Tensor | None, x: Tensor) -> tuple[Tensor | None, int]:
    """Return a mask as kernels read it, and its number of planes: one for all, one for a sample, or one for a plane."""
    if mask is None:
        return None, 0
    batch, _, *size = x.shape
    shared = mask.shape in ((1, 1, *size), (batch, 1, *size))
    mask = (mask if shared else mask.expand_as(x)).contiguous()
    return mask, mask.shape[0] * mask.shape[1]


def _convert(argument: Tensor | int | float | None) -> ctypes.c_void_p | ctypes.c_long | ctypes.c_double:
    if argument is None or isinstance(argument, Tensor):
        return ctypes.c_void_p(None if argument is None else argument.data_ptr())
    return ctypes.c_long(argument) if isinstance(argument, int) else ctypes.c_double(argument)
