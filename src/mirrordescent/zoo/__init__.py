"""The zoo: learned methods that ship with the package, and a place to save yours."""

from __future__ import annotations

import builtins
import difflib
from pathlib import Path

from torch import nn

from mirrordescent.zoo.storage import Card, EntryDamaged, intact, load_entry, save_entry

FOLDER = Path(__file__).parent / "entries"

__all__ = ["Card", "EntryDamaged", "card", "list", "load", "save", "verify"]


def list() -> builtins.list[str]:
    """Return the names of the shipped entries."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def load(name: str | Path) -> nn.Module:
    """Return a learned method by its name, or from a file; its kind is what its card says.

    >>> from mirrordescent import zoo
    >>> zoo.load("photo-inpant")
    Traceback (most recent call last):
    ...
    KeyError: "there is no 'photo-inpant' in the zoo; did you mean 'photo-inpaint'?"
    """
    return load_entry(_path(name))[0]


def card(name: str | Path) -> Card:
    """Return the card of an entry: what it is for, how it was learned, what it achieved."""
    return load_entry(_path(name))[1]


def save(module: nn.Module, path: str | Path, card: Card) -> None:
    """Save a learned method and its card to PATH.safetensors and PATH.json."""
    save_entry(module, Path(path).with_suffix(".safetensors"), card)


def verify() -> dict[str, bool]:
    """Check every shipped file against the checksum on its card."""
    return {name: intact(FOLDER / f"{name}.safetensors") for name in list()}


def _path(name: str | Path) -> Path:
    if Path(name).suffix == ".safetensors":
        return Path(name)
    if str(name) not in list():
        close = difflib.get_close_matches(str(name), list(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(list()) or 'none'}"
        raise KeyError(f"there is no {str(name)!r} in the zoo; {hint}")
    return FOLDER / f"{name}.safetensors"
