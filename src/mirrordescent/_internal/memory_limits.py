"""Refusing what asks for more than it may: building something from a file must not take all memory,
or for ever.
"""

from __future__ import annotations

import math
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_MADE = {
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
    """Something would need more memory, or more parts, than it may have."""


class Bounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context, making tensors of more than so many bytes in all, or by too many calls,
    is an error.

    It is raised before the memory is asked for.

    >>> import torch
    >>> with Bounded("a test", memory=1000):
    ...     torch.zeros(1000)
    Traceback (most recent call last):
    mirrordescent._internal.memory_limits.TooLarge: a test would need more than 4 KB of memory, and may have 1 KB
    """

    def __init__(self, what: str, memory: float, calls: int = 10_000_000) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.what = what
        self.memory = memory
        self.calls = calls
        self.taken = 0.0
        self.called = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.called = self.called + 1
        if self.called > self.calls:
            raise TooLarge(
                f"{self.what} has too many parts: building it took more than {self.calls} operations"
            )
        name = func.overloadpacket.__name__
        if name.removesuffix("_like") in _MADE:
            self.taken += _entries(name, args) * getattr(kwargs.get("dtype"), "itemsize", 4)
            if self.taken > self.memory:
                needed = _bytes(self.taken)
                allowed = _bytes(self.memory)
                raise TooLarge(
                    f"{self.what} would need more than {needed} of memory, and may have {allowed}"
                )
        return func(*args, **kwargs)


def _entries(name: str, args: Any) -> float:
    """Return how many entries a call makes, from its sizes, or from the range of whole numbers that
    it covers.
    """
    sizes = args[1] if name.startswith("new_") else args[0] if args else 0
    if isinstance(sizes, (list, tuple)):
        return math.prod(sizes)
    if name == "arange":
        numbers = [float(each) for each in args[:3] if isinstance(each, (int, float))]
        low, high = (0.0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
        return abs(high - low) / (abs(numbers[2]) if len(numbers) > 2 and numbers[2] else 1)
    if isinstance(sizes, (int, float)):
        return float(sizes) ** 2 if name == "eye" else 1.0
    return float(getattr(sizes, "numel", lambda: 0)())


def _bytes(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}"
        count /= 1000
    raise AssertionError
