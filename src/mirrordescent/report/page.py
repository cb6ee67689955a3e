"""A page in one HTML file, which loads no other files."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from mirrordescent._internal.extras import requires_extra
from mirrordescent._internal.files import whole
from mirrordescent.report.charts import chart, table
from mirrordescent.report.content import (
    Comparison,
    Content,
    Dots,
    Panel,
    Picture,
    Section,
    Strip,
    Table,
)
from mirrordescent.report.pictures import embed
from mirrordescent.report.versions import versions

SCRIPTS = (
    "vendor/hammer.min.js",
    "vendor/chart.umd.min.js",
    "vendor/chartjs-plugin-zoom.min.js",
    "templates/page.js",
)
NUMBER = re.compile(r"[-−+<]?\d[\d.,]*(e[-+]?\d+)?( ?(%|s|ms|dB|px|×|±.*))?|–")
"""Cells that are numbers, with units."""


@dataclass(frozen=True)
class Page:
    """A page with the results of a command or an experiment.

    Args:
        title: Title.
        lead: Introduction, in a sentence or two.
        sections: Sections with results.
        settings: Settings of the run. The page adds versions and processor.
    """

    title: str
    lead: str = ""
    sections: Sequence[Section] = ()
    settings: Mapping[str, object] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        """Write the page and return its path. An existing page is replaced as a whole."""
        html = self.html()
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial:
            # A file name that is not valid Unicode must not cost the page.
            partial.write_text(html, encoding="utf-8", errors="backslashreplace")
        return path

    def html(self) -> str:
        """Return the page as HTML."""
        with requires_extra("pages", "Writing a page", "Jinja2"):
            from jinja2 import Environment, PackageLoader, StrictUndefined
            from markupsafe import Markup

        environment = Environment(
            loader=PackageLoader("mirrordescent.report"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return environment.get_template("page.html").render(
            title=self.title,
            lead=self.lead,
            sections=[_section(section) for section in self.sections],
            facts={"Settings": self.settings, "Made with": versions()},
            style=Markup(_resource("templates/page.css")),
            scripts=[Markup(_resource(name)) for name in SCRIPTS],
        )


def _section(section: Section) -> dict[str, Any]:
    """Return the variables of the template for a section."""
    return {"title": section.title, "note": section.note, **_view(section.content)}


def _view(content: Content) -> dict[str, Any]:
    """Return the variables of the template for the content of a section."""
    match content:
        case Comparison():
            scenes = {scene: _embed_all(named) for scene, named in content.scenes.items()}
            return {"kind": "comparison", "comparison": content, "scenes": scenes}
        case Panel() | Dots():
            return {
                "kind": "chart",
                "quantity": content.quantity,
                "chart": chart(content),
                "table": _cells(table(content)),
            }
        case Strip():
            first = list(content.pictures).index(content.first)
            return {"kind": "strip", "pictures": _embed_all(content.pictures), "first": first}
        case Table():
            return {"kind": "table", "table": _cells(content)}
        case _:
            held = sum(claim.holds is True for claim in content)
            return {"kind": "claims", "claims": content, "held": held}


def _embed_all(pictures: Mapping[str, Picture]) -> dict[str, dict[str, Any]]:
    return {name: embed(picture) for name, picture in pictures.items()}


def _cells(content: Table) -> dict[str, Any]:
    """Return the cells of a table, and for each column whether most of its cells are numbers.

    Columns of numbers are right-aligned.
    """
    columns = list(zip(*content.rows, strict=True)) or [()] * len(content.columns)
    numeric = []
    for column in columns:
        numbers = sum(bool(NUMBER.fullmatch(cell)) for cell in column)
        numeric.append(2 * numbers > len(column))
    return {"columns": content.columns, "rows": content.rows, "numbers": numeric}


def _resource(name: str) -> str:
    """Return the text of a file of this package."""
    return files("mirrordescent.report").joinpath(name).read_text(encoding="utf-8")
