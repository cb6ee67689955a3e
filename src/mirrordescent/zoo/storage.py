"""Entries on disk: one safetensors file with the learned numbers, what they belong to and the card;
the card beside it.

A checksum of all three is in the file and is checked whenever it is read. Nothing in a file is
executed, and nothing is imported because of it: an entry made of a user's own classes is loaded
after they are imported.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mirrordescent._internal.files import Damaged, read_whole, whole, write_whole
from mirrordescent._internal.memory_limits import Bounded
from mirrordescent.parts import Config, Part, PartMissing, build, describe, modules_of
from mirrordescent.zoo.card import Card

FORMAT = "2"
LARGEST = (
    1e15  # of a learned number: the square of a larger one is hardly a number in single precision
)
# memory to build in: so often what is stored, and this; and calls per tensor
SPACE = 8
ROOM = 1 << 24
CALLS = 2000


class EntryDamaged(ValueError):
    """A file that is not a whole entry of a zoo."""


def save_entry(module: nn.Module, path: Path, card: Card) -> None:
    """Write a learned module and its card; either both are replaced or neither."""
    if not isinstance(module, Part):
        raise TypeError(
            f"{type(module).__name__} cannot be stored: it is no map, method, oracle, schedule or problem"
        )
    structure = describe(module)
    card = card.completed(module.kind, modules_of(structure))
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, tensors, json.dumps(structure), card)


def _write(path: Path, tensors: dict[str, Tensor], structure: str, card: Card) -> None:
    stated = json.dumps(card.to_data(), ensure_ascii=False)
    write_whole(tensors, {"format": FORMAT, "structure": structure, "card": stated}, path)
    with whole(path.with_suffix(".json")) as partial:
        partial.write_text(
            json.dumps(card.to_data(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def replace_card(path: Path, card: Card) -> None:
    """Write another card to an entry, whose structure and tensors stay as they are stored."""
    tensors, metadata = _read(path)
    _write(path, tensors, metadata["structure"], card)


def load_entry(path: Path) -> tuple[nn.Module, Card]:
    """Read a learned module and its card."""
    tensors, metadata = _read(path)
    try:
        module = _built(json.loads(metadata["structure"]), tensors)
        return module.requires_grad_(False), Card.from_data(json.loads(metadata["card"]))
    except PartMissing as error:
        raise PartMissing(f"{path} cannot be loaded yet: {error}") from None
    except (
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
        AttributeError,
        ArithmeticError,
    ) as error:
        raise EntryDamaged(f"{path} is not a learned method that can be read: {error}") from error


def read_card(path: Path) -> Card:
    """Read only the card of an entry, whose parts need not be known."""
    try:
        return Card.from_data(json.loads(_read(path)[1]["card"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise EntryDamaged(f"{path} has no card that can be read: {error}") from error


def intact(path: Path) -> bool:
    """Tell whether an entry is there and whole, with a card beside it that says the same."""
    try:
        card = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return bool(card == json.loads(_read(path)[1]["card"]))
    except (OSError, ValueError, KeyError, RecursionError):
        return False


def fingerprint_of(path: Path) -> str:
    """Return a checksum of structure and tensors, by name; the card is left out."""
    tensors, metadata = _read(path)
    digest = sha256(metadata["structure"].encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        tensors, metadata = read_whole(path, unsigned=True)
    except Damaged as error:
        raise EntryDamaged(f"{error}. Fetch or save it again") from error
    if "blueprint" in metadata:
        raise EntryDamaged(
            f"{path} was saved by version 0.1 of the library: in a clone of the repository, "
            f"`python -m mirrordescent_experiments.upgrade {path}` makes it readable"
        )
    if "sha256" not in metadata:
        raise EntryDamaged(f"{path} is not a learned method: it has no checksum")
    return tensors, metadata


def _built(structure: Config, tensors: dict[str, Tensor]) -> nn.Module:
    held = sum(tensor.nbytes for tensor in tensors.values())
    with Bounded("what it describes", SPACE * held + ROOM, CALLS * (len(tensors) + 10)):
        module: Any = build(structure, tensors)
    if not isinstance(module, nn.Module):
        raise ValueError(f"a {type(module).__name__} is not a module")
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    module.to(dtypes.pop() if len(dtypes) == 1 else None)
    for name, tensor in module.state_dict(
        keep_vars=True
    ).items():  # some were made from plain numbers
        tensor.data = tensor.data.to(tensors[name].dtype)
    module.load_state_dict(tensors)
    for name, parameter in module.named_parameters():
        if not bool((parameter.detach().abs() < LARGEST).all()):
            raise ValueError(f"{name} has a number that is not finite or larger than {LARGEST:g}")
    if any(bool(tensor.isnan().any()) for tensor in tensors.values() if tensor.is_floating_point()):
        raise ValueError("it has numbers that are NaN")
    return module
