"""Warnings that point at the line of the user who caused them."""

import sys
import warnings
from types import FrameType

_LIBRARIES = ("mirrordescent", "torch")


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line outside this library and torch."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _package_of(frame) in _LIBRARIES:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
