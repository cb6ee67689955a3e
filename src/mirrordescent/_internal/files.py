"""Atomic writing of files, and files of tensors with checksums."""

import contextlib
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

_LONGEST_NAME = 200
"""Number of bytes of a file's name that are kept in the name of its partial file."""


_numbers = count()
"""Numbers of the partial files of this process, so that threads do not share one."""


class Damaged(ValueError):
    """A file that cannot be read, or whose content differs from its checksum."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path, and then rename that file to ``path``.

    A reader finds either the old file or the complete new file, even if the process is killed or
    the power fails. Threads and processes may write the same file at the same time; the last rename
    wins. Temporary files of killed processes of this machine are removed by the next process that
    writes to the same folder.
    """
    _remove_abandoned(path.parent.resolve())
    name = path.name.encode(errors="surrogateescape")[:_LONGEST_NAME].decode(errors="ignore")
    unique = f"{platform.node()}.{os.getpid()}-{next(_numbers)}"
    partial = path.with_name(f".{name}.{unique}.partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    """Write a safetensors file atomically, with a checksum of tensors and metadata.

    The same content gives the same bytes.
    """
    # The format cannot store tensors that share memory, such as tied or sliced ones.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    content = save(copies, metadata | {"sha256": checksum(copies, metadata)})
    length = int.from_bytes(content[:8], "little")
    fields = json.loads(content[8 : 8 + length])
    header = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the format aligns tensors to 8 bytes
    with whole(path) as partial, partial.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(content[8 + length :])


def read_whole(path: Path, unsigned: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file.

    Args:
        path: File.
        unsigned: Whether a file without a checksum is accepted.

    Raises:
        Damaged: The file cannot be read, or its content differs from its checksum.
    """
    try:
        content = path.read_bytes()  # once: another process may replace the file
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
    if unsigned and "sha256" not in metadata:
        return tensors, metadata
    if metadata.get("sha256") != checksum(tensors, metadata):
        raise Damaged(f"{path} is damaged: its content differs from its checksum")
    return tensors, metadata


def checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Return a hash of names, types, shapes and contents of tensors, and of the metadata.

    A checksum in the metadata is left out.
    """
    digest = hashlib.sha256()
    for key in sorted(metadata.keys() - {"sha256"}):
        digest.update(f"{key}={metadata[key]}\n".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(content_of(tensor))
    return digest.hexdigest()


def sealed(content: Any) -> str:
    """Return plain data as one line of JSON with a checksum.

    >>> unsealed(sealed({"a": [1, 0.5]}))
    {'a': [1, 0.5]}
    """
    return json.dumps({"sha256": _digest(content), "content": content})


def unsealed(text: str) -> Any:
    """Return the data of a line that :func:`sealed` made, or raise ``Damaged``."""
    try:
        record = json.loads(text)
        content = record["content"]
        valid = record["sha256"] == _digest(content)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Damaged(f"it cannot be read: {error}") from error
    if not valid:
        raise Damaged("its content differs from its checksum")
    return content


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def content_of(tensor: Tensor) -> bytes:
    """Return the entries of a tensor of any type as bytes."""
    # Not contiguous(), which does not copy a view of a single entry, whatever its stride.
    flat = tensor.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes()


@cache
def _remove_abandoned(folder: Path) -> None:
    """Remove partial files of ended processes of this machine, once for each folder."""
    node = re.escape(platform.node())
    pattern = re.compile(rf"\..+\.{node}\.(\d+)(-\d+)?\.partial", re.DOTALL)
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            match = pattern.fullmatch(entry.name)
            if match is not None and not _is_running(int(match[1])):
                Path(entry.path).unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Return whether a process may be running."""
    if os.name == "nt":  # on Windows os.kill ends the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user, or not a process number
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Write a rename to the disk, on systems that can synchronise folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
