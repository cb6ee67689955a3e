"""Entries on disk: a safetensors file with tensors, structure and card, and the card as JSON.

The file has a checksum of its content, which is verified on every read. Loading an entry neither
executes nor imports anything. If an entry has classes of the user, their module must have been
imported.
"""

import json
import threading
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
LARGEST = 1e15
"""Largest learned number. The square of a larger one may overflow in single precision."""
MEMORY_FACTOR = 8
"""Memory to build a module, relative to the size of its tensors."""
MEMORY_RESERVE = 1 << 24
"""Additional memory in bytes."""
CALLS = 2000
"""Largest number of torch operations per tensor to build a module."""


_writing = threading.Lock()
"""Held while an entry and its card are written, so that both files are of the same thread."""


class EntryDamaged(ValueError):
    """A file that is not a complete zoo entry."""


def save_entry(module: nn.Module, path: Path, card: Card) -> None:
    """Write a learned module and its card."""
    if not isinstance(module, Part):
        raise TypeError(
            f"{type(module).__name__} cannot be stored: "
            "it is not a map, method, oracle, schedule or problem"
        )
    structure = describe(module)
    card = card.completed(module.kind, modules_of(structure))
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, tensors, json.dumps(structure), card)


def _write(path: Path, tensors: dict[str, Tensor], structure: str, card: Card) -> None:
    compact = json.dumps(card.to_data(), ensure_ascii=False)
    readable = json.dumps(card.to_data(), indent=2, ensure_ascii=False)
    metadata = {"format": FORMAT, "structure": structure, "card": compact}
    with _writing:
        write_whole(tensors, metadata, path)
        with whole(path.with_suffix(".json")) as partial:
            partial.write_text(readable + "\n", encoding="utf-8")


def replace_card(path: Path, card: Card) -> None:
    """Replace the card of an entry. Structure and tensors stay as they are."""
    tensors, metadata = _read(path)
    _write(path, tensors, metadata["structure"], card)


def load_entry(path: Path) -> tuple[nn.Module, Card]:
    """Read a learned module and its card."""
    tensors, metadata = _read(path)
    try:
        module = _build(json.loads(metadata["structure"]), tensors)
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
        raise EntryDamaged(f"{path} cannot be read as a learned method: {error}") from error


def read_card(path: Path) -> Card:
    """Read only the card of an entry. Its classes need not be imported."""
    try:
        return Card.from_data(json.loads(_read(path)[1]["card"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise EntryDamaged(f"{path} has no card that can be read: {error}") from error


def intact(path: Path) -> bool:
    """Return whether an entry has a valid checksum and a JSON file with the same card."""
    try:
        card = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return bool(card == json.loads(_read(path)[1]["card"]))
    except (OSError, ValueError, KeyError, RecursionError):
        return False


def fingerprint_of(path: Path) -> str:
    """Return a checksum of the structure and the tensors of an entry."""
    tensors, metadata = _read(path)
    digest = sha256(metadata["structure"].encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of an entry."""
    try:
        tensors, metadata = read_whole(path, unsigned=True)
    except Damaged as error:
        raise EntryDamaged(f"{error}. Fetch or save it again") from error
    if "blueprint" in metadata:
        raise EntryDamaged(
            f"{path} was saved by version 0.1 of the library: in a clone of the repository, "
            f"run `python -m mirrordescent_experiments.upgrade {path}`"
        )
    if "sha256" not in metadata:
        raise EntryDamaged(f"{path} is not a learned method: it has no checksum")
    return tensors, metadata


def _build(structure: Config, tensors: dict[str, Tensor]) -> nn.Module:
    """Build a module with bounded memory and time, and load its tensors."""
    size = sum(tensor.nbytes for tensor in tensors.values())
    memory = MEMORY_FACTOR * size + MEMORY_RESERVE
    with Bounded("its structure", memory, CALLS * (len(tensors) + 10)):
        module: Any = build(structure, tensors)
    if not isinstance(module, nn.Module):
        raise ValueError(f"a {type(module).__name__} is not a module")
    floating = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    dtypes = {tensor.dtype for tensor in floating}
    module.to(dtypes.pop() if len(dtypes) == 1 else None)
    # Tensors that were built from plain numbers may have another type than the stored ones.
    for name, tensor in module.state_dict(keep_vars=True).items():
        tensor.data = tensor.data.to(tensors[name].dtype)
    module.load_state_dict(tensors)
    for name, parameter in module.named_parameters():
        if not bool((parameter.detach().abs() < LARGEST).all()):
            raise ValueError(f"{name} has a number that is not finite or larger than {LARGEST:g}")
    if any(bool(tensor.isnan().any()) for tensor in floating):
        raise ValueError("it has numbers that are NaN")
    return module
