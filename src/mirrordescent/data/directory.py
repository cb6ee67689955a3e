"""Where data live: a folder with one subfolder per dataset."""

from __future__ import annotations

import os
from pathlib import Path

from mirrordescent.cache import directory as cache_directory

VARIABLE = "MIRRORDESCENT_DATA"


def data_directory(chosen: str | Path | None = None) -> Path:
    """Return the folder that was chosen, else the one ``MIRRORDESCENT_DATA`` names, else a cache folder.

    Inside lie ``mnist/``, ``fashion-mnist/``, ``omniglot/``, ``stl10/`` and ``bsds500/``. Nothing is created.

    >>> data_directory("somewhere").name
    'somewhere'
    """
    if chosen is not None:
        return Path(chosen).expanduser()
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    return cache_directory() / "data"
