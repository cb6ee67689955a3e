"""Counts of the cases of a campaign, and the page that shows them."""

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
LONGEST_TABLE = 60
"""Largest number of rows of a table on the page."""

EXAMPLE_LENGTH = 300
"""Largest length of the example that is kept of each kind of fault."""


class Tally:
    """Counts of cases by kind and outcome, and all faults.

    Args:
        name: Name of the campaign.
        seed: Seed of its random generator.
        minutes: Time after which no new case begins.
        most: Largest number of cases.
    """

    def __init__(self, name: str, seed: int, minutes: float, most: int | None = None) -> None:
        self.name = name
        self.seed = seed
        self.minutes = minutes
        self.most = most
        self.random = Random(seed)
        self.outcomes = Counter[str]()
        self.faults = Counter[str]()
        self.examples: dict[str, str] = {}
        self.measurements: dict[str, str] = {}
        self.provenance: Provenance = {}
        self.start()

    def start(self) -> None:
        """Start the clock anew."""
        self.started = time.monotonic()
        self.deadline = self.started + 60 * self.minutes

    def cases(self) -> Iterator[int]:
        """Yield case numbers until the time is up."""
        number = 0
        while (self.most is None or number < self.most) and time.monotonic() < self.deadline:
            yield number
            number += 1

    def note(self, kind: str, outcome: str) -> None:
        """Count a case with an expected outcome."""
        self.outcomes[f"{kind}: {outcome}"] += 1

    def fault(self, kind: str, description: object) -> None:
        """Count a fault; the first description of each kind is kept as an example."""
        text = " ".join(str(description).split())[:EXAMPLE_LENGTH]
        self.outcomes[f"{kind}: fault"] += 1
        self.faults[kind] += 1
        self.examples.setdefault(kind, text)

    def expect(self, kind: str, holds: bool, outcome: str, description: object) -> None:
        """Count an expected outcome if a condition holds, else a fault."""
        if holds:
            self.note(kind, outcome)
        else:
            self.fault(kind, description)

    def measure(self, name: str, value: str) -> None:
        """Keep a measured number for the page."""
        self.measurements[name] = value

    def record(self) -> dict[str, Any]:
        """Return the tally as JSON data."""
        found = {}
        for kind, count in sorted(self.faults.items()):
            found[kind] = [count, self.examples[kind]]
        return {
            "tried": dict(sorted(self.outcomes.items())),
            "found": found,
            "measured": self.measurements,
            "seed": self.seed,
            "seconds": round(time.monotonic() - self.started, 1),
            "provenance": self.provenance,
        }


def write(tally: Tally, page: Path) -> None:
    """Add a campaign to the page; it replaces an earlier campaign of the same name.

    Raises:
        ValueError: If there was no case, so that an empty campaign does not replace another.
    """
    if not tally.outcomes:
        raise ValueError(
            f"a campaign must have one case or more to be written, {tally.name} had none: give it "
            "more --minutes"
        )
    store = page.with_suffix(".json")
    records = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
    records[tally.name] = tally.record()
    text = json.dumps(records, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    store.write_text(text, encoding="utf-8")
    page.write_text(markdown(json.loads(text)), encoding="utf-8")


def markdown(records: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# Reliability",
        "",
        "Written by `python -m campaigns`; every campaign can be run again with its seed.",
        "",
    ]
    for name, record in records.items():
        lines += _section(name, record)
    return "\n".join(lines).rstrip() + "\n"


def _rows(tried: dict[str, int]) -> dict[str, int]:
    """Return the rows of the table; of many kinds of cases, the outcomes of all kinds together."""
    if len(tried) <= LONGEST_TABLE:
        return tried
    totals = Counter[str]()
    for case, count in tried.items():
        totals[case.rpartition(": ")[2]] += count
    return dict(totals.most_common())


def _section(name: str, record: dict[str, Any]) -> list[str]:
    origin = record.get("provenance") or record  # older records store commit and machine directly
    faults = sum(count for count, _ in record["found"].values())
    cases = sum(record["tried"].values())
    lines = [
        f"## {name}",
        "",
        f"{cases} cases in {record['seconds']:.0f} s, {faults} faults. Seed {record['seed']}, "
        f"commit {origin['commit']}, {origin['machine']}.",
        "",
    ]
    if "entries" in origin:
        lines += [mark(origin, section=True), ""]
    lines += ["| case and outcome | count |", "|---|---|"]
    lines += [f"| {case} | {count} |" for case, count in _rows(record["tried"]).items()]
    lines.append("")
    lines += [f"- {name}: {value}" for name, value in record.get("measured", {}).items()]
    for kind, (count, example) in record["found"].items():
        lines.append(f"- **{kind}** ({count}): {example}")
    lines.append("")
    return lines
