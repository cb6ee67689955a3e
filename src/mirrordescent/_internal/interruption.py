"""Interruption by Ctrl-C or by a signal of the system, during a step or an import."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE = 128 + signal.SIGINT


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT: raise KeyboardInterrupt, or end the process during an import.

    Compiled modules import other modules and may swallow an exception that is raised there. Torch,
    for example, would continue without a part of NumPy and fail later with an unrelated error.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os.write(2, b"mirrordescent: interrupted\n")
            os._exit(EXIT_CODE)
        frame = frame.f_back
    raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Handle Ctrl-C by :func:`interrupt` in this context, unless another handler is installed."""
    previous = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if previous is not signal.default_int_handler or not in_main_thread:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class Interrupted(KeyboardInterrupt):
    """Raised when work has stopped on request and its state has been saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class Interruption:
    """Delay SIGINT and SIGTERM in this context, so that a step can be finished.

    The first signal is stored in ``requested``. A second signal raises :class:`Interrupted`.
    Signals can be handled in the main thread only; in other threads nothing changes.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is not threading.main_thread():
            return self
        default_handlers = (signal.default_int_handler, interrupt, signal.SIG_DFL)
        for number in SIGNALS:
            if signal.getsignal(number) in default_handlers:
                self._previous[number] = signal.signal(number, self._store)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _store(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise Interrupted("interrupted", number)
        self.requested = number
