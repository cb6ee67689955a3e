"""The zoo: load the learned methods of the package, and save your own."""

import builtins
import warnings
from pathlib import Path

from torch import nn

# Entries refer to classes by name. These imports define all classes that occur in entries.
import mirrordescent.methods
import mirrordescent.problems  # noqa: F401
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
"""Folder with the entries of the package."""
RENAMED = {
    "photo-inpaint": "photo-inpaint-pair",
    "photo-inpaint-spectral": "photo-inpaint-stencil",
    "ellipse-denoise": "ellipse-denoise-pair",
    "ellipse-denoise-spectral": "ellipse-denoise-stencil",
    "mnist49-svm": "mnist49-svm-pair",
}
"""New names of entries by the names of version 0.1, which are accepted until 0.3."""

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
    """Return the names of the entries that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def load(name: str | Path) -> nn.Module:
    """Return a learned method. Its card says what kind of module it is.

    If an entry has classes of your own, import their module first; the card names it.

    Args:
        name: Name of an entry, a ``.safetensors`` file, or ``hf://owner/repository/name`` on the
            Hugging Face Hub (needs the extra ``mirrordescent[hub]``).

    >>> from mirrordescent import zoo
    >>> zoo.load("photo-inpant-pair")
    Traceback (most recent call last):
    ...
    KeyError: "unknown entry of the zoo 'photo-inpant-pair'; did you mean 'photo-inpaint-pair'? ..."
    """
    return load_entry(path_of(name))[0]


def card(name: str | Path) -> Card:
    """Return the card of an entry: its purpose, its training, and its measured results."""
    return read_card(path_of(name))


def save(module: nn.Module, path: str | Path, card: Card | None = None) -> Path:
    """Save a map, a method or another part, and return the ``.safetensors`` file.

    Args:
        module: Part to save.
        path: File to write, with or without the suffix ``.safetensors``. The card is also written
            to a ``.json`` file with the same name.
        card: Card of the entry. By default it has only a name and a description.
    """
    # Not with_suffix, because the name may have a dot.
    path = Path(f"{str(path).removesuffix('.safetensors')}.safetensors")
    save_entry(module, path, card or Card(path.stem, f"a {type(module).__name__}"))
    return path


def pull(address: str) -> Path:
    """Download an entry ``hf://owner/repository/name`` from the hub and return its file."""
    return hub.pull(address)


def push(name: str | Path, repository: str) -> str:
    """Upload an entry to a repository of the hub and return its address.

    Args:
        name: Name or file of the entry.
        repository: Repository ``owner/name``.
    """
    return hub.push(path_of(name), repository)


def fingerprint(name: str | Path) -> str:
    """Return a checksum of the structure and the tensors of an entry, without its card."""
    return fingerprint_of(path_of(name))


def verify() -> dict[str, bool]:
    """Check every entry of the package against its checksum and its card.

    Returns:
        Whether the entry is intact, by name.
    """
    return {name: intact(FOLDER / f"{name}.safetensors") for name in list()}


def path_of(name: str | Path) -> Path:
    """Return the file of an entry. Entries of the hub are downloaded."""
    if hub.is_address(name):
        return hub.pull(str(name))
    if Path(name).suffix == ".safetensors":
        return Path(name)
    new_name = RENAMED.get(str(name))
    if new_name is not None:
        warnings.warn(f"the entry {name} is called {new_name} now", FutureWarning, stacklevel=3)
        name = new_name
    if str(name) not in list():
        raise KeyError(unknown(name, list(), "entry of the zoo"))
    return FOLDER / f"{name}.safetensors"
