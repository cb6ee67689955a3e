"""The folder of the data sets."""

from __future__ import annotations

import os
from pathlib import Path

from mirrordescent._internal.cache import directory as cache_directory

VARIABLE = "MIRRORDESCENT_DATA"


def data_directory(chosen: str | Path | None = None) -> Path:
    """Return the folder of the data sets, which has a subfolder for every data set.

    Tried in this order: the folder given, the environment variable ``MIRRORDESCENT_DATA``, and a
    cache folder. Nothing is created.

    Args:
        chosen: Folder to use.

    >>> data_directory("somewhere").name
    'somewhere'
    """
    if chosen is None:
        chosen = os.environ.get(VARIABLE) or cache_directory() / "data"
    return Path(chosen).expanduser()
