"""Write the measured contributions onto the cards of the zoo, and measure missing ones first.

python -m mirrordescent_experiments.cards docs/results/attribution/summary.json [ENTRY ...]

With names of entries, only these are measured now. Measurements are kept in the cache, so that an
interrupted run goes on where it was.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirrordescent import zoo
from mirrordescent.zoo.storage import replace_card
from mirrordescent_experiments.attribution import add_missing


def write_controls(summary: Path, folder: Path = zoo.FOLDER) -> list[str]:
    """Write ``held_out.control`` of every measured entry; refuse entries with other weights."""
    stored = json.loads(summary.read_text(encoding="utf-8"))
    measured = stored["provenance"]["entries"]
    written = []
    for name, control in stored["settings"]["cards"].items():
        path = folder / f"{name}.safetensors"
        before = zoo.fingerprint(path)
        if name in measured and measured[name] != before:
            raise ValueError(
                f"{name} was measured with other weights than it has now: reproduce "
                "attribution again"
            )
        card = zoo.card(path)
        held_out: dict[str, Any] = {**card.held_out, "control": control}
        replace_card(path, replace(card, held_out=held_out))
        if zoo.fingerprint(path) != before:
            raise RuntimeError(f"{name} is not the same after it was saved again")
        written.append(name)
    return written


if __name__ == "__main__":
    add_missing(Path(sys.argv[1]), only=sys.argv[2:] or None)
    print(*write_controls(Path(sys.argv[1])), sep="\n")
