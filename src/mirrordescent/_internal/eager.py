"""Numerical code that must run as it is written: not compiled, and in its own precision."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Types of devices with autocast."""


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Disable autocast inside a function, so that it computes in the precision of its data."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        devices = [device for device in DEVICES if torch.is_autocast_enabled(device)]
        if not devices:
            return function(*args, **kwargs)
        with ExitStack() as stack:
            for device in devices:
                stack.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return wrapped


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function without ``torch.compile``, even if the code that calls it is compiled.

    ``torch.compiler.disable`` does the same, but takes seconds to import.
    """

    disabled: list[Callable[P, R]] = []

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" in sys.modules:
            if not disabled:
                disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
            return disabled[0](*args, **kwargs)
        return function(*args, **kwargs)

    wrapped._torchdynamo_disable = True  # type: ignore[attr-defined]
    return wrapped
