"""The folder in which the system keeps the caches of a user."""

import os
import stat
import sys
from pathlib import Path

NAME = "mirrordescent"


class NoHome(OSError):
    """The user has no home folder."""


def user_cache_directory(platform: str = sys.platform) -> Path:
    """Return the cache folder of this library. The folder is not created.

    - Linux: ``$XDG_CACHE_HOME/mirrordescent``, by default ``~/.cache/mirrordescent``
    - macOS: ``~/Library/Caches/mirrordescent``
    - Windows: ``%LOCALAPPDATA%\\mirrordescent\\mirrordescent\\Cache``

    Raises:
        NoHome: If the folder depends on the home folder and the user has none.
    """
    if platform == "win32":
        local = _absolute("LOCALAPPDATA") or _home() / "AppData" / "Local"
        return local / NAME / NAME / "Cache"
    if platform == "darwin":
        return _home() / "Library" / "Caches" / NAME
    return (_absolute("XDG_CACHE_HOME") or _home() / ".cache") / NAME


def _absolute(variable: str) -> Path | None:
    """Return the folder in an environment variable, or None if it is unset or not absolute."""
    folder = Path(os.environ.get(variable, ""))
    return folder if folder.is_absolute() else None


def _home() -> Path:
    """Return the home folder. A service or a container may have none."""
    try:
        home = Path.home()
    except (RuntimeError, KeyError):
        home = Path()
    if not home.is_absolute():
        raise NoHome(
            "the user has no home folder: set HOME, or set MIRRORDESCENT_CACHE and "
            "MIRRORDESCENT_DATA to folders of your own"
        )
    return home


def writable_by_others(folder: Path) -> Path | None:
    """Return the part of a path through which any user can change the folder, or None.

    This is the folder itself or a parent that everybody can write to. A parent with the sticky bit,
    such as ``/tmp``, is safe if the next part of the path belongs to the user or to root. Folders
    that do not exist yet, and systems without such permissions, count as safe.
    """
    if not hasattr(os, "getuid"):
        return None
    child: os.stat_result | None = None
    resolved = folder.resolve()
    for part in (resolved, *resolved.parents):
        try:
            status = part.stat()
        except OSError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            continue
        is_sticky_parent = status.st_mode & stat.S_ISVTX and part != resolved
        is_ours = child is None or child.st_uid in (os.getuid(), 0)
        if status.st_mode & stat.S_IWOTH and not (is_sticky_parent and is_ours):
            return part
        child = status
    return None
