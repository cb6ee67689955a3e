"""Build a release: ``python -m building.release``.

The versions and the changelog are checked first, so that a release which would be wrong is not
built. Then the wheels of all platforms and the archive of the sources are built and checked, and
``release-notes.md`` is written beside them, with the section of the changelog and checksums.
"""

from __future__ import annotations

import email
import email.message
import hashlib
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

from building.targets import TARGETS
from building.wheels import (
    ROOT,
    WheelError,
    build_source_archive,
    build_wheel,
    parse_arguments,
)

PACKAGE = "mirrordescent"
NOTES = "release-notes.md"
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
DATED = re.compile(r"(\d+\.\d+\.\d+) – (\d{4}-\d{2}-\d{2})")
NEEDED_SOURCES = (
    "pyproject.toml",
    "hatch_build.py",
    "building/compilation.py",
    "src/mirrordescent/kernels/kernels.c",
    "LICENSE",
    "README.md",
    "CITATION.cff",
)
"""Files without which a source archive cannot be installed, or should not be published."""


class ReleaseError(Exception):
    """A release would be wrong."""


def version(root: Path = ROOT) -> str:
    """Return the version, or raise ReleaseError if the files of the project disagree about it."""
    found = {}
    for name in ("pyproject.toml", "experiments/pyproject.toml"):
        found[name] = tomllib.loads((root / name).read_text(encoding="utf-8"))["project"]["version"]
    patterns = {
        f"src/{PACKAGE}/__init__.py": r'^__version__ = "(.+)"$',
        "CITATION.cff": r"^version: (.+)$",
    }
    for name, pattern in patterns.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        found[name] = match[1] if match else "missing"
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{each} in {name}" for name, each in found.items())
        raise ReleaseError(f"the versions differ: {listed}")
    return found["pyproject.toml"]


def changelog_section(text: str, number: str) -> str:
    """Return the section of a version, without its heading.

    Raises ReleaseError unless the changelog begins with an empty section of unreleased changes,
    followed by the dated section of this version.
    """
    headings = list(HEADING.finditer(text))
    if len(headings) < 2 or headings[0][1] != "Unreleased":
        raise ReleaseError("the changelog must begin with the section ## Unreleased")
    if text[headings[0].end() : headings[1].start()].strip():
        raise ReleaseError(f"move the unreleased changes to the section ## {number} – YEAR-MM-DD")
    dated = DATED.fullmatch(headings[1][1])
    if not dated or dated[1] != number:
        raise ReleaseError(
            f"the second section of the changelog must be ## {number} – YEAR-MM-DD, "
            f"got ## {headings[1][1]}"
        )
    date.fromisoformat(dated[2])
    end = headings[2].start() if len(headings) > 2 else len(text)
    section = text[headings[1].end() : end].strip()
    if not section:
        raise ReleaseError(f"the section of {number} in the changelog is empty")
    return section


def check_metadata(path: Path, number: str) -> None:
    """Raise WheelError unless a wheel or a source archive has the right metadata."""
    metadata = email.message_from_string(_metadata(path))
    problems = []
    for field, wanted in (("Name", PACKAGE), ("Version", number)):
        if metadata[field] != wanted:
            problems.append(f"{field} is {metadata[field]}, not {wanted}")
    problems += [
        f"{field} is missing"
        for field in ("License-Expression", "Keywords", "Requires-Python", "Author", "Summary")
        if not metadata[field]
    ]
    if "Author-email" in metadata:
        problems.append("it has an address of an author")
    if len(str(metadata.get_payload())) < 1000:
        problems.append("it has no description")
    if problems:
        raise WheelError(f"{path.name}: {'; '.join(problems)}")


def _metadata(path: Path) -> str:
    """Return the text of the metadata."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
            return wheel.read(name).decode()
    with tarfile.open(path) as archive:
        file = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file is not None
        return file.read().decode()


def check_sources(path: Path) -> None:
    """Raise WheelError unless a source archive can be installed and contains no built files."""
    folder = path.name.removesuffix(".tar.gz")
    with tarfile.open(path) as archive:
        names = {name.removeprefix(f"{folder}/") for name in archive.getnames()}
    missing = [name for name in NEEDED_SOURCES if name not in names]
    if missing:
        raise WheelError(f"{path.name} lacks {', '.join(missing)}")
    built = sorted(name for name in names if "/_lib/" in name or name.endswith((".so", ".pyc")))
    if built:
        raise WheelError(f"{path.name} contains built files: {', '.join(built)}")


def notes(number: str, section: str, files: Iterable[Path]) -> str:
    """Return the notes of a release: its changes, and the files with their checksums."""
    rows = [
        f"| `{path.name}` | {path.stat().st_size / 1e6:.1f} MB | "
        f"`{hashlib.sha256(path.read_bytes()).hexdigest()}` |"
        for path in files
    ]
    table = "\n".join(["| file | size | SHA-256 |", "|---|---|---|", *rows])
    return f"# {PACKAGE} {number}\n\n{section}\n\n## Files\n\n{table}\n"


def release(folder: Path, targets: Sequence[str] = tuple(TARGETS)) -> list[Path]:
    """Build and check the files of a release, write the notes, and return all paths."""
    number = version()
    section = changelog_section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), number)
    files = []
    for name in targets:
        files.append(build_wheel(name, folder))
        print(files[-1], flush=True)
    files.append(build_source_archive(folder))
    print(files[-1], flush=True)
    check_sources(files[-1])
    for path in files:
        check_metadata(path, number)
    written = folder / NOTES
    written.write_text(notes(number, section, files), encoding="utf-8")
    print(written)
    return [*files, written]


def main() -> None:
    """Build the release, for all platforms or for some."""
    options = parse_arguments(__doc__)
    try:
        release(options.folder, options.targets)
    except (ReleaseError, WheelError) as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
