"""Checksums of files, and downloads that are checked before they are kept."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from urllib.request import Request, urlopen

from mirrordescent._internal.files import whole
from mirrordescent.data.errors import DataDamaged

TIMEOUT = 30.0  # seconds without an answer


def file_hash(path: Path, algorithm: str) -> str:
    """Return the checksum of a file in hexadecimal digits.

    Args:
        path: File to read.
        algorithm: Name of the hash function, such as "sha256" or "md5".
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def download(url: str, path: Path, checksum: str) -> None:
    """Download a file. It appears at its path only if its checksum is correct.

    Args:
        url: Address of the file.
        path: File to write; its folder is created.
        checksum: "algorithm:hex digits".

    Raises:
        DataDamaged: The file at the address has another checksum.
        OSError: The file cannot be fetched or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    request = Request(url, headers={"User-Agent": "mirrordescent"})
    algorithm, expected = checksum.split(":")
    with whole(path) as partial:
        with urlopen(request, timeout=TIMEOUT) as answer, partial.open("wb") as stream:
            shutil.copyfileobj(answer, stream)
        received = file_hash(partial, algorithm)
        if received != expected:
            raise DataDamaged(
                f"{url} does not serve the published {path.name}: "
                f"its {algorithm} checksum is {received}, not {expected}"
            )
