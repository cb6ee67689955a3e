"""Find a solver for every example, and write what came out: ``python -m examples [NAME …]
[--minutes M]``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import mirrordescent as md
from mirrordescent._internal.files import whole
from mirrordescent.automatic import AutoResult
from mirrordescent.automatic.outcome import attribution
from mirrordescent.cli.problem_files import load_family
from mirrordescent.learn import ProblemFamily
from mirrordescent_experiments.provenance import mark, recorded

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results"
NAMES = sorted(
    path.stem for path in HERE.glob("[a-z]*.py") if path.stem != "video"
)  # which warms solvers, not learns
HEAD = """# Your own problems

Written by `python -m examples`: a solver is looked for with `mirrordescent learn examples/NAME.py`, for each class of
problems in the folder `examples` by itself. Times are those of 64 problems at once, to a relative gap of 1e-2, on
problems that nothing was learned, tuned or chosen on; those of pictures are made of other photographs.
*Schedules*, *map* and *safeguard* say how many times faster each makes it, where it was chosen: learned schedules
against the best classical solver, the map against the schedules, the safeguard against none.

| problems | lines | best classical, ms | best learned, ms | schedules | map | safeguard | minutes |
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
    for name in given.names:
        path = HERE / f"{name}.py"
        with recorded("0") as origin:
            found = md.auto(
                load_family(path), name=name, minutes=given.minutes, out=given.out, say=print
            )
        draw(name, found, load_family(path))
        kept = (
            json.loads(store.read_text()) if store.exists() else {}
        )  # now: others may have been run meanwhile
        kept[name] = {"cells": row(found, len(path.read_text().splitlines())), "origin": origin}
        with whole(store) as partial:
            partial.write_text(json.dumps(kept, indent=1, sort_keys=True))
        with whole(RESULTS / "own-problems.md") as partial:
            partial.write_text(page(kept))


def draw(name: str, found: AutoResult, family: ProblemFamily, count: int = 4) -> None:
    """Show some unseen problems: where the solver starts, and its solutions, as pictures or as
    lines.
    """
    problems = family.validation(count)
    solved = md.solve(
        problems.problem, found.method, problems.x0, iterations=500, progress=False
    ).best_x
    figure = Figure(figsize=(2 * count, 4), layout="constrained")
    axes = figure.subplots(2, count)
    for row, (title, points) in enumerate({"start": problems.x0, "solution": solved}.items()):
        for place, point in enumerate(points):
            if point.ndim == 3:
                axes[row, place].imshow(point.mean(0), cmap="gray")
                axes[row, place].set_axis_off()
            else:
                axes[row, place].bar(range(len(point)), point, color="#2563eb")
        axes[row, 0].set_title(title, loc="left")
    figure.savefig(_picture(name), dpi=100)


def _picture(name: str) -> Path:
    return RESULTS / f"own-{name}.png"


def page(kept: dict[str, Any]) -> str:
    """Return the page of all results; it comes from where the last of them does."""
    cells = {name: [name, *kept[name]["cells"]] for name in sorted(kept)}
    rows = ["| " + " | ".join([*row[:2], *row[3:]]) + " |" for row in cells.values()]
    origins = [each["origin"] for each in kept.values()]
    entries = {name: sha for each in origins for name, sha in each["entries"].items()}
    latest = max(origins, key=lambda each: each["date"])
    shown = "\n\n".join(
        f"**{name}.** {row[2]}\n\n![{name}](own-{name}.png)" for name, row in cells.items()
    )
    return HEAD + "\n".join(rows) + f"\n\n{shown}\n\n" + mark({**latest, "entries": entries}) + "\n"


def row(found: AutoResult, lines: int) -> list[str]:
    """Return what is said about one class of problems."""

    shares = attribution(found.contestants, found.classical, found.learned)
    ours = found.learned
    best = found.classical
    return [
        str(lines),
        found.words,
        f"{best.name}: {1e3 * best.unseen.seconds:.3g}",
        "–" if ours is None else f"{ours.name}: {1e3 * ours.unseen.seconds:.3g}",
        *(
            f"{shares[part]:.2f}×" if part in shares else "–"
            for part in ("schedules", "map", "safeguard")
        ),
        f"{found.seconds / 60:.1f}",
    ]


if __name__ == "__main__":
    main()
