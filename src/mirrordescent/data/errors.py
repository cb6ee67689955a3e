"""What can be wrong with data on disk, and with the names people give them."""

from __future__ import annotations

import difflib
from collections.abc import Collection


class DataMissing(FileNotFoundError):
    """A file is not there and could not be fetched."""


class DataDamaged(ValueError):
    """A file is there but is not what it should be."""


def require_known(name: str, known: Collection[str], what: str) -> None:
    """Raise unless the name is known, with the nearest that is.

    >>> require_known("mnits", ["mnist", "omniglot"], "dataset")
    Traceback (most recent call last):
    ValueError: unknown dataset 'mnits'; did you mean 'mnist'? known: mnist, omniglot
    """
    if name in known:
        return
    nearest = difflib.get_close_matches(str(name), list(known), n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ";"
    raise ValueError(f"unknown {what} {name!r}{hint} known: {', '.join(known)}")
