"""Files that are either whole or not there, and tensors in files that notice when they were
damaged.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

_LONGEST = 200  # bytes of a name that are kept in that of its partial file


class Damaged(ValueError):
    """A file that cannot be read, or whose content differs from the checksum in it."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a path to write to, whose file then replaces ``path``: a reader finds the old one or the
    new, never half.

    This holds whenever the process, or the power, ends. What processes of this machine that were
    killed have left is removed by the next that writes to the same folder.
    """
    _remove_left(path.parent.resolve())
    name = path.name.encode(errors="surrogateescape")[:_LONGEST].decode(errors="ignore")
    partial = path.with_name(f".{name}.{platform.node()}.{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    """Write a safetensors file as a whole, with a checksum of everything; the same content gives
    the same bytes.
    """
    # Copies: tied or sliced tensors share memory, which the format does not store.
    apart = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    content = save(apart, metadata | {"sha256": checksum(apart, metadata)})
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(
        json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")
    ).encode()
    header += b" " * (-len(header) % 8)  # the format wants tensors aligned
    with whole(path) as partial, partial.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(content[8 + length :])


def read_whole(path: Path, unsigned: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a file, or raise ``Damaged`` if they are not what was
    written.

    A file that has no checksum is damaged too, unless ``unsigned`` says that such files are known.
    """
    try:
        content = (
            path.read_bytes()
        )  # in one go: by its name it might be another file a moment later
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata: dict[str, str] = header.get("__metadata__") or {}
    except FileNotFoundError:
        raise
    except (
        OSError,
        SafetensorError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RuntimeError,
    ) as error:
        raise Damaged(f"{path} cannot be read: {error}") from error
    if metadata.get("sha256") != checksum(tensors, metadata) and not (
        unsigned and "sha256" not in metadata
    ):
        raise Damaged(f"{path} is damaged: its content differs from its checksum")
    return tensors, metadata


def checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Hash names, types, shapes and contents of tensors, and all metadata but the checksum
    itself.
    """
    digest = hashlib.sha256()
    for key in sorted(metadata.keys() - {"sha256"}):
        digest.update(f"{key}={metadata[key]}\n".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(content_of(tensor))
    return digest.hexdigest()


def sealed(content: Any) -> str:
    """Return plain data as a line of JSON with a checksum.

    >>> unsealed(sealed({"a": [1, 0.5]}))
    {'a': [1, 0.5]}
    """
    return json.dumps({"sha256": _digest(content), "content": content})


def unsealed(text: str) -> Any:
    """Return the data of such a line, or raise ``Damaged`` if they are not what was written."""
    try:
        found = json.loads(text)
        content = found["content"]
        told = found["sha256"]
        same = told == _digest(content)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Damaged(f"it cannot be read: {error}") from error
    if not same:
        raise Damaged("its content differs from its checksum")
    return content


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def content_of(tensor: Tensor) -> bytes:
    """Return the entries of a tensor of any type as bytes, in their order."""
    # A view of a single entry counts as contiguous whatever its stride is, so it has to be copied
    # by format.
    flat = tensor.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes()


@cache
def _remove_left(folder: Path) -> None:
    """Remove partial files that processes of this machine which have ended left in a folder; one
    look is enough.
    """
    ending = re.compile(rf"\..+\.{re.escape(platform.node())}\.(\d+)\.partial", re.DOTALL)
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if (found := ending.fullmatch(entry.name)) and not _alive(int(found[1])):
                Path(entry.path).unlink(missing_ok=True)


def _alive(process: int) -> bool:
    if os.name == "nt":  # where asking would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it is another user's, or nothing is known of it
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename last; systems that cannot do this for folders do without."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
