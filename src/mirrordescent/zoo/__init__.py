"""The zoo: learned methods that ship with the package, and a place to save yours."""

import builtins
import warnings
from pathlib import Path

from torch import nn

import mirrordescent.methods
import mirrordescent.problems  # noqa: F401 - with the methods and what they import, all classes that entries are made of
from mirrordescent._internal.suggestions import unknown
from mirrordescent.zoo import hub
from mirrordescent.zoo.card import Card
from mirrordescent.zoo.storage import (
    EntryDamaged,
    fingerprint_of,
    intact,
    load_entry,
    read_card,
    save_entry,
)

FOLDER = Path(__file__).parent / "entries"
RENAMED = {  # entries of version 0.1, which go by these names until 0.3
    "photo-inpaint": "photo-inpaint-pair",
    "photo-inpaint-spectral": "photo-inpaint-stencil",
    "ellipse-denoise": "ellipse-denoise-pair",
    "ellipse-denoise-spectral": "ellipse-denoise-stencil",
    "mnist49-svm": "mnist49-svm-pair",
}

__all__ = [
    "Card",
    "EntryDamaged",
    "card",
    "fingerprint",
    "list",
    "load",
    "pull",
    "push",
    "save",
    "verify",
]


def list() -> builtins.list[str]:
    """Return the names of the shipped entries."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def load(name: str | Path) -> nn.Module:
    """Return a learned method by its name, from a file, or from the hub; its card says what kind it
    is.

    On the hub it is ``hf://owner/repository/name``, with the extra ``mirrordescent[hub]``. An entry
    made of your own classes can be loaded once their module has been imported; its card names the
    module.

    >>> from mirrordescent import zoo
    >>> zoo.load("photo-inpant-pair")
    Traceback (most recent call last):
    ...
    KeyError: "unknown entry of the zoo 'photo-inpant-pair'; did you mean 'photo-inpaint-pair'? known: ..."
    """
    return load_entry(path_of(name))[0]


def card(name: str | Path) -> Card:
    """Return the card of an entry: what it is for, how it was learned, what it achieves."""
    return read_card(path_of(name))


def save(module: nn.Module, path: str | Path, card: Card | None = None) -> Path:
    """Save a map, a method or another part with its card to PATH.safetensors and PATH.json; return
    the former.
    """
    path = Path(
        f"{str(path).removesuffix('.safetensors')}.safetensors"
    )  # a dot in a name is not a suffix
    save_entry(module, path, card or Card(path.stem, f"a {type(module).__name__}"))
    return path


def pull(address: str) -> Path:
    """Fetch an entry from the hub, ``hf://owner/repository/name``, and return its file."""
    return hub.pull(address)


def push(name: str | Path, repository: str) -> str:
    """Send an entry, by its name or its file, to a repository ``owner/name`` of the hub; return its
    address there.
    """
    return hub.push(path_of(name), repository)


def fingerprint(name: str | Path) -> str:
    """Return a checksum of what an entry computes, its structure and its tensors, whatever its card
    says.
    """
    return fingerprint_of(path_of(name))


def verify() -> dict[str, bool]:
    """Check every shipped file against its checksum, and the card beside it."""
    return {name: intact(FOLDER / f"{name}.safetensors") for name in list()}


def path_of(name: str | Path) -> Path:
    """Return the file of an entry."""
    if hub.is_address(name):
        return hub.pull(str(name))
    if Path(name).suffix == ".safetensors":
        return Path(name)
    if str(name) in RENAMED:
        warnings.warn(
            f"the entry {name} is called {RENAMED[str(name)]} now", FutureWarning, stacklevel=3
        )
        name = RENAMED[str(name)]
    if str(name) not in list():
        raise KeyError(unknown(name, list(), "entry of the zoo"))
    return FOLDER / f"{name}.safetensors"
