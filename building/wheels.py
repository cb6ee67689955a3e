"""Build a wheel for every platform, and check what is in it: ``python -m building.wheels``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from building.binary_format import read_binary
from building.compilation import load_sources
from building.targets import TARGETS

ROOT = Path(__file__).parents[1]
FORMATS = {"linux": "ELF", "darwin": "Mach-O", "win32": "PE"}
MANYLINUX_GLIBC = (2, 17)
SYSTEM_LIBRARIES = {
    "linux": ("libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux"),
    "darwin": ("/usr/lib/libSystem.B.dylib",),
    "win32": ("KERNEL32.dll", "api-ms-win-crt-", "ntdll.dll"),
}
"""Beginnings of the names of libraries that every system has."""


class WheelError(Exception):
    """A wheel does not contain what it should."""


def build_wheel(name: str, folder: Path) -> Path:
    """Build the wheel of a target, check it, and return its path."""
    built = _build(["--target", "wheel"], folder, {"MIRRORDESCENT_TARGET": name})
    check_wheel(built, name)
    return built


def build_local_wheel(folder: Path) -> Path:
    """Build a wheel with the C compiler of this machine, and return its path."""
    return _build(["--target", "wheel"], folder, {"MIRRORDESCENT_TARGET": ""})


def build_source_archive(folder: Path) -> Path:
    """Build the archive of the sources, and return its path."""
    return _build(["--target", "sdist"], folder, {})


def _build(arguments: list[str], folder: Path, variables: dict[str, str]) -> Path:
    """Run hatchling, and return the path of the file that it has made."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        command = [sys.executable, "-m", "hatchling", "build", "--directory", name, *arguments]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise WheelError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        (built,) = Path(name).iterdir()
        return built.replace(folder / built.name)


def check_wheel(path: Path, name: str) -> None:
    """Raise WheelError unless a wheel has the tag of a target, and its library all kernels."""
    target = TARGETS[name]
    sources = load_sources()
    if not path.name.endswith(f"-py3-none-{target.tag}.whl"):
        raise WheelError(f"{path.name} should be tagged py3-none-{target.tag}")
    member = f"mirrordescent/kernels/_lib/{sources.library_name(target.system)}"
    with zipfile.ZipFile(path) as archive:
        members = [each for each in archive.namelist() if "/_lib/" in each]
        if members != [member]:
            raise WheelError(f"{path.name} should contain {member} only, has {members}")
        content = archive.read(member)
    problems = list(_problems(content, name))
    if problems:
        raise WheelError(f"{path.name}: {'; '.join(problems)}")


def _problems(content: bytes, name: str) -> Iterable[str]:
    """Yield what is wrong with the library of a target."""
    target = TARGETS[name]
    sources = load_sources()
    binary = read_binary(content)
    found = (binary.format, binary.processor)
    wanted = (FORMATS[target.system], target.processor)
    if found != wanted:
        yield f"the library is {' for '.join(found)}, not {' for '.join(wanted)}"
    missing = sources.symbols(tuple(target.levels)) - binary.exports
    if missing:
        yield f"the library lacks {', '.join(sorted(missing))}"
    surplus = binary.exports - sources.symbols(tuple(target.levels))
    surplus = {symbol for symbol in surplus if not symbol.startswith("_")}  # those of linkers
    if surplus:
        yield f"the library also exports {', '.join(sorted(surplus))}"
    if sources.source_hash().encode() not in content:
        yield "the library was compiled from other sources"
    if binary.glibc > MANYLINUX_GLIBC:
        yield f"the library needs glibc {'.'.join(map(str, binary.glibc))}"
    for library in sorted(binary.libraries):
        if not library.startswith(SYSTEM_LIBRARIES[target.system]):
            yield f"the library needs {library}"


def parse_arguments(description: str | None) -> argparse.Namespace:
    """Return the targets to build and the folder to write to, given on the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=", ".join(TARGETS))
    parser.add_argument("--folder", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"unknown targets {', '.join(sorted(unknown))}: choose from {list(TARGETS)}")
    return options


def main() -> None:
    """Build and check the wheels of all or of some targets, and the archive of the sources."""
    options = parse_arguments(__doc__)
    try:
        for name in options.targets:
            print(build_wheel(name, options.folder), flush=True)
        print(build_source_archive(options.folder))
    except WheelError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
