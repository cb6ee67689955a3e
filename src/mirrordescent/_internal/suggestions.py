"""Suggestions for misspelt names."""

import difflib
from collections.abc import Collection


def unknown(name: object, known: Collection[str], what: str) -> str:
    """Return an error message for an unknown name, with the nearest known name.

    Args:
        name: Name that is not known.
        known: Known names.
        what: Kind of name, such as "dataset".

    >>> unknown("mnits", ["mnist", "omniglot"], "dataset")
    "unknown dataset 'mnits'; did you mean 'mnist'? known: mnist, omniglot"
    """
    folded = {each.casefold(): each for each in known}  # ignores upper and lower case
    nearest = difflib.get_close_matches(str(name).casefold(), folded, n=1)
    hint = f"; did you mean {folded[nearest[0]]!r}?" if nearest else ";"
    return f"unknown {what} {str(name)!r}{hint} known: {', '.join(known) or 'none'}"


def require_known(name: str, known: Collection[str], what: str) -> None:
    """Raise unless a name is known; the message suggests the nearest known name."""
    if name not in known:
        raise ValueError(unknown(name, known, what))
