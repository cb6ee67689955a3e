"""Names people give, and the nearest that are known."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def unknown(name: object, known: Collection[str], what: str) -> str:
    """Say that there is no such thing, with the nearest name that is known, or all of them.

    >>> unknown("mnits", ["mnist", "omniglot"], "dataset")
    "unknown dataset 'mnits'; did you mean 'mnist'? known: mnist, omniglot"
    """
    # Case is no reason not to find the nearest.
    folded = {each.casefold(): each for each in known}
    nearest = difflib.get_close_matches(str(name).casefold(), folded, n=1)
    hint = f"; did you mean {folded[nearest[0]]!r}?" if nearest else ";"
    return f"unknown {what} {str(name)!r}{hint} known: {', '.join(known) or 'none'}"


def require_known(name: str, known: Collection[str], what: str) -> None:
    """Raise unless the name is known, with the nearest that is.

    >>> require_known("mnits", ["mnist", "omniglot"], "dataset")
    Traceback (most recent call last):
    ValueError: unknown dataset 'mnits'; did you mean 'mnist'? known: mnist, omniglot
    """
    if name not in known:
        raise ValueError(unknown(name, known, what))
