"""The C sources of the kernels, and the place of the library that is compiled from them.

Only the standard library is imported: the build loads this file before anything is installed.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PRECISIONS = ("float", "double")
_DECLARATION = re.compile(
    r"^EXPORT (void|int) NAME\((\w+)\)\((.*?)\) *\{", re.MULTILINE | re.DOTALL
)


def library_name(platform: str = sys.platform) -> str:
    """Return the file name of the compiled library on a platform.

    >>> library_name("linux"), library_name("darwin"), library_name("win32")
    ('kernels.so', 'kernels.dylib', 'kernels.dll')
    """
    return {"darwin": "kernels.dylib", "win32": "kernels.dll"}.get(platform, "kernels.so")


def library_path() -> Path:
    """Return the path of the compiled library, inside the package."""
    return FOLDER / "_lib" / library_name()


def failure_path() -> Path:
    """Return the path of the message of a compiler that failed when the package was installed."""
    return FOLDER / "_lib" / "failure.txt"


def sources(suffix: str) -> list[Path]:
    """Return the files of this folder with a suffix, ``"c"`` or ``"h"``."""
    return sorted(FOLDER.glob(f"*.{suffix}"))


def source_hash() -> str:
    """Return a hash of all C sources. The compiled library contains that of its own sources."""
    digest = hashlib.sha256()
    for path in (*sources("c"), *sources("h")):
        digest.update(path.name.encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def declarations() -> list[tuple[str, str, str]]:
    """Return the result type, the name and the arguments of every kernel, as written in C."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources("h"))
    return _DECLARATION.findall(text)


def symbols(levels: tuple[str, ...]) -> set[str]:
    """Return the names that a library with these levels exports."""
    names = {"kernel_sources", "kernel_level_supported"}
    for _, name, _ in declarations():
        for precision in PRECISIONS:
            names |= {f"{name}_{precision}_{level}" for level in levels}
    return names
