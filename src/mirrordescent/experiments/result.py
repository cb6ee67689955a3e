"""What an experiment found: curves, tables, pictures, claims with the numbers measured, and the files they go to."""

from __future__ import annotations

import csv
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

GAP = "gap f(x) − f*, certified"


@dataclass(frozen=True)
class Curve:
    """One method's quantity along its runs: iterations (points,), seconds (points,), values (points, runs)."""

    name: str
    iterations: list[int]
    seconds: list[float]
    values: Tensor

    def mean_at(self, iteration: int) -> float:
        """Return the mean at an iteration: not a number if a run has failed by then."""
        return float(self.values[self.iterations.index(iteration)].mean())

    def of_run(self, run: int) -> Curve:
        """Return the curve of one run alone."""
        return Curve(self.name, self.iterations, self.seconds, self.values[:, run : run + 1])


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes."""

    curves: list[Curve]
    quantity: str = GAP
    against: Literal["iterations", "seconds"] = "iterations"
    scales: tuple[Literal["log", "linear"], Literal["log", "linear"]] = ("log", "log")

    def __getitem__(self, name: str) -> Curve:
        """Return the curve of a method, whatever setting its name goes on with in brackets."""
        return next(curve for curve in self.curves if curve.name.split(" (")[0] == name)


@dataclass(frozen=True)
class Claim:
    """A statement, whether it holds here, and the numbers that say so."""

    statement: str
    holds: bool
    measured: str


@dataclass(frozen=True)
class Table:
    """Numbers in rows and columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass
class Result:
    """The outcome of one experiment at one scale."""

    name: str
    title: str
    settings: dict[str, Any]
    panels: dict[str, Panel] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    pictures: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    groups: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write curves.csv, claims.md, summary.json, and figures of panels, pictures and groups as PNG and SVG."""
        from mirrordescent.experiments.figure import draw_groups, draw_panel, draw_pictures

        folder.mkdir(parents=True, exist_ok=True)
        self._write_curves(folder / "curves.csv")
        (folder / "claims.md").write_text(self.page())
        (folder / "summary.json").write_text(json.dumps(self.summary(), indent=2, ensure_ascii=False) + "\n")
        for name, panel in self.panels.items():
            draw_panel(panel, f"{self.title}: {name}", folder / file_name(name))
        for name, pictures in self.pictures.items():
            draw_pictures(pictures, folder / file_name(name))
        for name, groups in self.groups.items():
            draw_groups(groups, name, f"{self.title}: {name}", folder / file_name(name))

    def page(self) -> str:
        """Return claims and tables as Markdown."""
        parts = [f"# {self.title}"]
        if self.claims:
            rows = [(c.statement, "holds" if c.holds else "**does not hold**", c.measured) for c in self.claims]
            parts.append(Table(("claim", "here", "measured"), rows).markdown())
        for name, table in self.tables.items():
            parts += [f"## {name}", table.markdown()]
        return "\n\n".join(parts) + "\n"

    def summary(self) -> dict[str, Any]:
        """Return settings, claims, tables and the means of all curves as plain data."""
        return {
            "experiment": self.name,
            "title": self.title,
            "settings": self.settings,
            "machine": {
                "processor": platform.machine(),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            },
            "claims": [vars(claim) for claim in self.claims],
            "tables": {name: vars(table) for name, table in self.tables.items()},
            "means": {
                name: {
                    c.name: dict(zip(map(str, c.iterations), _rounded(c.values.mean(1)), strict=True))
                    for c in panel.curves
                }
                for name, panel in self.panels.items()
            },
            "groups": {
                name: {group: _rounded(values) for group, values in groups.items()}
                for name, groups in self.groups.items()
            },
        }

    def _write_curves(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["panel", "method", "iteration", "seconds", "run", "value"])
            for name, panel in self.panels.items():
                for curve in panel.curves:
                    for k, seconds, values in zip(curve.iterations, curve.seconds, curve.values.tolist(), strict=True):
                        for run, value in enumerate(values):
                            writer.writerow([name, curve.name, k, f"{seconds:.4g}", run, f"{value:.6g}"])


def file_name(name: str) -> str:
    """Return the name of a panel as the name of a file."""
    return name.replace(" ", "-").replace(",", "")


def _rounded(values: Tensor) -> list[float | None]:
    return [float(f"{value:.4g}") if value == value else None for value in values.tolist()]
