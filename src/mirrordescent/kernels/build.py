"""Compilation of the C files of this folder into a library in the cache, and loading of it."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from mirrordescent._internal.cache import directory
from mirrordescent._internal.files import whole

FLAGS = (
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-std=c11",
    "-fPIC",
    "-shared",
    "-fopenmp",
)
_SEAL_LENGTH = 13 + 8 + 32
"""Bytes of the seal: a word, the length of the library, its hash."""

_DISABLED = ContextVar("disabled", default=False)


class BuildError(OSError):
    """The kernels could not be compiled or loaded."""


@cache
def library() -> ctypes.CDLL:
    """Return the compiled kernels. The first call on a machine compiles them in a few seconds."""
    path = _path()
    if not _trusted(path):
        _compile(sources("c"), path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(
            f"{path} cannot be loaded: {error}; delete the file to compile the kernels again"
        ) from error


@contextmanager
def disabled() -> Iterator[None]:
    """Disable the C kernels inside this context."""
    token = _DISABLED.set(True)
    try:
        yield
    finally:
        _DISABLED.reset(token)


def available() -> bool:
    """Return whether the kernels are enabled and compiled, and load them if they are.

    Until the kernels are loaded, every call looks for the compiled library in the file system.
    """
    if _DISABLED.get():
        return False
    if library.cache_info().currsize > 0:
        return True
    try:
        return _trusted(_path()) and bool(library())
    except OSError:
        return False


def _trusted(path: Path) -> bool:
    """Return whether a compiled library exists, is intact, and can be written by this user only.

    Loading a library runs code from it, and loading a truncated file ends the process.
    """
    try:
        for place in (path.parent, path):
            _require_private(place)
        content = path.read_bytes()
    except BuildError:
        raise
    except OSError:  # missing or not readable
        return False
    return content[-_SEAL_LENGTH:] == _seal(content[:-_SEAL_LENGTH])


def _require_private(path: Path) -> None:
    """Raise BuildError if other users can write to a file or folder."""
    status = path.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise BuildError(
            f"{path} belongs to another user or can be written to by others, so its code is not "
            f"run: set MIRRORDESCENT_CACHE to a folder of your own, or chmod go-w {path}"
        )


def _seal(content: bytes) -> bytes:
    """Return the seal that is appended to a library: its length and its hash."""
    return b"mirrordescent" + len(content).to_bytes(8, "little") + hashlib.sha256(content).digest()


def _path() -> Path:
    return directory() / "kernels" / _name()


@cache
def _name() -> str:
    """Return the file name of the library: a hash of its sources, flags and processor."""
    text = b"".join(path.read_bytes() for path in (*sources("c"), *sources("h")))
    target = f"{FLAGS} {platform.machine()} {_processor()}".encode()
    return f"{hashlib.sha256(text + target).hexdigest()[:32]}.so"


def sources(suffix: str) -> list[Path]:
    """Return the files of this folder with a suffix, ``"c"`` or ``"h"``."""
    return sorted(Path(__file__).parent.glob(f"*.{suffix}"))


def _compile(sources: list[Path], path: Path) -> None:
    """Compile C files into a sealed library."""
    compiler = (
        os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    if compiler is None:
        raise BuildError(
            "C kernels need a compiler, and there is no C compiler: install gcc or clang, set CC, "
            "or use fused=False"
        )
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            output = Path(folder) / "kernels.so"
            _run([*shlex.split(compiler), *FLAGS, *map(str, sources), "-o", str(output), "-lm"])
            content = output.read_bytes()
            with whole(path) as partial:  # several processes may compile at once
                partial.write_bytes(content + _seal(content))
                partial.chmod(0o700)
    except BuildError:
        raise
    except OSError as error:
        raise BuildError(
            f"kernels cannot be kept in {path.parent} ({error}): set MIRRORDESCENT_CACHE to a "
            f"writable folder, or use fused=False"
        ) from error


def _run(command: list[str]) -> None:
    """Run a command, or raise BuildError with its messages."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


def _processor() -> str:
    """Return the model and the features of the processor, as far as the system reports them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    prefixes = ("model name", "flags", "Features")
    return " ".join(sorted({line for line in lines if line.startswith(prefixes)}))
