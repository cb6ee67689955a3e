"""Provenance of results: commit, code, entries, date and machine, and stale results.

A page is stale if its entries are unknown or differ from those that are shipped. A page whose code
changed since is not necessarily wrong; it is listed, so that it is run again before a release.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import torch

from mirrordescent import zoo
from mirrordescent.zoo import storage
from mirrordescent_experiments.code_hash import PACKAGES, SOURCES, code_hash

UNKNOWN = "not known"
STALE = "stale.json"  # the pages of a folder of results that are known to be stale, and why
GUIDES = "*.md"
LINK = re.compile(r"\]\(([^)\s]+)\)")
DIRECTIVE = re.compile(r"```\{claims\} ([\w-]+)")
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
def recorded(seeds: str, run: Callable[..., Any] | str | None = None) -> Iterator[Provenance]:
    """Record the provenance of results computed in this context, with the loaded entries.

    Args:
        seeds: Description of the seeds.
        run: Function that computes the results, or the name of its module. The hash of its code is
            recorded.

    >>> with recorded("0", "mirrordescent_experiments.intervals") as provenance:
    ...     _ = zoo.load("photo-inpaint-lpd")
    >>> list(provenance["entries"])
    ['photo-inpaint-lpd']
    >>> list(provenance["code"])
    ['mirrordescent_experiments.intervals']
    """
    found: Provenance = {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "seeds": seeds,
        "machine": machine(),
        "entries": {},
        "code": code_of(run),
    }
    load = storage.load_entry
    shipped = zoo.FOLDER.resolve()

    def noted(path: Path) -> Any:
        if path.resolve().parent == shipped:
            found["entries"][path.stem] = zoo.fingerprint(path.stem)
        return load(path)

    with patch.object(zoo, "load_entry", noted):
        yield found


def code_of(run: Callable[..., Any] | str | None) -> dict[str, str]:
    """Return {module: hash of its code} of a function, an experiment's or a module's name.

    The result is empty for experiments of other packages, whose code is not hashed.
    """
    if run is None:
        return {}
    if isinstance(run, partial):
        run = run.func
    module = run if isinstance(run, str) else run.__module__
    if module.split(".")[0] not in PACKAGES:
        return {}
    return {module: code_hash(module)}


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


def check(folder: Path, code: bool = False) -> list[str]:
    """Return the faults of a folder: unlisted stale pages, and listed pages that are not stale.

    The list is ``stale.json`` in the folder, {page: why}.

    Args:
        folder: Folder of results.
        code: Whether a page that README or a guide quotes is also stale if its code changed.
    """
    listing = folder / STALE
    listed: dict[str, str] = (
        json.loads(listing.read_text(encoding="utf-8")) if listing.exists() else {}
    )
    stale = {
        name: why for name, provenance in pages(folder).items() if (why := problems(provenance))
    }
    quoting = quoted(folder)
    if code:
        for name, change in changed_code(folder).items():
            if name in quoting:
                stale.setdefault(name, []).append(change)
    wrong = []
    for name, why in stale.items():
        if name not in listed:
            by = f" (quoted by {', '.join(quoting[name])})" if name in quoting else ""
            wrong.append(f"{name} is stale: {'; '.join(why)}{by}")
    return wrong + [
        f"{name} is listed as stale in {STALE}, and is not" for name in listed if name not in stale
    ]


def changed_code(folder: Path) -> dict[str, str]:
    """Return the pages whose code changed since they were made, or is not known, and why."""
    found = {}
    for name, provenance in pages(folder).items():
        recorded_code = (provenance or {}).get("code")
        if not recorded_code:
            found[name] = "the code that made it was not recorded"
            continue
        for module, sha in recorded_code.items():
            try:
                now = code_hash(module)
            except ModuleNotFoundError:
                found[name] = f"{module} is gone"
                break
            if now != sha:
                found[name] = f"{module}, or what it imports, has changed"
    return found


def quoted(folder: Path) -> dict[str, list[str]]:
    """Return the pages that README or a guide links to or takes numbers from, and by which.

    Guides are the pages of the documentation beside the folder of results, and README.md above it.
    """
    guides = [*sorted(folder.parent.glob(GUIDES)), folder.parent.parent / "README.md"]
    found: dict[str, list[str]] = {}
    for guide in guides:
        if not guide.is_file():
            continue
        text = guide.read_text(encoding="utf-8")
        names = set(DIRECTIVE.findall(text))
        for link in LINK.findall(text):
            target, _, anchor = link.partition("#")
            place = (guide.parent / target).resolve()
            if target.endswith(".md") and place.is_relative_to(folder.resolve()):
                name = str(place.relative_to(folder.resolve()).with_suffix(""))
                names |= _named(folder, name.removesuffix("/claims"), anchor)
        for name in names:
            found.setdefault(name, []).append(guide.name)
    return found


def _named(folder: Path, name: str, anchor: str) -> set[str]:
    """Return the page of a link, or its sections if they were made by themselves."""
    known = set(pages(folder))
    if name in known:
        return {name}
    sections = {each for each in known if each.startswith(f"{name}: ")}
    if not anchor:
        return sections
    return {each for each in sections if _slug(each.removeprefix(f"{name}: ")) == anchor}


def _slug(title: str) -> str:
    """Return the anchor of a title.

    >>> _slug("How close a proof is")
    'how-close-a-proof-is'
    """
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
