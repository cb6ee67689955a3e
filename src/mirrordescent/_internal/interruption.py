"""Being asked to stop, by Ctrl-C or by a system that ends its processes, while a step or an import
is half done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 128 + signal.SIGINT  # the exit code


def stop(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, as Python does by itself; but where a module is half imported, end
    the process at once.

    Compiled modules import others, and take whatever is raised there for another error, or go on
    without them: torch without half of NumPy, say, which is noticed later, elsewhere, or never.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os.write(2, b"mirrordescent: interrupted\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let Ctrl-C :func:`stop` the process, unless somebody has a handler of his own."""
    before = signal.getsignal(signal.SIGINT)
    if (
        before is not signal.default_int_handler
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupted(KeyboardInterrupt):
    """Work that was asked to stop, and has kept what there was."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class Interruption:
    """Notes in ``asked`` which signal asked to stop, instead of stopping at once; a second one
    stops at once.

    Only the main thread of a program can do this; elsewhere signals do what they always do.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            # Where somebody has a handler of his own, or ignores a signal, it stays.
            usual = (signal.default_int_handler, stop, signal.SIG_DFL)
            for number in SIGNALS:
                if signal.getsignal(number) in usual:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise Interrupted("interrupted", number)
        self.requested = number
