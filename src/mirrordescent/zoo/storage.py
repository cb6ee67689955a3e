"""Entries on disk: a safetensors file with the learned numbers, the blueprint and the card; the card beside it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from mirrordescent.files import write_whole
from mirrordescent.zoo.blueprint import build, describe

Card = dict[str, Any]
KINDS = ("map", "method", "initialisation")


class EntryDamaged(ValueError):
    """A file that is not a whole entry of a zoo."""


def save_entry(module: nn.Module, path: Path, card: Card) -> None:
    """Write a learned module and its card; either both are new or the old ones are left."""
    if card.get("kind") not in KINDS:
        raise ValueError(f"a card needs a kind, one of {', '.join(KINDS)}; got {card.get('kind')!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"blueprint": json.dumps(describe(module)), "card": json.dumps(card)}
    write_whole(module.state_dict(), metadata, path)
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".json").write_text(json.dumps({**card, "sha256": checksum}, indent=2, ensure_ascii=False) + "\n")


def load_entry(path: Path) -> tuple[nn.Module, Card]:
    """Read a learned module and its card. Nothing in the file is executed."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        module = build(json.loads(metadata["blueprint"]))
        dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
        module.to(dtypes.pop() if len(dtypes) == 1 else None).load_state_dict(tensors)
        return module.requires_grad_(False), json.loads(metadata["card"])
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise EntryDamaged(f"{path} is not a learned method that can be read: {error}") from error


def intact(path: Path) -> bool:
    """Tell whether a file has the checksum its card states."""
    card = path.with_suffix(".json")
    if not (path.exists() and card.exists()):
        return False
    return bool(json.loads(card.read_text()).get("sha256") == hashlib.sha256(path.read_bytes()).hexdigest())
