"""Limits on memory and operations while a module is built from a file."""

from __future__ import annotations

import math
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_ALLOCATIONS = {
    "empty",
    "zeros",
    "ones",
    "full",
    "rand",
    "randn",
    "arange",
    "linspace",
    "eye",
    "empty_strided",
    "new_empty",
}


class TooLarge(ValueError):
    """A module would exceed the limit of memory or operations."""


class Bounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Limit the memory of new tensors and the number of operations in this context.

    The error is raised before the memory is allocated.

    Args:
        what: Subject of the error message.
        memory: Largest memory of all new tensors in bytes.
        calls: Largest number of operations.

    >>> import torch
    >>> with Bounded("a test", memory=1000):
    ...     torch.zeros(1000)
    Traceback (most recent call last):
    mirrordescent._internal.memory_limits.TooLarge: a test needs more than 4 KB of memory, ...
    """

    def __init__(self, what: str, memory: float, calls: int = 10_000_000) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.what = what
        self.memory = memory
        self.calls = calls
        self.allocated = 0.0
        self.called = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import its compiler at the first operation, for a second.

        Nothing is compiled in this context.
        """
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.called += 1
        if self.called > self.calls:
            raise TooLarge(
                f"{self.what} has too many parts: "
                f"building it takes more than {self.calls} operations"
            )
        name = func.overloadpacket.__name__
        if name.removesuffix("_like") in _ALLOCATIONS:
            itemsize = getattr(kwargs.get("dtype"), "itemsize", 4)
            self.allocated += _entries(name, args) * itemsize
            if self.allocated > self.memory:
                raise TooLarge(
                    f"{self.what} needs more than {_in_bytes(self.allocated)} of memory, "
                    f"the limit is {_in_bytes(self.memory)}"
                )
        return func(*args, **kwargs)


def _entries(name: str, args: Any) -> float:
    """Return the number of entries of the tensor that a call allocates.

    Args:
        name: Name of the operation.
        args: Its arguments.
    """
    if name == "arange":
        return _arange_entries(args)
    position = 1 if name.startswith("new_") else 0
    size = args[position] if args else 0
    if isinstance(size, (list, tuple)):
        return math.prod(size)
    if isinstance(size, (int, float)):
        return float(size) ** 2 if name == "eye" else 1.0
    return float(getattr(size, "numel", lambda: 0)())


def _arange_entries(args: Any) -> float:
    """Return the number of entries of ``arange(end)`` or ``arange(start, end, step)``."""
    numbers = [float(each) for each in args[:3] if isinstance(each, (int, float))]
    if len(numbers) == 1:
        return abs(numbers[0])
    start, end = numbers[:2]
    step = numbers[2] if len(numbers) > 2 and numbers[2] else 1.0
    return abs(end - start) / abs(step)


def _in_bytes(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.0f} TB"
