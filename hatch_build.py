"""Compile the C kernels when the package is built.

A wheel contains the compiled library and is therefore for one platform, but for every Python.

- An ordinary build uses the C compiler of the machine. If that fails, the wheel has no kernels and
  a file with the reason, which ``fused=True`` repeats.
- ``MIRRORDESCENT_TARGET=linux-aarch64`` compiles for another platform with zig. A failure is an
  error. The names are in ``building/targets.py``.
- An editable installation compiles into the source folder.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from building.compilation import (
    CompilationError,
    compile_in_place,
    compile_library,
    is_current,
    load_sources,
    local_compiler,
    zig_compiler,
)
from building.targets import TARGETS, local_levels

LIBRARY_FOLDER = "mirrordescent/kernels/_lib"


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Add the compiled kernels to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels before the wheel is put together."""
        if self.target_name != "wheel":
            return
        self._temporary = tempfile.TemporaryDirectory()
        target = os.environ.get("MIRRORDESCENT_TARGET")
        if target:
            self._include_for_target(target, build_data)
        elif version == "editable":
            self._compile_in_place()
        else:
            self._include_for_this_machine(build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove temporary files after the wheel is complete."""
        if self.target_name == "wheel":
            self._temporary.cleanup()

    def _include_for_target(self, name: str, build_data: dict[str, Any]) -> None:
        if name not in TARGETS:
            raise CompilationError(
                f"MIRRORDESCENT_TARGET={name} is unknown: choose from {', '.join(TARGETS)}"
            )
        target = TARGETS[name]
        library = Path(self._temporary.name) / load_sources().library_name(target.system)
        compile_library(library, zig_compiler(target), target.levels)
        self._include(library, target.tag, build_data)

    def _include_for_this_machine(self, build_data: dict[str, Any]) -> None:
        library = Path(self._temporary.name) / load_sources().library_name()
        try:
            compile_library(library, local_compiler(), local_levels())
        except CompilationError as error:
            self._warn(error)
            reason = Path(self._temporary.name) / load_sources().failure_path().name
            reason.write_text(str(error), encoding="utf-8")
            build_data["force_include"][str(reason)] = f"{LIBRARY_FOLDER}/{reason.name}"
        else:
            self._include(library, _local_tag(), build_data)

    def _compile_in_place(self) -> None:
        if is_current():
            return
        try:
            compile_in_place()
        except CompilationError as error:
            self._warn(error)
            reason = load_sources().failure_path()
            reason.parent.mkdir(exist_ok=True)
            reason.write_text(str(error), encoding="utf-8")

    def _include(self, library: Path, tag: str, build_data: dict[str, Any]) -> None:
        build_data["force_include"][str(library)] = f"{LIBRARY_FOLDER}/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"

    def _warn(self, error: CompilationError) -> None:
        self.app.display_warning(
            "mirrordescent is built WITHOUT its compiled kernels, and will be several times slower "
            f"on a CPU: {error}\nInstall a C compiler and then mirrordescent again, or install a "
            "wheel for your platform."
        )


def _local_tag() -> str:
    """Return the platform tag of a library that the compiler of this machine has made."""
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return tag.replace("universal2", platform.machine())
