"""Find a solver for every example, and write what came out: ``python -m examples [NAME …] [--minutes M]``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import mirrordescent as md
from mirrordescent.auto import Auto
from mirrordescent.auto.outcome import attribution
from mirrordescent.cli.learning import family_in
from mirrordescent.files import whole
from mirrordescent_lab.provenance import mark, recorded

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results"
NAMES = sorted(path.stem for path in HERE.glob("[a-z]*.py"))
HEAD = """# Your own problems

Written by `python -m examples`: a solver is looked for with `mirrordescent learn examples/NAME.py`, for each class of
problems in the folder `examples` by itself. Times are those of 64 problems at once, to a relative gap of 1e-2, on
problems that nothing was learned, tuned or chosen on. Those of pictures are other crops of the same photographs.
*Schedules alone* and *with a map* say how many times faster each makes it where it was chosen: the learned schedules
against the best classical solver, the map against the schedules.

| problems | lines | what to do | best classical, ms | best learned, ms | schedules alone | with a map | minutes |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Run those named, or all; keep the results of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=Path("out/examples"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    store = RESULTS / "own-problems.json"
    kept = json.loads(store.read_text()) if store.exists() else {}
    for name in given.names:
        path = HERE / f"{name}.py"
        with recorded("0") as origin:
            found = md.auto(family_in(path), name=name, minutes=given.minutes, out=given.out, say=print)
        kept[name] = {"cells": row(found, len(path.read_text().splitlines())), "origin": origin}
        with whole(store) as partial:
            partial.write_text(json.dumps(kept, indent=1, sort_keys=True))
        with whole(RESULTS / "own-problems.md") as partial:
            partial.write_text(page(kept))


def page(kept: dict[str, Any]) -> str:
    """Return the page of all results; it comes from where the last of them does."""
    rows = ["| " + " | ".join([name, *kept[name]["cells"]]) + " |" for name in sorted(kept)]
    origins = [each["origin"] for each in kept.values()]
    entries = {name: sha for each in origins for name, sha in each["entries"].items()}
    latest = max(origins, key=lambda each: each["date"])
    return HEAD + "\n".join(rows) + "\n\n" + mark({**latest, "entries": entries}) + "\n"


def row(found: Auto, lines: int) -> list[str]:
    """Return what is said about one class of problems."""

    shares = attribution(found.contestants, found.classical, found.learned)
    ours, best = found.learned, found.classical
    return [
        str(lines), found.words, f"{best.name}: {1e3 * best.unseen.seconds:.3g}",
        "–" if ours is None else f"{ours.name}: {1e3 * ours.unseen.seconds:.3g}",
        *(f"{shares[part]:.2f}×" if part in shares else "–" for part in ("schedules", "map")),
        f"{found.seconds / 60:.1f}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
