"""Find a solver for every example and write the results: ``python -m examples [NAME …]``."""

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
STORE = RESULTS / "own-problems.json"
PAGE = RESULTS / "own-problems.md"
NOT_LEARNED = ("video",)
"""Examples in which no solver is learned."""

NAMES = sorted(path.stem for path in HERE.glob("[a-z]*.py") if path.stem not in NOT_LEARNED)
ATTRIBUTED = ("schedules", "map", "safeguard")
"""Parts of a learned solver whose speed-ups are shown."""

HEAD = """# Your own problems

Written by `python -m examples`, which calls `mirrordescent learn examples/NAME.py` for each family
of problems in the folder `examples`. Times are for 64 problems solved together to a relative gap of
1e-2. None of these problems was used for learning, tuning or choosing a solver; pictures come from
other photographs.

*Schedules*, *map* and *safeguard* are speed-up factors of the parts of the chosen solver: learned
schedules against the best classical solver, the map against the schedules alone, and the safeguard
against no safeguard.

| problems | lines | best classical, ms | best learned, ms | schedules | map | safeguard | minutes |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Run the named examples, or all; results of the other examples are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help="examples to run; all by default")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for each example")
    parser.add_argument(
        "--out", type=Path, default=Path("out/examples"), help="folder for the solvers"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names:
        run_example(name, arguments.minutes, arguments.out)


def run_example(name: str, minutes: float, out: Path) -> None:
    """Find a solver for one example and update the page."""
    path = HERE / f"{name}.py"
    with recorded("0", f"examples.{name}") as origin:
        result = md.auto(load_family(path), name=name, minutes=minutes, out=out, say=print)
    draw(name, result, load_family(path))
    # Read the store only now: another process may have written to it meanwhile.
    stored = json.loads(STORE.read_text()) if STORE.exists() else {}
    lines = len(path.read_text().splitlines())
    stored[name] = {"cells": row(result, lines), "origin": origin}
    with whole(STORE) as partial:
        partial.write_text(json.dumps(stored, indent=1, sort_keys=True))
    with whole(PAGE) as partial:
        partial.write_text(page(stored))


def draw(name: str, result: AutoResult, family: ProblemFamily, count: int = 4) -> None:
    """Draw starts and solutions of some validation problems, as images or as bars."""
    problems = family.validation(count)
    solution = md.solve(
        problems.problem, result.method, problems.x0, iterations=500, progress=False
    )
    figure = Figure(figsize=(2 * count, 4), layout="constrained")
    axes = figure.subplots(2, count)
    rows = {"start": problems.x0, "solution": solution.best_x}
    for i, (title, points) in enumerate(rows.items()):
        for j, point in enumerate(points):
            if point.ndim == 3:
                axes[i, j].imshow(point.mean(0), cmap="gray")
                axes[i, j].set_axis_off()
            else:
                axes[i, j].bar(range(len(point)), point, color="#2563eb")
        axes[i, 0].set_title(title, loc="left")
    figure.savefig(RESULTS / f"own-{name}.png", dpi=100)


def page(stored: dict[str, Any]) -> str:
    """Return the page of all results, with the provenance of the latest."""
    rows = []
    sections = []
    entries = {}
    for name in sorted(stored):
        lines, description, *cells = stored[name]["cells"]
        rows.append("| " + " | ".join([name, lines, *cells]) + " |")
        sections.append(f"**{name}.** {description}\n\n![{name}](own-{name}.png)")
    origins = [result["origin"] for result in stored.values()]
    for origin in origins:
        entries.update(origin["entries"])
    latest = max(origins, key=lambda origin: origin["date"])
    provenance = mark({**latest, "entries": entries})
    return HEAD + "\n".join(rows) + "\n\n" + "\n\n".join(sections) + f"\n\n{provenance}\n"


def row(result: AutoResult, lines: int) -> list[str]:
    """Return the cells about one family: lines, description, times, speed-ups and minutes."""
    classical = result.classical
    learned = result.learned
    learned_cell = "–"
    if learned is not None:
        learned_cell = f"{learned.name}: {1e3 * learned.unseen.seconds:.3g}"
    speedups = attribution(result.contestants, classical, learned)
    return [
        str(lines),
        result.words,
        f"{classical.name}: {1e3 * classical.unseen.seconds:.3g}",
        learned_cell,
        *(f"{speedups[part]:.2f}×" if part in speedups else "–" for part in ATTRIBUTED),
        f"{result.seconds / 60:.1f}",
    ]


if __name__ == "__main__":
    main()
