"""What the documentation takes from the project as it is built: claims, pictures, entries of the
zoo, help texts.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import pkgutil
import re
import sys
import textwrap
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import mirrordescent
from mirrordescent import zoo
from mirrordescent._internal.deprecation import MOVED_MODULES, RENAMED_ATTRIBUTES
from mirrordescent.cli import main
from mirrordescent.report import Table
from mirrordescent_experiments.paper_claims import paper_claims
from mirrordescent_experiments.rebuild import from_summary, stored_results
from mirrordescent_experiments.result import VERDICTS, Result, claims_table

DOCS = Path(__file__).parent
RESULTS = DOCS / "results"
HELP_WIDTH = 96
ALIAS = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")


def experiments() -> dict[str, dict[str, Any]]:
    """Return the stored summaries, by experiment."""
    return {
        path.parent.name: json.loads(path.read_text())
        for path in sorted(RESULTS.glob("*/summary.json"))
    }


class Overview(SphinxDirective):
    """A table of all experiments that were run, and how many of their claims hold."""

    def run(self) -> list[nodes.Node]:
        """Count the claims."""
        rows = []
        for name, summary in experiments().items():
            claims = summary["claims"]
            settings = summary["settings"]
            held = (
                f"{sum(claim['holds'] is True for claim in claims)} of {len(claims)}"
                if claims
                else "none made"
            )
            title = f"[{summary['title']}](results/{name}/claims.md)"
            rows.append((title, f"`{name}`", str(settings.get("scale", "")), held))
        return self.parse_text_to_nodes(
            Table(("experiment", "name", "scale", "claims that hold"), rows).markdown()
        )


class PaperClaims(SphinxDirective):
    """Every claim of the paper, judged by the stored summaries."""

    def run(self) -> list[nodes.Node]:
        """Judge them."""
        rows = [
            (c.statement, VERDICTS.get(c.verdict, c.verdict), c.measured)
            for c in paper_claims(RESULTS)
        ]
        return self.parse_text_to_nodes(Table(("the paper", "here", "measured"), rows).markdown())


class Tally(SphinxDirective):
    """Count the verdicts on the paper's claims, and the entries whose map contributes."""

    def run(self) -> list[nodes.Node]:
        """Write one sentence for each count."""
        verdicts = [claim.verdict for claim in paper_claims(RESULTS)]
        held = verdicts.count("holds")
        failed = verdicts.count("does not hold")
        text = (
            f"- The paper makes {len(verdicts)} claims about its experiments. Here {held} hold, "
            f"{failed} do not hold, and {len(verdicts) - held - failed} are not decided."
        )
        gains = [zoo.card(name).gain for name in zoo.list()]
        geometry = gains.count("geometry")
        schedules = gains.count("schedules")
        text += (
            f"\n- The zoo has {geometry + schedules} learned methods with a map. In {geometry} of "
            f"them the map contributes to the gain; in {schedules} the step sizes alone explain it."
        )
        return self.parse_text_to_nodes(text)


class Renamed(SphinxDirective):
    """List the public names and the modules that were renamed, from the table of deprecations."""

    def run(self) -> list[nodes.Node]:
        """Import every package, since each declares its own renamed names."""
        for module in pkgutil.iter_modules(mirrordescent.__path__, "mirrordescent."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        names = []
        for module_name, renamed in sorted(RENAMED_ATTRIBUTES.items()):
            place = module_name.removeprefix("mirrordescent.")
            for old, new in renamed.items():
                target = new.replace(":", ".") if ":" in new else f"{module_name}.{new}"
                names.append((f"`{place}.{old}`", f"`{target.removeprefix('mirrordescent.')}`"))
        modules = [(f"`{old}`", f"`{new}`") for old, new in sorted(MOVED_MODULES.items())]
        tables = [Table(("name", "new place"), names), Table(("module", "new module"), modules)]
        return self.parse_text_to_nodes("\n\n".join(table.markdown() for table in tables))


class Gains(SphinxDirective):
    """Where the gain of every entry comes from, as it was measured."""

    def run(self) -> list[nodes.Node]:
        """Take the table from the stored summary."""
        path = RESULTS / "attribution" / "summary.json"
        self.env.note_dependency(str(path))
        if not path.exists():
            return self.parse_text_to_nodes(
                "Not measured yet: `mirrordescent reproduce attribution`."
            )
        return self.parse_text_to_nodes(
            Table(**json.loads(path.read_text())["tables"]["gains"]).markdown()
        )


class Claims(SphinxDirective):
    """The claims of an experiment with the numbers measured, and some of its figures.

    Options:
        starting: Beginning of the statements to show; all statements by default.
        without: Text of the statements to leave out.
        pictures: File names of figures. They are drawn from the stored summary.
    """

    required_arguments = 1
    option_spec = dict.fromkeys(("starting", "without", "pictures"), directives.unchanged)

    def run(self) -> list[nodes.Node]:
        """Return a table of claims, the figures, and links to all claims and curves."""
        name = self.arguments[0]
        path = RESULTS / name / "summary.json"
        self.env.note_dependency(str(path))
        if not path.exists():
            return self.parse_text_to_nodes(
                f"`mirrordescent reproduce {name}` runs this experiment; "
                "it has not been run at the standard scale yet."
            )
        result = from_summary(path)
        beginning = self.options.get("starting", "")
        claims = [claim for claim in result.claims if claim.statement.startswith(beginning)]
        if "without" in self.options:
            left_out = self.options["without"]
            claims = [claim for claim in claims if left_out not in claim.statement]
        parts = [claims_table(claims).markdown()] if claims else []
        figures = [Path(file).stem for file in self.options.get("pictures", "").split()]
        parts += [f"![{name}: {figure}]({self.figure(result, figure)})" for figure in figures]
        parts.append(
            f"[All claims](results/{name}/claims.md) and "
            f"<a href='results/{name}/index.html'>all curves</a>."
        )
        return self.parse_text_to_nodes("\n\n".join(parts))

    def figure(self, result: Result, name: str) -> str:
        """Draw a figure into the folder of the build, and return its address for this page."""
        folder = Path(self.env.doctreedir) / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{result.name}-{name}.svg"
        result.draw(name, path)
        page = Path(self.env.doc2path(self.env.docname))
        return Path(os.path.relpath(path, page.parent)).as_posix()


class Diagnoses(SphinxDirective):
    """Links to the diagnoses of the zoo's entries, with the first lines of each."""

    def run(self) -> list[nodes.Node]:
        """List the pages there are."""
        pages = sorted(RESULTS.glob("diagnosis/*/diagnosis.md"))
        rows = []
        for page in pages:
            found = [line for line in page.read_text().splitlines() if line.startswith("- the map")]
            verdicts = "; ".join(line.removeprefix("- the map, ") for line in found)
            rows.append((f"[{page.parent.name}]({page.relative_to(DOCS)})", verdicts))
        return self.parse_text_to_nodes(Table(("map", "in short"), rows).markdown())


class Zoo(SphinxDirective):
    """A table of the learned methods that ship with the package."""

    def run(self) -> list[nodes.Node]:
        """Read the cards."""
        cards = {name: zoo.card(name) for name in zoo.list()}
        rows = [(f"`{name}`", card.description, card.gain) for name, card in cards.items()]
        return self.parse_text_to_nodes(
            Table(("name", "what it is", "its gain is"), rows).markdown()
        )


class Help(SphinxDirective):
    """The help text of a command, as it is printed."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Ask the command line itself."""
        text = help_of(self.arguments[0].split() if self.arguments else [])
        return [nodes.literal_block(text, text, language="none")]


def help_of(command: list[str]) -> str:
    """Return what ``mirrordescent COMMAND --help`` prints, without colours."""
    printed = io.StringIO()
    with (
        patch.object(sys, "argv", ["mirrordescent", *command, "--help"]),
        patch.dict(os.environ, COLUMNS=str(HELP_WIDTH), NO_COLOR="1"),
        redirect_stdout(printed),
        suppress(SystemExit),
    ):
        main()
    return "\n".join(wrapped(line) for line in printed.getvalue().strip().splitlines())


def wrapped(line: str) -> str:
    """Break a long line of running text."""
    return (
        "\n".join(textwrap.wrap(line, HELP_WIDTH, replace_whitespace=False)) if line.strip() else ""
    )


def escape_bars(_: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keep |x| in docstrings from being read as the name of a substitution, except in blocks of
    code.
    """
    code = False
    for i, line in enumerate(lines):
        if line.lstrip().startswith(".. code-block::"):
            code = True
        elif line and not line[0].isspace():
            code = line.startswith(">>>") or (code and line.startswith("..."))
        if not code:
            parts = line.split("``")
            lines[i] = "``".join(
                part if odd % 2 else part.replace("|", "\\|") for odd, part in enumerate(parts)
            )


def clean_signature(
    _: Sphinx,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Name types by their aliases, and say of classes without arguments that they have none, not
    that they take any.
    """
    if signature == "(*args: Any, **kwargs: Any)":
        return "()", returns
    return tuple(text and ALIAS.sub(r"\1", text) for text in (signature, returns))  # type: ignore[return-value]


def trim_code(_: Sphinx, doctree: nodes.document) -> None:
    """Remove the empty line that ends an example for the sake of doctest."""
    for block in doctree.findall(nodes.literal_block):
        text = block.astext().rstrip()
        block.rawsource = text
        block[:] = [nodes.Text(text)]


def write_pages(app: Sphinx, error: Exception | None) -> None:
    """Write the HTML pages of the experiments into the build."""
    if error is None and app.builder.name == "html":
        for name, result in stored_results(RESULTS).items():
            result.page().write(Path(app.outdir) / "results" / name / "index.html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register all of it."""
    for name, directive in {
        "overview": Overview,
        "paper-claims": PaperClaims,
        "tally": Tally,
        "renamed": Renamed,
        "gains": Gains,
        "claims": Claims,
        "diagnoses": Diagnoses,
        "zoo": Zoo,
        "help": Help,
    }.items():
        app.add_directive(name, directive)
    app.connect("autodoc-process-docstring", escape_bars)
    app.connect("autodoc-process-signature", clean_signature)
    app.connect("doctree-read", trim_code)
    app.connect("build-finished", write_pages)
    return {"parallel_read_safe": True}
