"""Find a solver for every example and write the results.

``python -m examples`` measures the examples that were not measured yet with their present source
and the same time, one after the other. ``python -m examples NAME --minutes 3`` measures one of
them. An interrupted search continues where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import mirrordescent as md
from mirrordescent._internal.files import whole
from mirrordescent.automatic import AutoResult
from mirrordescent.automatic.outside import EXACT, Entry
from mirrordescent.cli.problem_files import load_family
from mirrordescent.learn import ProblemFamily
from mirrordescent.racing import Contestant, Timing
from mirrordescent_experiments.provenance import Provenance, mark, recorded

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results"
STORE = "own-problems.json"
PAGE = "own-problems.md"
ACCURACY = 1e-2
NOT_LEARNED = ("video",)
"""Examples in which no solver is learned."""

NAMES = sorted(path.stem for path in HERE.glob("[a-z]*.py") if path.stem not in NOT_LEARNED)

HEAD = """# Your own problems

Written by `python -m examples`, which calls `md.auto` for each family of problems in the folder
`examples`. Times are for 64 problems solved together, in milliseconds: by the wall clock, and in
CPU time of one thread in parentheses. They are medians of runs in turn. None of these problems was
used for learning, tuning or choosing a solver; pictures come from other photographs.

"""

BUSY = """**Other processes were running.** CPU times are the results of this page, and verdicts
rest on them. Wall-clock times are longer than on a quiet machine.

"""

TABLE = """## To a relative gap of 0.01

| problems | best classical | best learned | fastest of another package | fastest of all | minutes |
|---|---|---|---|---|---|
"""

EXACT_TABLE = """
## To a relative gap of 1e-6

| problems | solver of this library | fastest of another package | fastest of all |
|---|---|---|---|
"""


def main() -> None:
    """Measure the named examples, or all that were not measured yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"examples to measure: {', '.join(NAMES)}")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for each example")
    parser.add_argument(
        "--out", type=Path, default=Path("out/examples"), help="folder for the solvers"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the page and its data"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = arguments.names or not_measured(arguments.results, arguments.minutes)
    for name in names:
        measure(name, arguments.minutes, arguments.out, arguments.results)


def not_measured(results: Path, minutes: float) -> list[str]:
    """Return the examples without a result for their present source and this time."""
    stored = read(results)
    return [name for name in NAMES if stored.get(name, {}).get("key") != key_of(name, minutes)]


def key_of(name: str, minutes: float) -> str:
    """Return the digest of an example's source and of the time of a search."""
    source = (HERE / f"{name}.py").read_text()
    return hashlib.sha256(f"{minutes:g} {source}".encode()).hexdigest()[:16]


def read(results: Path) -> dict[str, Any]:
    """Return the stored results in the present form."""
    store = results / STORE
    stored: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    return {name: each for name, each in stored.items() if name in NAMES and "key" in each}


def measure(name: str, minutes: float, out: Path, results: Path) -> None:
    """Find a solver for one example and update the page."""
    path = HERE / f"{name}.py"
    results.mkdir(parents=True, exist_ok=True)
    with recorded("0", f"examples.{name}") as origin:
        found = md.auto(
            load_family(path), name=name, accuracy=ACCURACY, minutes=minutes, out=out, say=print
        )
    draw(found, load_family(path), results / f"own-{name}.png")
    result = {"key": key_of(name, minutes), "origin": origin, **as_data(found)}
    # Read the store only now: another process may have written to it meanwhile.
    stored = {**read(results), name: result}
    with whole(results / STORE) as partial:
        partial.write_text(json.dumps(stored, indent=1, sort_keys=True))
    with whole(results / PAGE) as partial:
        partial.write_text(page(stored))


def as_data(found: AutoResult) -> dict[str, Any]:
    """Return what the page shows about a search."""
    outside = found.outside
    batch = {} if outside is None else outside.batch
    return {
        "words": found.words,
        "classical": of_contestant(found.classical),
        "learned": of_contestant(found.learned),
        "rough": [of_entry(each) for each in batch.get(ACCURACY, [])],
        "exact": [of_entry(each) for each in batch.get(EXACT, [])],
        "busy": found.busy,
        "minutes": found.seconds / 60,
    }


def of_contestant(contestant: Contestant | None) -> dict[str, Any] | None:
    """Return the name and times of a method."""
    if contestant is None or contestant.timing is None:
        return None
    return {"name": contestant.name, **milliseconds(contestant.timing)}


def of_entry(entry: Entry) -> dict[str, Any]:
    """Return the name, origin and times of a solver."""
    assert entry.timing is not None
    return {"name": entry.name, "outside": entry.outside, **milliseconds(entry.timing)}


def milliseconds(timing: Timing) -> dict[str, float]:
    """Return the median times by both clocks."""
    return {"wall": 1e3 * timing.median("wall"), "cpu": 1e3 * timing.median("cpu")}


def draw(found: AutoResult, family: ProblemFamily, file: Path, count: int = 4) -> None:
    """Draw starts and solutions of some validation problems, as images or as bars."""
    problems = family.validation(count)
    solution = md.solve(problems.problem, found.method, problems.x0, iterations=500, progress=False)
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
    figure.savefig(file, dpi=100)


def page(stored: dict[str, Any]) -> str:
    """Return the page of all results, with the provenance of the latest."""
    busy = BUSY if any(each["busy"] for each in stored.values()) else ""
    rows = [row(name, stored[name]) for name in sorted(stored)]
    exact_rows = [exact_row(name, stored[name]) for name in sorted(stored)]
    sections = [
        f"**{name}.** {stored[name]['words']}\n\n![{name}](own-{name}.png)"
        for name in sorted(stored)
    ]
    tables = TABLE + "\n".join(rows) + "\n" + EXACT_TABLE + "\n".join(exact_rows)
    verdicts = "\n\n## Verdicts\n\n" + "\n\n".join(sections)
    return f"{HEAD}{busy}{tables}{verdicts}\n\n{mark(provenance(stored))}\n"


def provenance(stored: dict[str, Any]) -> Provenance:
    """Return the latest provenance, with the entries of all."""
    origins = [result["origin"] for result in stored.values()]
    entries: dict[str, Any] = {}
    for origin in origins:
        entries.update(origin["entries"])
    latest: Provenance = max(origins, key=lambda origin: origin["date"])
    return {**latest, "entries": entries}


def row(name: str, result: dict[str, Any]) -> str:
    """Return the row of one family for the moderate accuracy."""
    rough = result["rough"]
    cells = [
        name,
        cell(result["classical"]),
        cell(result["learned"]),
        cell(fastest(rough, outside=True)),
        cell(fastest(rough)),
        f"{result['minutes']:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def exact_row(name: str, result: dict[str, Any]) -> str:
    """Return the row of one family for the high accuracy."""
    exact = result["exact"]
    own = cell(fastest(exact, outside=False))
    other = cell(fastest(exact, outside=True))
    return "| " + " | ".join([name, own, other, cell(fastest(exact))]) + " |"


def fastest(entries: list[dict[str, Any]], outside: bool | None = None) -> dict[str, Any] | None:
    """Return the solver with the least CPU time, of this library, of others, or of all."""
    able = [each for each in entries if outside is None or each["outside"] == outside]
    return min(able, key=lambda each: each["cpu"], default=None)


def cell(solver: dict[str, Any] | None) -> str:
    """Return the name and times of a solver; a dash if there is none."""
    if solver is None or not math.isfinite(solver["wall"]):
        return "–"
    return f"{solver['name']}: {solver['wall']:.3g} ({solver['cpu']:.3g})"


if __name__ == "__main__":
    main()
