"""The folder in which the system keeps the caches of a user."""

import os
import sys
from pathlib import Path

NAME = "mirrordescent"


def user_cache_directory(platform: str = sys.platform) -> Path:
    """Return the cache folder of this library. The folder is not created.

    - Linux: ``$XDG_CACHE_HOME/mirrordescent``, by default ``~/.cache/mirrordescent``
    - macOS: ``~/Library/Caches/mirrordescent``
    - Windows: ``%LOCALAPPDATA%\\mirrordescent\\mirrordescent\\Cache``
    """
    home = Path("~").expanduser()
    if platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
        return Path(local) / NAME / NAME / "Cache"
    if platform == "darwin":
        return home / "Library" / "Caches" / NAME
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / NAME
