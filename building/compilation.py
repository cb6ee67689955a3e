"""Compilation of the C sources into one library: ``python -m building.compilation``.

``kernels.c`` is compiled once for every level of the processor, all other files once. The library
chooses among the levels when it is loaded.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from building.targets import Target, local_levels

PACKAGE = Path(__file__).parents[1] / "src" / "mirrordescent"
FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fopenmp-simd",  # only its simd loops: no OpenMP library is linked
)
"""Flags of every file. Multiplications and additions are fused only where a source says so, since
torch does not fuse them either."""


class CompilationError(Exception):
    """The kernels could not be compiled."""


def load_sources(package: Path = PACKAGE) -> ModuleType:
    """Load the module of the package that lists the sources, without importing the package."""
    path = package / "kernels" / "sources.py"
    spec = importlib.util.spec_from_file_location("kernel_sources", path)
    if spec is None or spec.loader is None:
        raise CompilationError(f"{path} cannot be read")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def local_compiler() -> list[str]:
    """Return the command of the C compiler of this machine: ``CC``, cc, gcc or clang."""
    configured = os.environ.get("CC")
    if configured:
        return shlex.split(configured)
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found:
            return [found]
    raise CompilationError("there is no C compiler: install gcc or clang, or set CC")


def zig_compiler(target: Target) -> list[str]:
    """Return the command of the compiler zig for a platform."""
    if importlib.util.find_spec("ziglang") is None:
        raise CompilationError("compiling for other platforms needs zig: pip install ziglang")
    return [sys.executable, "-m", "ziglang", "cc", "-target", target.zig, "-fno-sanitize=all"]


def compile_library(
    output: Path,
    compiler: Sequence[str],
    levels: Mapping[str, Sequence[str]],
    package: Path = PACKAGE,
) -> None:
    """Compile the kernels into one library.

    Args:
        output: Path of the library. It appears only when it is complete.
        compiler: Command of a compiler that understands the options of gcc.
        levels: Compiler flags of every level of the processor.
        package: Folder of the package with the sources.

    Raises:
        CompilationError: If the compiler fails, with its messages.
    """
    sources = load_sources(package)
    commands: list[list[str]] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as name:
        folder = Path(name)
        for path in sources.sources("c"):
            variants = levels if path.name == "kernels.c" else {"": ()}
            for level, flags in variants.items():
                defined = [f'-DSOURCES="{sources.source_hash()}"']
                if level:
                    defined.append(f"-DLEVEL={level}")
                made = str(folder / f"{path.stem}{level}.o")
                commands.append([*compiler, *FLAGS, *flags, *defined, "-c", str(path), "-o", made])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        library = folder / output.name
        objects = [command[-1] for command in commands]
        _run([*compiler, "-shared", "-s", *objects, "-o", str(library), *_libraries(output)])
        library.chmod(0o755)
        library.replace(output)


def _libraries(output: Path) -> list[str]:
    """Return the system libraries that a library needs, by the suffix of its name."""
    return ["-lm", "-lpthread"] if output.suffix == ".so" else []


def _run(command: list[str]) -> None:
    """Run a command, or raise CompilationError with its messages."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompilationError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise CompilationError(f"{shlex.join(command)} failed:\n{done.stderr.strip()}")


def is_current(package: Path = PACKAGE) -> bool:
    """Return whether the library in the package was compiled from the present sources."""
    sources = load_sources(package)
    path: Path = sources.library_path()
    return path.exists() and sources.source_hash().encode() in path.read_bytes()


def compile_in_place(
    package: Path = PACKAGE, levels: Mapping[str, Sequence[str]] | None = None
) -> Path:
    """Compile the kernels for this machine into the package, and return the path of the library."""
    sources = load_sources(package)
    path: Path = sources.library_path()
    compile_library(path, local_compiler(), levels or local_levels(), package)
    sources.failure_path().unlink(missing_ok=True)
    return path


def main() -> None:
    """Compile the kernels for this machine."""
    try:
        print(compile_in_place())
    except CompilationError as error:
        raise SystemExit(f"the kernels were not compiled: {error}") from error


if __name__ == "__main__":
    main()
