"""A page in one HTML file, which shows the same wherever it is taken: it loads nothing."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from mirrordescent._internal.extras import requires_extra
from mirrordescent._internal.files import whole
from mirrordescent.report.charts import chart, table
from mirrordescent.report.content import Comparison, Content, Dots, Panel, Section, Strip, Table
from mirrordescent.report.pictures import embed
from mirrordescent.report.versions import versions

SCRIPTS = (
    "vendor/hammer.min.js",
    "vendor/chart.umd.min.js",
    "vendor/chartjs-plugin-zoom.min.js",
    "templates/page.js",
)
NUMBER = re.compile(r"[-−+<]?\d[\d.,]*(e[-+]?\d+)?( ?(%|s|ms|dB|px|×|±.*))?|–")


@dataclass(frozen=True)
class Page:
    """What a demonstration, an experiment or a solve has to show.

    Args:
        title: what it is.
        lead: what was done, in a sentence or two.
        sections: what came out.
        settings: what it was done with; versions and processor are added to them.
    """

    title: str
    lead: str = ""
    sections: Sequence[Section] = ()
    settings: Mapping[str, object] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        """Write the page, or leave what was there; return where it is."""
        html = self.html()
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial:
            partial.write_text(html, encoding="utf-8")
        return path

    def html(self) -> str:
        """Return the page as text."""
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
            sections=[
                {"title": s.title, "note": s.note, **_view(s.content)} for s in self.sections
            ],
            facts={"Settings": self.settings, "Made with": versions()},
            style=Markup(_resource("templates/page.css")),
            scripts=[Markup(_resource(name)) for name in SCRIPTS],
        )


def _view(content: Content) -> dict[str, Any]:
    """Return what the template needs of one section's content."""
    match content:
        case Comparison():
            all_scenes = content.scenes.items()
            scenes = {
                scene: {name: embed(each) for name, each in named.items()}
                for scene, named in all_scenes
            }
            return {"kind": "comparison", "comparison": content, "scenes": scenes}
        case Panel() | Dots():
            numbers = _cells(table(content))
            return {
                "kind": "chart",
                "quantity": content.quantity,
                "chart": chart(content),
                "table": numbers,
            }
        case Strip():
            pictures = {name: embed(each) for name, each in content.pictures.items()}
            return {
                "kind": "strip",
                "pictures": pictures,
                "first": list(pictures).index(content.first),
            }
        case Table():
            return {"kind": "table", "table": _cells(content)}
        case _:
            return {
                "kind": "claims",
                "claims": content,
                "held": sum(claim.holds is True for claim in content),
            }


def _cells(numbers: Table) -> dict[str, Any]:
    """Return a table, and which of its columns are numbers for the most part, to be set flush
    right.
    """
    columns = list(zip(*numbers.rows, strict=True)) or [()] * len(numbers.columns)
    aligned = [
        2 * sum(bool(NUMBER.fullmatch(cell)) for cell in column) > len(column) for column in columns
    ]
    return {"columns": numbers.columns, "rows": numbers.rows, "numbers": aligned}


def _resource(name: str) -> str:
    return files("mirrordescent.report").joinpath(name).read_text(encoding="utf-8")
