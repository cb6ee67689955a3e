"""What a campaign has tried and found, and the page that says so."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from mirrordescent_experiments.provenance import Provenance, mark

PAGE = Path(__file__).parents[1] / "docs" / "results" / "reliability.md"
SHOWN = 5  # findings of a kind


class Tally:
    """Counts of what was tried, by kind and outcome, and everything that should not have happened.

    Args:
        name: of the campaign.
        seed: of its random numbers.
        minutes: after which no new case begins.
        most: cases after which it ends before that.
    """

    def __init__(self, name: str, seed: int, minutes: float, most: int | None = None) -> None:
        self.name = name
        self.seed = seed
        self.random = Random(seed)
        self.most = most
        self.began = time.monotonic()
        self.until = time.monotonic() + 60 * minutes
        self.tried = Counter[str]()
        self.found = Counter[str]()
        self.examples: dict[str, str] = {}
        self.measured: dict[str, str] = {}
        self.provenance: Provenance = {}

    def cases(self) -> Iterator[int]:
        """Yield the numbers of cases until time is up."""
        number = 0
        while (self.most is None or number < self.most) and time.monotonic() < self.until:
            yield number
            number += 1

    def note(self, kind: str, outcome: str) -> None:
        """Count a case that went as it should."""
        self.tried[f"{kind}: {outcome}"] += 1

    def fault(self, kind: str, what: object) -> None:
        """Count a case that did not."""
        text = " ".join(str(what).split())[:300]
        self.tried[f"{kind}: fault"] += 1
        self.found[kind] += 1
        self.examples.setdefault(kind, text)

    def measure(self, what: str, found: str) -> None:
        """Keep a figure for the page."""
        self.measured[what] = found

    def record(self) -> dict[str, Any]:
        """Return it as data."""
        return {
            "tried": dict(sorted(self.tried.items())),
            "found": {
                kind: [count, self.examples[kind]] for kind, count in sorted(self.found.items())
            },
            "measured": self.measured,
            "seed": self.seed,
            "seconds": round(time.monotonic() - self.began, 1),
            "provenance": self.provenance,
        }


def write(tally: Tally, page: Path) -> None:
    """Add a campaign to the page, in the place of an earlier one of its name."""
    data = page.with_suffix(".json")
    known = json.loads(data.read_text(encoding="utf-8")) if data.exists() else {}
    known[tally.name] = tally.record()
    data.write_text(
        json.dumps(known, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
    )
    page.write_text(markdown(json.loads(data.read_text(encoding="utf-8"))), encoding="utf-8")


def markdown(known: dict[str, Any]) -> str:
    """Return the page."""
    lines = [
        "# Reliability",
        "",
        "Written by `python -m campaigns`; every campaign can be run again with its seed.",
        "",
    ]
    for name, record in known.items():
        where = record.get("provenance") or record  # earlier ones say less
        faults = sum(count for count, _ in record["found"].values())
        tried = sum(record["tried"].values())
        lines += [
            f"## {name}",
            "",
            f"{tried} cases in {record['seconds']:.0f} s, {faults} faults. Seed {record['seed']}, commit "
            f"{where['commit']}, {where['machine']}.",
            "",
            *([mark(where, section=True), ""] if "entries" in where else []),
            "| case and outcome | count |",
            "|---|---|",
            *(f"| {case} | {count} |" for case, count in record["tried"].items()),
            "",
            *(f"- {what}: {found}" for what, found in record.get("measured", {}).items()),
            *(
                f"- **{kind}** ({count}): {example}"
                for kind, (count, example) in record["found"].items()
            ),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"
