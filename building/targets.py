"""The platforms for which wheels are built, and the levels of their processors."""

from __future__ import annotations

import platform
import sys
from typing import NamedTuple

AVX2 = (
    "-mavx2",
    "-mfma",
    "-mf16c",
    "-mbmi",
    "-mbmi2",
    "-mlzcnt",
    "-mmovbe",
    "-mpopcnt",
)
AVX512 = (
    *AVX2,
    "-mavx512f",
    "-mavx512dq",
    "-mavx512cd",
    "-mavx512bw",
    "-mavx512vl",
    "-mprefer-vector-width=512",
)
LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {"baseline": (), "avx2": AVX2, "avx512": AVX512},
    "aarch64": {"baseline": ()},  # NEON is part of it
}
"""Compiler flags of every level, for every processor. Other processors have the baseline only."""


class Target(NamedTuple):
    """A platform.

    Args:
        processor: ``"x86_64"`` or ``"aarch64"``.
        system: Value of ``sys.platform`` there.
        zig: Name of the platform for the compiler zig.
        tag: Platform tag of the wheel.
    """

    processor: str
    system: str
    zig: str
    tag: str

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """The flags of every level."""
        return LEVELS[self.processor]


TARGETS = {
    "linux-x86_64": Target(
        "x86_64",
        "linux",
        "x86_64-linux-gnu.2.17",
        "manylinux_2_17_x86_64.manylinux2014_x86_64",
    ),
    "linux-aarch64": Target(
        "aarch64",
        "linux",
        "aarch64-linux-gnu.2.17",
        "manylinux_2_17_aarch64.manylinux2014_aarch64",
    ),
    "macos-x86_64": Target("x86_64", "darwin", "x86_64-macos.11.0", "macosx_11_0_x86_64"),
    "macos-arm64": Target("aarch64", "darwin", "aarch64-macos.11.0", "macosx_11_0_arm64"),
    "windows-x86_64": Target("x86_64", "win32", "x86_64-windows-gnu", "win_amd64"),
}


def local_levels() -> dict[str, tuple[str, ...]]:
    """Return the flags of every level for the processor of this machine."""
    machine = platform.machine().lower()
    processor = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if sys.maxsize < 2**32:  # a 32-bit Python on a 64-bit processor
        processor = ""
    return LEVELS.get(processor, {"baseline": ()})
