"""Compile the C files of this folder once, keep the result in the cache, and load it."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from mirrordescent.cache import directory

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-std=c11", "-fPIC", "-shared", "-fopenmp")


class BuildError(OSError):
    """The kernels could not be compiled here."""


@cache
def library() -> ctypes.CDLL:
    """Return the compiled kernels; the first call on a machine compiles them, which takes some seconds."""
    path = _path()
    if not path.exists():
        _compile(sources("c"), path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path} cannot be loaded: {error}; delete it to build it anew") from error


def ready() -> bool:
    """Tell whether the kernels are there already, so that nobody has to wait for them to be compiled."""
    if library.cache_info().currsize > 0:
        return True
    try:
        return _path().exists() and bool(library())
    except BuildError:
        return False


def _path() -> Path:
    return directory() / _name()


@cache
def _name() -> str:
    """Name the library by what it is built from, read once, since every new optimiser may ask for it."""
    text = b"".join(path.read_bytes() for path in (*sources("c"), *sources("h")))
    described = f"{FLAGS} {platform.machine()} {_processor()}".encode()
    return f"kernels-{hashlib.sha256(text + described).hexdigest()[:20]}.so"


def sources(suffix: str) -> list[Path]:
    """Return the C files of this folder."""
    return sorted(Path(__file__).parent.glob(f"*.{suffix}"))


def _compile(sources: list[Path], path: Path) -> None:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BuildError("there is no C compiler: install gcc or clang, set CC, or do without fused kernels")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name  # moved when it is whole, since several processes may build at once
        command = [compiler, *FLAGS, *map(str, sources), "-o", str(made), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BuildError(f"{compiler} cannot be run: {error}") from error
        if done.returncode:
            raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
        made.replace(path)


def _processor() -> str:
    """Name the processor that the code is compiled for, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return " ".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
