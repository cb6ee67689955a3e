"""What an experiment found: curves, tables, pictures, claims with the numbers measured, and the
files they go to.
"""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from mirrordescent._internal.files import whole
from mirrordescent.report import (
    GAP,
    Claim,
    Comparison,
    Curve,
    Dots,
    Page,
    Panel,
    Picture,
    Section,
    Table,
)

VERDICTS = {
    "does not hold": "**does not hold**",
    "not decided": "*not decided*",
    "not measured": "*not measured*",
}
KEPT = (
    10,
    50,
    100,
    500,
    1000,
    2000,
)  # iterations of which every run is kept in the summary, besides the last
__all__ = ["GAP", "Claim", "Curve", "Panel", "Result", "Table", "file_name"]


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
    provenance: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write index.html, curves.csv, claims.md, summary.json, and panels, pictures and groups as
        PNG and SVG.

        They are written beside the folder first, and moved into it one by one: whenever this ends,
        every file is whole.
        """
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self._write(partial)
        folder.mkdir(exist_ok=True)
        for file in sorted(partial.iterdir()):
            with whole(folder / file.name) as there:
                file.replace(there)
        partial.rmdir()

    def _write(self, folder: Path) -> None:
        from mirrordescent_experiments.figure import draw_groups, draw_panel, draw_pictures

        self._write_curves(folder / "curves.csv")
        (folder / "claims.md").write_text(self.markdown())
        (folder / "summary.json").write_text(self.as_json(), encoding="utf-8")
        for name, panel in self.panels.items():
            draw_panel(panel, f"{self.title}: {name}", folder / file_name(name))
        for name, pictures in self.pictures.items():
            draw_pictures(pictures, folder / file_name(name))
        for name, groups in self.groups.items():
            draw_groups(groups, name, f"{self.title}: {name}", folder / file_name(name))
        self.page().write(folder / "index.html")

    def page(self) -> Page:
        """Return everything as an HTML page: claims first, then the evidence."""
        sections = [Section("The paper's claims", self.claims)] if self.claims else []
        sections += [Section(_sentence(name), table) for name, table in self.tables.items()]
        sections += [
            Section(_sentence(name), _compared(name, each)) for name, each in self.pictures.items()
        ]
        sections += [Section(_sentence(name), panel) for name, panel in self.panels.items()]
        sections += [
            Section(_sentence(name), Dots(groups, name)) for name, groups in self.groups.items()
        ]
        command = (
            f"mirrordescent reproduce {self.name} --scale {self.settings.get('scale', 'standard')}"
        )
        return Page(
            self.title,
            f"What “{command}” found. Curves are means over all runs.",
            sections,
            self.settings,
        )

    def markdown(self) -> str:
        """Return claims and tables as Markdown."""
        parts = [f"# {self.title}", origin(self.provenance)]
        if self.claims:
            rows = [
                (c.statement, VERDICTS.get(c.verdict, c.verdict), c.measured) for c in self.claims
            ]
            parts.append(Table(("claim", "here", "measured"), rows).markdown())
        for name, table in self.tables.items():
            parts += [f"## {name}", table.markdown()]
        return "\n\n".join(parts) + "\n"

    def as_json(self) -> str:
        """Return the summary as it is stored."""
        return json.dumps(self.summary(), indent=2, ensure_ascii=False) + "\n"

    def summary(self) -> dict[str, Any]:
        """Return settings, claims, tables and the means of all curves as plain data."""
        return {
            "experiment": self.name,
            "title": self.title,
            "settings": self.settings,
            "provenance": self.provenance or None,
            "claims": [vars(claim) for claim in self.claims],
            "tables": {name: vars(table) for name, table in self.tables.items()},
            "means": {
                name: {
                    c.name: dict(
                        zip(map(str, c.iterations), _rounded(c.values.mean(1)), strict=True)
                    )
                    for c in panel.curves
                }
                for name, panel in self.panels.items()
            },
            "runs": {
                name: {c.name: _kept(c) for c in panel.curves}
                for name, panel in self.panels.items()
                if not name.startswith("one image")
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
                    for k, seconds, values in zip(
                        curve.iterations, curve.seconds, curve.values.tolist(), strict=True
                    ):
                        for run, value in enumerate(values):
                            writer.writerow(
                                [name, curve.name, k, f"{seconds:.4g}", run, f"{value:.6g}"]
                            )


def origin(provenance: dict[str, Any]) -> str:
    """Say in a sentence where results come from."""
    if not provenance:
        return "*Of which commit, entries and date these results are is not known: they are to be run again.*"
    entries = ", ".join(f"{name} {sha}" for name, sha in provenance["entries"].items()) or "none"
    made = f"Commit {provenance['commit']}, {provenance['date']}; {provenance['machine']}; seeds {provenance['seeds']}."
    return f"*{made} Entries: {entries}.*"


def file_name(name: str) -> str:
    """Return the name of a panel as the name of a file."""
    return name.replace(" ", "-").replace(",", "").replace(":", "")


def _sentence(name: str) -> str:
    """Begin with a capital letter, and leave the others as they are."""
    return name[:1].upper() + name[1:]


def _compared(scene: str, pictures: dict[str, Tensor]) -> Comparison:
    """Lay the last picture over the one before it: the result over what it was made from."""
    names = list(pictures)
    return Comparison(
        {scene: {name: Picture(image) for name, image in pictures.items()}}, before=names[-2:][0]
    )


def _kept(curve: Curve) -> dict[str, list[float | None]]:
    """Return every run at some iterations, so that intervals can be had without running it again;
    of few runs only.
    """
    if curve.values.shape[1] > 64:
        return {}
    kept = [k for k in curve.iterations if k in KEPT or k == curve.iterations[-1]]
    return {str(k): _rounded(curve.values[curve.iterations.index(k)]) for k in kept}


def _rounded(values: Tensor) -> list[float | None]:
    return [float(f"{value:.4g}") if value == value else None for value in values.tolist()]
