"""The page of benchmarks: a summary and a section for every benchmark.

Sections are stored in ``benchmarks.json``, with the targets of the project and whether they are
met. The page ``benchmarks.md`` is written from this file, without the targets. Long tables of a
section are on pages of their own.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from mirrordescent._internal.files import whole
from mirrordescent.report import Table

MET = "met"
NOT_MET = "**NOT MET**"
TARGETS = ("target", "targets")
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
ESCAPED_BAR = re.compile(r"(?<!\\)\|")
HEAD = "# Benchmarks"
DETAILS = {
    "benchmarks/maps": (
        "Benchmarks: methods with a map",
        "The time of image-tv over that of other",
    ),
    "benchmarks/times": ("Benchmarks: times to a relative gap", "Milliseconds:\n"),
}
"""Pages of details, with their titles and the beginnings of the parts of a section they show."""
HOW = """**How this was measured.** All methods are measured in turn in one run, so that ratios are
comparable; times depend on the machine. `make bench` measures everything and writes this page,
which takes about an hour. `python -m benchmarks NAME …` measures some sections and leaves the
others as they are. The environment variable `OMP_NUM_THREADS` sets the number of threads; some
sections compare one thread with two."""

Cells: TypeAlias = list[list[str]]


@dataclass(frozen=True)
class Target:
    """A target of the project and whether it is met.

    Args:
        row: First cell of the row that it is about.
        target: The target, if the table states it.
        met: Whether it is met.
    """

    row: str
    target: str
    met: bool


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Args:
        text: Markdown without targets.
        targets: Targets of its tables.
    """

    text: str
    targets: tuple[Target, ...] = ()


def section_of(measured: str) -> Section:
    """Return a section from the text of a benchmark, whose tables have targets and verdicts."""
    targets: list[Target] = []

    def without_targets(match: re.Match[str]) -> str:
        header, *rows = _cells(match[0])
        targets.extend(_targets(header, rows))
        columns = [i for i in range(len(header)) if not _is_internal(header, rows, i)]
        shown = [[row[i] for i in columns] for row in rows]
        return Table([header[i] for i in columns], shown).markdown() + "\n"

    text = TABLE.sub(without_targets, measured.strip() + "\n")
    return Section(text.strip(), tuple(targets))


def _cells(markdown: str) -> Cells:
    """Return the header and the rows of a table, without the line between them."""
    lines = [line.strip()[1:-1] for line in markdown.strip().splitlines()]
    rows = [[_unescaped(cell) for cell in ESCAPED_BAR.split(line)] for line in lines]
    return [rows[0], *rows[2:]]


def _unescaped(cell: str) -> str:
    return cell.strip().replace("\\|", "|")


def _is_internal(header: Sequence[str], rows: Cells, column: int) -> bool:
    """Return whether a column has targets or verdicts."""
    if header[column] in TARGETS:
        return True
    cells = {row[column] for row in rows}
    return bool(cells & {MET, NOT_MET}) and cells <= {MET, NOT_MET, ""}


def _targets(header: Sequence[str], rows: Cells) -> list[Target]:
    """Return a target for every verdict, with the last target stated before it."""
    targets = []
    for row in rows:
        stated = ""
        for name, cell in zip(header, row, strict=True):
            if name in TARGETS:
                stated = cell
            elif cell in (MET, NOT_MET):
                targets.append(Target(row[0], stated, cell == MET))
    return targets


def read(path: Path) -> dict[str, Section]:
    """Return the stored sections by title; none if the file does not exist."""
    if not path.exists():
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {
        title: Section(each["text"], tuple(Target(**target) for target in each["targets"]))
        for title, each in stored.items()
    }


def write(sections: dict[str, Section], folder: Path) -> None:
    """Write benchmarks.json, benchmarks.md and the pages of details to a folder."""
    stored = {title: asdict(section) for title, section in sections.items()}
    _write(folder / "benchmarks.json", json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    _write(folder / "benchmarks.md", markdown(sections))
    for name in DETAILS:
        _write(folder / f"{name}.md", details(sections, name))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def markdown(sections: dict[str, Section]) -> str:
    """Return the page: summary, method of measurement, and all sections."""
    parts = [HEAD, summary(sections), HOW]
    for title, section in sections.items():
        shown, moved = _split(section.text)
        links = " and ".join(f"[{DETAILS[name][0]}]({name}.md)" for name in moved)
        parts += [f"## {title}", shown, f"More tables: {links}." if links else ""]
    return "\n\n".join(part for part in parts if part) + "\n"


def details(sections: dict[str, Section], name: str) -> str:
    """Return a page of details."""
    parts = [f"# {DETAILS[name][0]}", "[Benchmarks](../benchmarks.md) explains the measurements."]
    for section in sections.values():
        _, moved = _split(section.text)
        if name in moved:
            parts.append(moved[name].replace("\n### ", "\n## "))
    return "\n\n".join(parts) + "\n"


def _split(text: str) -> tuple[str, dict[str, str]]:
    """Return the part of a section for the main page, and the parts for the pages of details."""
    begins = {name: text.find(f"\n{begin}") for name, (_, begin) in DETAILS.items()}
    found = sorted((begin, name) for name, begin in begins.items() if begin >= 0)
    if not found:
        return text.strip(), {}
    ends = [*(begin for begin, _ in found[1:]), len(text)]
    moved = {name: text[begin:end].strip() for (begin, name), end in zip(found, ends, strict=True)}
    return text[: found[0][0]].strip(), moved


def summary(sections: dict[str, Section]) -> str:
    """Return a list of the main numbers of the sections that were measured."""
    lines = []
    for title, summarise in SUMMARIES.items():
        if title in sections:
            lines.append(f"- {summarise(_tables(sections[title].text))}")
    return "\n".join(lines)


def _tables(text: str) -> list[Cells]:
    return [_cells(match[0]) for match in TABLE.finditer(text)]


def _numbers(table: Cells, column: str) -> list[float]:
    """Return the numbers of a column, without cells of words."""
    index = table[0].index(column)
    found = (re.match(r"-?[\d.]+", row[index]) for row in table[1:])
    return [float(match[0]) for match in found if match]


def _cell(table: Cells, row: str, column: str) -> str:
    index = table[0].index(column)
    return next(each[index] for each in table[1:] if each[0] == row)


def _time_to_gap(tables: list[Cells]) -> str:
    ratios = _numbers(tables[0], "0.001")
    coarse = _numbers(tables[0], "0.1")
    slower = _numbers(tables[1], "times slower at 0.001")
    return (
        f"**Photographs.** On {len(ratios)} kinds of total-variation problems, image-tv takes "
        f"{min(ratios):.2g} to {max(ratios):.2g} times as long as the better one of tuned PDHG and "
        f"Condat–Vũ to reach a relative gap of 0.001 (median {statistics.median(ratios):.2g}). For "
        f"a gap of 0.1 it takes {min(coarse):.2g} to {max(coarse):.2g} times as long: at low "
        "accuracy, and for a single small picture, a classical solver is the better choice. "
        f"Other packages take {min(slower):.0f} to {max(slower):.0f} times as long as image-tv."
    )


def _optimiser_step(tables: list[Cells]) -> str:
    ratio = _cell(tables[0], "AMD diagonal / Adam fused", "10 M")
    foreach = _cell(tables[0], "AMD diagonal / Adam foreach", "10 M")
    return (
        f"**Optimisers.** With 10 million parameters, a step of AMD takes {ratio} times as long as "
        f"one of fused Adam, and {foreach} times as long as one of Adam's foreach implementation."
    )


def _matrix_step(tables: list[Cells]) -> str:
    alone, training = tables
    muon = [float(cell) for cell in next(row for row in alone[1:] if row[0] == "torch's Muon")[1:]]
    whole_steps = _numbers(training, "fused AdamW")
    return (
        f"**Matrix geometry.** A step of Preconditioned takes {min(muon):.2g} to {max(muon):.2g} "
        "times as long as one of torch's Muon. A whole training step takes "
        f"{min(whole_steps):.2g} to {max(whole_steps):.2g} times as long as with fused AdamW, most "
        "for wide layers with small minibatches."
    )


def _network_unrolling(tables: list[Cells]) -> str:
    label = "checkpointed / nested create_graph, 20 networks, N = 40"
    memory = _cell(tables[0], f"{label}, memory", "measured")
    time = _cell(tables[0], f"{label}, time", "measured")
    return (
        f"**Learning.** A checkpointed meta-step over networks needs {memory} times the memory and "
        f"{time} times the time of nested automatic differentiation."
    )


SUMMARIES: dict[str, Callable[[list[Cells]], str]] = {
    "Time to a relative gap": _time_to_gap,
    "A step of an optimiser": _optimiser_step,
    "A step with matrix geometry": _matrix_step,
    "A meta-step over networks": _network_unrolling,
}
