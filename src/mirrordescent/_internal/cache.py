"""A cache of tensors on disk.

A damaged entry is treated as missing. If there is no cache folder, or none that can be written, or
if every user can write to it, everything is computed again.
"""

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from mirrordescent._internal.files import Damaged, read_whole, write_whole
from mirrordescent._internal.user_cache import user_cache_directory, writable_by_others

VERSION = "4"
"""Version of the entries, which is increased when their meaning changes."""


def directory() -> Path:
    """Return the cache folder: ``MIRRORDESCENT_CACHE``, or the user's cache folder.

    Raises:
        NoHome: If neither exists.
    """
    configured = os.environ.get("MIRRORDESCENT_CACHE")
    return Path(configured) if configured else user_cache_directory()


def remember(
    key: str | None,
    compute: Callable[[], dict[str, Tensor]],
    suits: Callable[[dict[str, Tensor]], bool] = lambda entry: True,
    keep: Callable[[], bool] = lambda: True,
) -> dict[str, Tensor]:
    """Return the entry of a key, or compute and store it.

    Args:
        key: Key of the entry. With None, nothing is stored.
        compute: Function that computes the entry.
        suits: Function that decides whether a stored entry can be used.
        keep: Function that decides whether a computed entry is stored.
    """
    entry = load(key) if key else None
    if entry is None or not suits(entry):
        entry = compute()
        if key and keep():
            store(key, entry)
    return entry


def key_of(purpose: str, **settings: bool | int | float | str | None) -> str:
    """Return the key of a result, a hash of all settings that determine it."""
    description = " ".join(f"{name}={value!r}" for name, value in sorted(settings.items()))
    return hashlib.sha256(f"{VERSION} {purpose} {description}".encode()).hexdigest()


def load(key: str) -> dict[str, Tensor] | None:
    """Return a stored entry, or None if it is missing or damaged."""
    try:
        folder = directory()
        if not _is_trusted(folder):
            return None
        return read_whole(folder / f"{key}.safetensors")[0]
    except (OSError, Damaged):
        return None


def store(key: str, tensors: dict[str, Tensor]) -> None:
    """Write an entry. If there is no writable cache folder, nothing happens."""
    with contextlib.suppress(OSError):
        folder = directory()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if _is_trusted(folder):
            write_whole(tensors, {}, folder / f"{key}.safetensors")


def _is_trusted(folder: Path) -> bool:
    """Return whether only trusted users can change the entries, and warn otherwise.

    An entry may contain a certificate, which must not come from a stranger.
    """
    open_part = writable_by_others(folder)
    if open_part is not None:
        warnings.warn(
            f"the cache folder {folder} is not used, because every user can write to {open_part}: "
            f"run `chmod o-w {open_part}`, or set MIRRORDESCENT_CACHE to a folder of your own",
            stacklevel=4,
        )
    return open_part is None
