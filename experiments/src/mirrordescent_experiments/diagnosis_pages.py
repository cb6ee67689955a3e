"""Pages of diagnoses with figures and provenance, as the documentation shows them.

python -m mirrordescent_experiments.diagnosis_pages ENTRY PROBLEM docs/results/diagnosis
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

from mirrordescent.diagnosis import diagnose_entry, diagnosis_page
from mirrordescent.diagnosis.diagnosis_page import FIGURES, figure_lines
from mirrordescent.theory.diagnosis_results import Diagnosis, Run
from mirrordescent_experiments.provenance import Provenance, mark, recorded

MODULE = "mirrordescent_experiments.diagnosis_pages"
COLUMNS = 3
DPI = 60


def write(diagnosis: Diagnosis, folder: str | Path, provenance: Provenance | None = None) -> Path:
    """Write diagnosis.md, bounds.png, energies.png and errors.png to a folder; return the page."""
    page = diagnosis_page.write(diagnosis, folder, figures=".png")
    page.with_suffix(".html").unlink()
    for figure, quantity in FIGURES.items():
        draw(diagnosis.runs, figure, quantity, page.with_name(f"{figure}.png"))
    if provenance is not None:
        text = page.read_text(encoding="utf-8")
        page.write_text(f"{text}\n{mark(provenance)}\n", encoding="utf-8")
    return page


def draw(runs: dict[str, Run], figure_name: str, quantity: str, path: Path) -> None:
    """Draw the mean series of every run, three runs in a row."""
    columns = min(len(runs), COLUMNS)
    rows = math.ceil(len(runs) / COLUMNS)
    figure = Figure(figsize=(5 * columns, 4 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes in grid[len(runs) :]:
        axes.set_axis_off()
    for axes, (name, run) in zip(grid, runs.items(), strict=False):
        for label, style, iterations, series in figure_lines(run)[figure_name]:
            means = torch.nanmean(series.double(), 1)
            positive = torch.where(means > 0, means, torch.nan)  # for the logarithmic axis
            points = iterations or range(1, len(series) + 1)
            axes.plot(points, positive.tolist(), style, label=label)
        axes.set(title=name, xscale="log", yscale="log", xlabel="k", ylabel=quantity)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize="small")
            continue
        reason = "no theorem applies" if run.bound_check is None else "no errors: the run is exact"
        axes.text(0.5, 0.5, reason, ha="center", transform=axes.transAxes)
    figure.savefig(path, dpi=DPI)


def main(entry: str, problem: str, folder: Path) -> None:
    """Diagnose an entry of the zoo, and write its page to FOLDER/ENTRY."""
    with recorded("0", MODULE) as provenance:
        diagnosis = diagnose_entry(entry, problem)
    print(write(diagnosis, folder / entry, provenance))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
