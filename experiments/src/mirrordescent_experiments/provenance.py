"""Provenance of results: commit, entries, date and machine, and stale results."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import torch

from mirrordescent import zoo
from mirrordescent.zoo import storage

UNKNOWN = "not known"
STALE = "stale.json"  # the pages of a folder of results that are known to be stale, and why
SOURCES = Path(__file__).parents[3]
MARK = re.compile(r"<!-- provenance: (\{.*\}) -->")
OF_SECTION = re.compile(r"<!-- provenance of this section: (\{.*\}) -->")
Provenance: TypeAlias = dict[str, Any]


def commit() -> str:
    """Return the commit of the sources, with a + if they were changed, or "not known"."""
    asked = [
        "git",
        "-C",
        str(SOURCES),
        "describe",
        "--always",
        "--abbrev=12",
        "--dirty=+",
        "--exclude=*",
    ]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return UNKNOWN
    return found.stdout.strip() or UNKNOWN


def machine() -> str:
    """Return what results may depend on besides the sources."""
    threads = torch.get_num_threads()
    return (
        f"{platform.machine()}, {threads} threads, Python {platform.python_version()}, torch "
        f"{torch.__version__}"
    )


@contextmanager
def recorded(seeds: str) -> Iterator[Provenance]:
    """Record the provenance of results computed in this context, with the loaded entries.

    >>> with recorded("0") as provenance:
    ...     _ = zoo.load("photo-inpaint-lpd")
    >>> list(provenance["entries"])
    ['photo-inpaint-lpd']
    """
    found: Provenance = {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "seeds": seeds,
        "machine": machine(),
        "entries": {},
    }
    load = storage.load_entry
    shipped = zoo.FOLDER.resolve()

    def noted(path: Path) -> Any:
        if path.resolve().parent == shipped:
            found["entries"][path.stem] = zoo.fingerprint(path.stem)
        return load(path)

    with patch.object(zoo, "load_entry", noted):
        yield found


def mark(provenance: Provenance, section: bool = False) -> str:
    """Return it as a comment for a page in Markdown, or for a section that was made by itself."""
    return (
        f"<!-- provenance{' of this section' if section else ''}: "
        f"{json.dumps(provenance, ensure_ascii=False)} -->"
    )


def problems(provenance: Provenance | None) -> list[str]:
    """Return the reasons why results are stale: unknown entries, or entries that changed."""
    if not provenance or provenance.get("entries", UNKNOWN) == UNKNOWN:
        return ["the entries that were used are not known"]
    shipped = zoo.list()
    gone = [name for name in provenance["entries"] if name not in shipped]
    kept = {name: sha for name, sha in provenance["entries"].items() if name in shipped}
    other = [name for name, sha in kept.items() if sha != zoo.fingerprint(name)]
    return [f"{name} is no longer shipped" for name in gone] + [
        f"{name} has been learned anew" for name in other
    ]


def pages(folder: Path) -> dict[str, Provenance | None]:
    """Return where every page of a folder of results comes from, as far as it says so.

    Sections that were made by themselves say so by themselves, and are called PAGE: TITLE.
    """
    found: dict[str, Provenance | None] = {}
    for summary in sorted(folder.glob("*/summary.json")):
        found[summary.parent.name] = json.loads(summary.read_text(encoding="utf-8")).get(
            "provenance"
        )
    for page in sorted([*folder.glob("*.md"), *folder.glob("diagnosis/*/diagnosis.md")]):
        if page.name != "README.md":
            name = str(page.relative_to(folder).with_suffix(""))
            text = page.read_text(encoding="utf-8")
            parts = {name: text}
            pattern = MARK
            if OF_SECTION.search(text):
                sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
                parts = {f"{name}: {each.splitlines()[0]}": each for each in sections}
                pattern = OF_SECTION
            for title, part in parts.items():
                marked = pattern.search(part)
                found[title] = json.loads(marked[1]) if marked else None
    return found


def check(folder: Path) -> list[str]:
    """Return the faults of a folder: unlisted stale pages, and listed pages that are not stale.

    The list is ``stale.json`` in the folder, {page: why}.
    """
    listing = folder / STALE
    listed: dict[str, str] = (
        json.loads(listing.read_text(encoding="utf-8")) if listing.exists() else {}
    )
    stale = {
        name: why for name, provenance in pages(folder).items() if (why := problems(provenance))
    }
    wrong = [
        f"{name} is stale: {'; '.join(why)}" for name, why in stale.items() if name not in listed
    ]
    return wrong + [
        f"{name} is listed as stale in {STALE}, and is not" for name in listed if name not in stale
    ]
