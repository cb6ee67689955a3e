"""The zoo: learned methods that ship with the package, and a place to save yours."""

from __future__ import annotations

import builtins
from pathlib import Path

from torch import nn

from mirrordescent.names import unknown
from mirrordescent.zoo import hub
from mirrordescent.zoo.storage import Card, EntryDamaged, intact, load_entry, save_entry

FOLDER = Path(__file__).parent / "entries"

__all__ = ["Card", "EntryDamaged", "card", "list", "load", "pull", "push", "save", "verify"]


def list() -> builtins.list[str]:
    """Return the names of the shipped entries."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def load(name: str | Path) -> nn.Module:
    """Return a learned method by its name, from a file, or from the hub; its kind is what its card says.

    On the hub it is ``hf://owner/repository/name``, with the extra ``mirrordescent[hub]``.

    >>> from mirrordescent import zoo
    >>> zoo.load("photo-inpant")
    Traceback (most recent call last):
    ...
    KeyError: "unknown entry of the zoo 'photo-inpant'; did you mean 'photo-inpaint'? known: ..."
    """
    return load_entry(_path(name))[0]


def card(name: str | Path) -> Card:
    """Return the card of an entry: what it is for, how it was learned, what it achieved.

    The cards of shipped entries that have a mirror map name the page with its diagnosis, in the repository.
    """
    module, found = load_entry(_path(name))
    shipped = _path(name).parent == FOLDER
    if shipped and getattr(module, "mirror", None) is not None:
        found["diagnosis"] = f"docs/results/diagnosis/{_path(name).stem}/diagnosis.md"
    return found


def save(module: nn.Module, path: str | Path, card: Card) -> None:
    """Save a learned method and its card to PATH.safetensors and PATH.json."""
    save_entry(module, Path(path).with_suffix(".safetensors"), card)


def pull(address: str) -> Path:
    """Fetch an entry from the hub, ``hf://owner/repository/name``, and return its file."""
    return hub.pull(address)


def push(name: str | Path, repository: str) -> str:
    """Send an entry, by its name or its file, to a repository ``owner/name`` of the hub; return its address there."""
    return hub.push(_path(name), repository)


def verify() -> dict[str, bool]:
    """Check every shipped file against the checksum on its card."""
    return {name: intact(FOLDER / f"{name}.safetensors") for name in list()}


def _path(name: str | Path) -> Path:
    if hub.is_address(name):
        return hub.pull(str(name))
    if Path(name).suffix == ".safetensors":
        return Path(name)
    if str(name) not in list():
        raise KeyError(unknown(name, list(), "entry of the zoo"))
    return FOLDER / f"{name}.safetensors"
