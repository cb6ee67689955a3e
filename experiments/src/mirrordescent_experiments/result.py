"""The result of an experiment: curves, tables, pictures and claims, and the files they go to."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

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
from mirrordescent_experiments.figure import draw_groups, draw_panel, draw_pictures

VERDICTS = {
    "does not hold": "**does not hold**",
    "not decided": "*not decided*",
    "not decided at this budget": "*not decided at this budget*",
    "not measured": "*not measured*",
}
# Iterations at which the summary has every run, besides the last iteration.
KEPT = (10, 50, 100, 500, 1000, 2000)
WIDTH = "reference width"
"""Setting with the mean width of the intervals that are proven to contain the minima."""
MOST_RUNS = 100  # a panel with more runs has only means and ranges in the summary
Range: TypeAlias = tuple[Tensor, Tensor]
"""The lowest and the highest value of all runs, (points,) each."""

__all__ = ["GAP", "Claim", "Curve", "Panel", "Range", "Result", "Table", "file_name"]


@dataclass
class Result:
    """The result of an experiment at one scale.

    Args:
        name: Name of the experiment.
        title: Title of its page.
        settings: Settings of the experiment.
        panels: Curves by the names of their panels.
        tables: Tables by name.
        pictures: Images by the names of rows and of images.
        groups: Groups of numbers by name.
        claims: The paper's claims with the numbers measured.
        provenance: Commit, date, machine and entries of the zoo.
        ranges: Ranges of the curves of stored panels, whose curves are means.
    """

    name: str
    title: str
    settings: dict[str, Any]
    panels: dict[str, Panel] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    pictures: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    groups: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, dict[str, Range]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write index.html, curves.csv, claims.md, summary.json and all figures to a folder.

        They are written to another folder first, and moved one by one: no file is ever incomplete.
        """
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self._write(partial)
        folder.mkdir(exist_ok=True)
        for file in sorted(partial.iterdir()):
            with whole(folder / file.name) as target:
                file.replace(target)
        partial.rmdir()

    def _write(self, folder: Path) -> None:
        self._write_curves(folder / "curves.csv")
        (folder / "claims.md").write_text(self.markdown(), encoding="utf-8")
        (folder / "summary.json").write_text(self.as_json(), encoding="utf-8")
        for figure in self.figures():
            self.draw(figure, folder / f"{figure}.png", folder / f"{figure}.svg")
        self.page().write(folder / "index.html")

    def figures(self) -> dict[str, str]:
        """Return the panels, rows of pictures and groups that can be drawn, by file name."""
        return {file_name(name): name for name in (*self.panels, *self.pictures, *self.groups)}

    def draw(self, figure: str, *paths: Path) -> None:
        """Draw a figure.

        Args:
            figure: File name of a panel, a row of pictures or a group, without its suffix.
            paths: Files to write; their suffixes are .png or .svg.
        """
        name = self.figures()[figure]
        title = f"{self.title}: {name}"
        if name in self.panels:
            draw_panel(self.panels[name], title, paths, self.ranges.get(name, {}))
        elif name in self.pictures:
            draw_pictures(self.pictures[name], paths)
        else:
            draw_groups(self.groups[name], name, title, paths)

    def page(self) -> Page:
        """Return all content as an HTML page: claims first, then the evidence."""
        sections = []
        if self.claims:
            sections.append(Section("The paper's claims", self.claims))
        for name, table in self.tables.items():
            sections.append(Section(_sentence(name), table))
        for name, pictures in self.pictures.items():
            sections.append(Section(_sentence(name), _comparison(name, pictures)))
        for name, panel in self.panels.items():
            sections.append(Section(_sentence(name), panel))
        for name, groups in self.groups.items():
            sections.append(Section(_sentence(name), Dots(groups, name)))
        scale = self.settings.get("scale", "standard")
        command = f"mirrordescent reproduce {self.name} --scale {scale}"
        lead = f"Result of “{command}”. Curves are means over all runs."
        return Page(self.title, lead, sections, self.settings)

    def markdown(self) -> str:
        """Return claims and tables as Markdown."""
        parts = [f"# {self.title}", origin(self.provenance)]
        if self.claims:
            parts.append(claims_table(self.claims).markdown())
        for name, table in self.tables.items():
            parts += [f"## {name}", table.markdown()]
        return "\n\n".join(parts) + "\n"

    def as_json(self) -> str:
        """Return the summary as text, with a line for every list of numbers."""
        return _compact(json.dumps(self.summary(), indent=1, ensure_ascii=False)) + "\n"

    def summary(self) -> dict[str, Any]:
        """Return settings, claims, tables and curves as plain data.

        Of every curve there are the means at all iterations, the seconds if they are the
        horizontal axis, the ranges over all runs, and every run at a few iterations.
        """
        summary: dict[str, Any] = {
            "experiment": self.name,
            "title": self.title,
            "settings": self.settings,
            "provenance": self.provenance or None,
            "claims": [vars(claim) for claim in self.claims],
            "tables": {name: vars(table) for name, table in self.tables.items()},
            "panels": {},
            "means": {},
            "seconds": {},
            "ranges": {},
            "runs": {},
            "groups": {},
        }
        for name, panel in self.panels.items():
            summary["panels"][name] = {
                "quantity": panel.quantity,
                "against": panel.against,
                "scales": list(panel.scales),
            }
            summary["means"][name] = {curve.name: _means(curve) for curve in panel.curves}
            if panel.against == "seconds":
                summary["seconds"][name] = {
                    curve.name: [_rounded_number(second) for second in curve.seconds]
                    for curve in panel.curves
                }
            if ranges := self._ranges(name, panel):
                summary["ranges"][name] = ranges
            if not name.startswith("one image"):
                summary["runs"][name] = {curve.name: _kept_runs(curve) for curve in panel.curves}
        for name, groups in self.groups.items():
            summary["groups"][name] = {group: _rounded(each) for group, each in groups.items()}
        return summary

    def _ranges(self, name: str, panel: Panel) -> dict[str, list[list[float | None]]]:
        """Return [lowest values, highest values] of the curves with several runs."""
        ranges = dict(self.ranges.get(name, {}))
        for curve in panel.curves:
            if curve.values.shape[1] > 1:
                ranges[curve.name] = (curve.values.amin(1), curve.values.amax(1))
        return {method: [_rounded(low), _rounded(high)] for method, (low, high) in ranges.items()}

    def _write_curves(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["panel", "method", "iteration", "seconds", "run", "value"])
            for name, panel in self.panels.items():
                for curve in panel.curves:
                    writer.writerows(_rows(name, curve))


def claims_table(claims: list[Claim]) -> Table:
    """Return a table of claims with their verdicts and the numbers measured."""
    rows = [
        (claim.statement, VERDICTS.get(claim.verdict, claim.verdict), claim.measured)
        for claim in claims
    ]
    return Table(("claim", "here", "measured"), rows)


def origin(provenance: dict[str, Any]) -> str:
    """Return a sentence on the origin of results."""
    if not provenance:
        return (
            "*Of which commit, entries and date these results are is not known: "
            "they are to be run again.*"
        )
    entries = ", ".join(f"{name} {sha}" for name, sha in provenance["entries"].items()) or "none"
    hashes = ", ".join(f"{name} {sha}" for name, sha in provenance.get("code", {}).items())
    code = f" Code: {hashes}." if hashes else ""
    return (
        f"*Commit {provenance['commit']}, {provenance['date']}; {provenance['machine']}; "
        f"seeds {provenance['seeds']}. Entries: {entries}.{code}*"
    )


def file_name(name: str) -> str:
    """Return the name of a panel as the name of a file, without a suffix.

    >>> file_name("gap, against seconds")
    'gap-against-seconds'
    """
    return name.replace(" ", "-").replace(",", "").replace(":", "")


def _sentence(name: str) -> str:
    """Return a name with a capital first letter, and the other letters as they are."""
    return name[:1].upper() + name[1:]


def _comparison(scene: str, images: dict[str, Tensor]) -> Comparison:
    """Return images of which the last one lies over the one before it."""
    names = list(images)
    pictures = {name: Picture(image) for name, image in images.items()}
    return Comparison({scene: pictures}, before=names[-2:][0])


def _rows(panel: str, curve: Curve) -> list[list[object]]:
    """Return the rows of a curve in curves.csv."""
    rows: list[list[object]] = []
    points = zip(curve.iterations, curve.seconds, curve.values.tolist(), strict=True)
    for iteration, seconds, values in points:
        for run, value in enumerate(values):
            rows.append([panel, curve.name, iteration, f"{seconds:.4g}", run, f"{value:.6g}"])
    return rows


def _means(curve: Curve) -> dict[str, float | None]:
    means = _rounded(curve.values.mean(1))
    return {str(k): mean for k, mean in zip(curve.iterations, means, strict=True)}


def _kept_runs(curve: Curve) -> dict[str, list[float | None]]:
    """Return every run at a few iterations, so that intervals can be computed later."""
    if curve.values.shape[1] > MOST_RUNS:
        return {}
    runs = {}
    for index, k in enumerate(curve.iterations):
        if k in KEPT or k == curve.iterations[-1]:
            runs[str(k)] = _rounded(curve.values[index])
    return runs


def _rounded(values: Tensor) -> list[float | None]:
    return [_rounded_number(value) for value in values.tolist()]


def _rounded_number(value: float) -> float | None:
    if value != value:
        return None
    return float(f"{value:.4g}")


def _compact(text: str) -> str:
    r"""Put every innermost list or table of numbers in JSON on one line.

    >>> print(_compact('{\n "a": [\n  1.0,\n  null\n ]\n}'))
    {
     "a": [1.0, null]
    }
    """
    number = r"(?:-?(?:\d[\d.e+-]*|Infinity)|null|NaN)"
    item = rf'(?:"\d+": )?{number}'
    pattern = re.compile(rf"([\[{{])\s+({item}(?:,\s+{item})*)\s+([\]}}])")
    return pattern.sub(lambda m: m[1] + re.sub(r",\s+", ", ", m[2]) + m[3], text)
