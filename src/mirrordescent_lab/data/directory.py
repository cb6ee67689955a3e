"""Where the datasets of the experiments live."""

from __future__ import annotations

import os
from pathlib import Path

from mirrordescent._internal.cache import directory as cache_directory

VARIABLE = "MIRRORDESCENT_DATA"


def data_directory(chosen: str | Path | None = None) -> Path:
    """Return the folder that was chosen, else the one named by ``MIRRORDESCENT_DATA``, else a cache
    folder.

    It has one subfolder per dataset: ``mnist/``, ``fashion-mnist/``, ``omniglot/``, ``stl10/`` and
    ``bsds500/``. Nothing is created.

    >>> data_directory("somewhere").name
    'somewhere'
    """
    if chosen is None:
        chosen = os.environ.get(VARIABLE) or cache_directory() / "data"
    return Path(chosen).expanduser()
