"""The zoo: load the learned methods of the package, and save your own.

An entry that is learned anew gets a new version. ``NAME@2`` is version 2 of the entry NAME, and
NAME is its newest version. Optimisers store the version in their states.
"""

import builtins
from dataclasses import replace
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
from mirrordescent.zoo.versions import (
    SUFFIX,
    find_version,
    names_in,
    split_version,
    version_of,
    versions_in,
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
"""New names of entries by the names of version 0.1, for messages."""

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
    "version",
    "versioned",
    "versions",
]


def list() -> builtins.list[str]:
    """Return the names of the entries that come with the package, without versions."""
    return names_in(FOLDER)


def load(name: str | Path) -> nn.Module:
    """Return a learned method. Its card says what kind of module it is.

    If an entry has classes of your own, import their module first; the card names it.

    Args:
        name: Name of an entry, such as ``network-spectral`` for its newest version or
            ``network-spectral@2`` for version 2; ``folder/name`` or ``folder/name@2`` for an entry
            of your own; a ``.safetensors`` file; or ``hf://owner/repository/name`` on the Hugging
            Face Hub (needs the extra ``mirrordescent[hub]``).

    >>> from mirrordescent import zoo
    >>> type(zoo.load("network-spectral@2")).__name__
    'Preconditioned'
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
        path: File to write, with or without the suffix ``.safetensors``. ``folder/name@3`` saves
            version 3 of an entry; without a version, the version is that of the card. The card is
            also written to a ``.json`` file with the same name.
        card: Card of the entry. By default it has only a name and a description.
    """
    # Not with_suffix, because the name may have a dot.
    path = Path(f"{str(path).removesuffix(SUFFIX)}{SUFFIX}")
    name, number = split_version(path.stem)
    card = card or Card(name, f"a {type(module).__name__}")
    if number is not None:
        card = replace(card, version=number)
    save_entry(module, path, card)
    return path


def versions(name: str | Path) -> builtins.list[int]:
    """Return the versions of an entry that can be loaded, the oldest first.

    Args:
        name: Name of an entry of the package, ``folder/name``, or a ``.safetensors`` file, of which
            other versions may be in the same folder. A version in the name is ignored.

    >>> from mirrordescent import zoo
    >>> zoo.versions("network-spectral")
    [1, 2, 3, 4]
    """
    return [*versions_in(*_located(name)[:2])]


def version(name: str | Path) -> int:
    """Return the version of the entry that ``load(name)`` loads."""
    return version_of(path_of(name))


def versioned(name: str | Path) -> str:
    """Return the name of an entry with its version, for results and states.

    An entry in a file is named after the file, without its folder.

    >>> from mirrordescent import zoo
    >>> zoo.versioned("network-spectral")
    'network-spectral@4'
    """
    path = path_of(name)
    base = str(name).removesuffix(SUFFIX) if hub.is_address(name) else path.stem
    return f"{split_version(base)[0]}@{version_of(path)}"


def at_version(name: str | Path, number: int) -> str | Path:
    """Return the name or file of some version of the entry that ``load(name)`` loads.

    Raises:
        KeyError: There is no such version.
    """
    base = split_version(str(name).removesuffix(SUFFIX))[0]
    if hub.is_address(name):
        return f"{base}@{number}"
    return find_version(*_located(name)[:2], number)


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
        Whether all versions of the entry are intact, by name.
    """
    found = dict.fromkeys(list(), True)
    for path in FOLDER.glob(f"*{SUFFIX}"):
        name = split_version(path.stem)[0]
        found[name] = found[name] and intact(path)
    return found


def path_of(name: str | Path) -> Path:
    """Return the file of an entry. Entries of the hub are downloaded."""
    if hub.is_address(name):
        return hub.pull(str(name))
    if Path(name).suffix == SUFFIX:
        return Path(name)
    return find_version(*_located(name))


def _located(name: str | Path) -> tuple[Path, str, int | None]:
    """Return the folder of an entry, its name, and its version if the name has one."""
    base, number = split_version(str(name).removesuffix(SUFFIX))
    path = Path(base)
    if path.name != base or Path(name).suffix == SUFFIX:
        return path.parent, path.name, number
    new_name = RENAMED.get(base)
    if new_name is not None:
        raise KeyError(f"the entry {base} was renamed in version 0.2: load {new_name!r}")
    if base not in list():
        raise KeyError(unknown(base, list(), "entry of the zoo"))
    return FOLDER, base, number
