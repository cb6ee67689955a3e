"""What an experiment found: curves, claims with the numbers measured, and the files they are written to."""

from __future__ import annotations

import csv
import json
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Curve:
    """One method's certified gaps: iterations (points,), seconds (points,), gaps (points, problems)."""

    name: str
    iterations: list[int]
    seconds: list[float]
    gaps: Tensor

    def mean_at(self, iteration: int) -> float:
        """Return the mean gap at an iteration: not a number if a run has failed by then."""
        return float(self.gaps[self.iterations.index(iteration)].mean())


@dataclass(frozen=True)
class Claim:
    """A statement, whether it holds here, and the numbers that say so."""

    statement: str
    holds: bool
    measured: str


@dataclass
class Result:
    """The outcome of one experiment at one scale."""

    name: str
    title: str
    settings: dict[str, Any]
    panels: dict[str, list[Curve]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path, title: str) -> Result:
        """Read settings and curves back, so that claims and figures can be made again without the runs."""
        summary = json.loads((folder / "summary.json").read_text())
        result = cls(summary["experiment"], title, summary["settings"])
        cells: dict[tuple[str, str], dict[int, tuple[float, list[float]]]] = {}
        with (folder / "curves.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                points = cells.setdefault((row["panel"], row["method"]), {})
                points.setdefault(int(row["iteration"]), (float(row["seconds"]), []))[1].append(float(row["gap"]))
        for (panel, method), points in cells.items():
            seconds, gaps = zip(*points.values(), strict=True)
            curve = Curve(method, list(points), list(seconds), torch.tensor(gaps, dtype=torch.float64))
            result.panels.setdefault(panel, []).append(curve)
        return result

    def write(self, folder: Path) -> None:
        """Write curves.csv, claims.md, summary.json and a figure per panel as PNG and SVG."""
        from mirrordescent.experiments.figure import draw_panel

        folder.mkdir(parents=True, exist_ok=True)
        self._write_curves(folder / "curves.csv")
        (folder / "claims.md").write_text(self.claims_table())
        (folder / "summary.json").write_text(json.dumps(self.summary(), indent=2, ensure_ascii=False) + "\n")
        for name, curves in self.panels.items():
            draw_panel(curves, f"{self.title}: {name}", folder / name.replace(" ", "-"))

    def claims_table(self) -> str:
        """Return the claims as a Markdown table."""
        rows = [
            f"| {c.statement} | {'holds' if c.holds else '**does not hold**'} | {c.measured} |" for c in self.claims
        ]
        return "\n".join([f"# {self.title}", "", "| claim | here | measured |", "|---|---|---|", *rows, ""])

    def summary(self) -> dict[str, Any]:
        """Return settings, claims and the mean gaps of all curves as plain data."""
        return {
            "experiment": self.name,
            "settings": self.settings,
            "machine": {
                "processor": platform.machine(),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            },
            "claims": [vars(claim) for claim in self.claims],
            "mean_gaps": {
                panel: {
                    c.name: dict(zip(map(str, c.iterations), _rounded(c.gaps.mean(1)), strict=True)) for c in curves
                }
                for panel, curves in self.panels.items()
            },
        }

    def _write_curves(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["panel", "method", "iteration", "seconds", "problem", "gap"])
            for panel, curves in self.panels.items():
                for curve in curves:
                    for k, seconds, gaps in zip(curve.iterations, curve.seconds, curve.gaps.tolist(), strict=True):
                        for problem, gap in enumerate(gaps):
                            writer.writerow([panel, curve.name, k, f"{seconds:.4g}", problem, f"{gap:.6g}"])


def _rounded(values: Tensor) -> list[float | None]:
    return [float(f"{value:.4g}") if value == value else None for value in values.tolist()]
