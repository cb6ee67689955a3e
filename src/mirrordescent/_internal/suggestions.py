"""Names that people type, and the nearest known ones."""

import difflib
from collections.abc import Collection


def unknown(name: object, known: Collection[str], what: str) -> str:
    """Say that a name is not known, which known name is nearest, and which names there are.

    >>> unknown("mnits", ["mnist", "omniglot"], "dataset")
    "unknown dataset 'mnits'; did you mean 'mnist'? known: mnist, omniglot"
    """
    folded = {each.casefold(): each for each in known}  # a name in the wrong case is still near
    nearest = difflib.get_close_matches(str(name).casefold(), folded, n=1)
    hint = f"; did you mean {folded[nearest[0]]!r}?" if nearest else ";"
    return f"unknown {what} {str(name)!r}{hint} known: {', '.join(known) or 'none'}"


def require_known(name: str, known: Collection[str], what: str) -> None:
    """Raise with that message unless the name is known."""
    if name not in known:
        raise ValueError(unknown(name, known, what))
