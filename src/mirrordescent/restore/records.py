"""Records of restored photographs in the output folder, by which a run is resumed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirrordescent._internal.files import Damaged, sealed, unsealed

RECORDS = "restored.jsonl"  # file of the records in the output folder


class Records:
    """The file of records of an output folder.

    A record is valid if it was made by the same options from the same contents, and if the restored
    file has the same content as when it was written.

    Args:
        folder: Output folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORDS

    def add(self, name: str, how: str, output: Path, numbers: Mapping[str, Any]) -> None:
        """Store the numbers of a restored photograph.

        Args:
            name: Path of the restored file, relative to the output folder.
            how: Fingerprint of everything that determines the result.
            output: The restored file.
            numbers: Numbers as plain data.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"name": name, "how": how, "sha256": hash_file(output), "record": numbers}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(sealed(entry) + "\n")

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the last entry of every restored file by its name.

        Damaged lines, such as the incomplete last line of an interrupted run, are left out. So are
        entries of earlier versions, which do not tell everything that determines a result.
        """
        if not self.path.is_file():
            return {}
        entries = {}
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = unsealed(line)
            except Damaged:
                continue
            if isinstance(entry, dict) and entry.keys() == {"name", "how", "sha256", "record"}:
                entries[entry["name"]] = entry
        return entries

    def remove(self) -> None:
        """Remove all records."""
        self.path.unlink(missing_ok=True)


def is_intact(entry: Mapping[str, Any], output: Path) -> bool:
    """Return whether a restored file is as it was written."""
    return output.is_file() and hash_file(output) == entry["sha256"]


def hash_file(path: Path) -> str:
    """Return a checksum of the content of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror or error}") from error


def hash_facts(facts: Mapping[str, Any]) -> str:
    """Return a checksum of plain data.

    >>> hash_facts({"a": 1, "b": None}) == hash_facts({"b": None, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
