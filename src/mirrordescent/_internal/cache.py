"""A cache on disk, keyed by content; a damaged entry counts as absent."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from mirrordescent._internal.files import Damaged, read_whole, write_whole
from mirrordescent._internal.user_cache import user_cache_directory

VERSION = "2"  # raised when the meaning of stored entries changes


def directory() -> Path:
    """Return the cache folder: ``MIRRORDESCENT_CACHE``, or else where the system keeps a user's
    caches.
    """
    if chosen := os.environ.get("MIRRORDESCENT_CACHE"):
        return Path(chosen)
    return user_cache_directory()


def remember(
    key: str | None,
    compute: Callable[[], dict[str, Tensor]],
    suits: Callable[[dict[str, Tensor]], bool] = lambda entry: True,
) -> dict[str, Tensor]:
    """Return the entry under a key if it suits, or compute and store it; a key of None is never
    stored.
    """
    entry = load(key) if key else None
    if entry is None or not suits(entry):
        entry = compute()
        if key:
            store(key, entry)
    return entry


def key_of(purpose: str, **settings: bool | int | float | str | None) -> str:
    """Hash settings that determine a result."""
    described = " ".join(f"{name}={value!r}" for name, value in sorted(settings.items()))
    return hashlib.sha256(f"{VERSION} {purpose} {described}".encode()).hexdigest()


def load(key: str) -> dict[str, Tensor] | None:
    """Return a stored entry, or None if there is none that can be read."""
    try:
        return read_whole(directory() / f"{key}.safetensors")[0]
    except (OSError, Damaged):
        return None


def store(key: str, tensors: dict[str, Tensor]) -> None:
    """Write an entry whole or not at all; a cache that cannot be written to is no reason to
    fail.
    """
    with contextlib.suppress(OSError):
        directory().mkdir(parents=True, exist_ok=True)
        write_whole(tensors, {}, directory() / f"{key}.safetensors")
