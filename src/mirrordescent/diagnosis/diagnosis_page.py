"""The page of a diagnosis: Markdown with tables, and curves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from mirrordescent.methods.base import Theorem
from mirrordescent.report import Curve, Page, Panel, Section, Table
from mirrordescent.theory.assumptions import ANSWERS, Verdict
from mirrordescent.theory.diagnosis_results import Diagnosis, Run
from mirrordescent.theory.equivariance import Defects
from mirrordescent.theory.recording import storage_of, theorem_of, unwrap

SYMBOLS = {"holds": "holds", "does not hold": "**does not hold**", "not known": "*not known*"}
ERROR: dict[Theorem | None, str] = {
    "descent": "‖U‖_*",
    "accelerated": "⟨∇ψ(z̃) − ∇ψ(ẑ), z̃ − x*⟩, whose largest is M",
    "accelerated stochastic": "⟨∇f(x), U⟩, whose largest is K",
}
TERMS = {
    "error_pairing": "⟨U, x − x*⟩",
    "dual_error": "⟨∇ψ(x̂) − ∇ψ(x), x* − x⟩",
    "primal_error": "⟨∇f(x̂), x − x̂⟩",
    "noise_pairing": "⟨Δ, x − x*⟩",
}
UPDATES = {
    "dual": "‖(∇M∘∇M* − I)y‖",
    "primal": "‖(∇M*∘∇M − I)x‖",
    "dual_update": "dual update",
    "primal_update": "primal update",
    "dual_total": "dual updates, summed",
    "primal_total": "primal updates, summed",
}
FIGURES = {"bounds": "gap", "energies": "energy", "errors": "error terms"}
"""Figures of a page, and the quantities on their vertical axes."""


class Line(NamedTuple):
    """A line in a figure of a run.

    Args:
        label: Name of the series.
        style: Line style in the notation of Matplotlib.
        iterations: Iterations of the points; 1, 2, … if it is empty.
        series: Values (points, batch).
    """

    label: str
    style: str
    iterations: Sequence[int]
    series: Tensor


def write(diagnosis: Diagnosis, folder: str | Path, figures: str = "") -> Path:
    """Write the page diagnosis.md and the curves diagnosis.html to a folder.

    Args:
        diagnosis: Diagnosis to write.
        folder: Folder to write to.
        figures: Suffix of the pictures that the page shows, such as ".png". By default the page
            shows none, and refers to diagnosis.html.

    Returns:
        Path of diagnosis.md.
    """
    page = Path(folder) / "diagnosis.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    curves_page(diagnosis).write(page.with_suffix(".html"))
    page.write_text(markdown(diagnosis, figures), encoding="utf-8")
    return page


def curves_page(diagnosis: Diagnosis) -> Page:
    """Return a page with the bounds, energies and error terms of all runs as curves."""
    sections = []
    for figure, quantity in FIGURES.items():
        for name, run in diagnosis.runs.items():
            curves = [_curve(line) for line in figure_lines(run)[figure]]
            if curves:
                sections.append(Section(f"{figure.capitalize()}: {name}", Panel(curves, quantity)))
    lead = "Means over the problems. The page diagnosis.md has the verdicts and all numbers."
    return Page(f"{diagnosis.name} on {diagnosis.problem}", lead, sections)


def _curve(line: Line) -> Curve:
    iterations = list(line.iterations or range(1, len(line.series) + 1))
    return Curve(line.label, iterations, [0.0] * len(iterations), line.series)


def markdown(diagnosis: Diagnosis, figures: str = "") -> str:
    """Return the page as Markdown.

    Args:
        diagnosis: Diagnosis to describe.
        figures: Suffix of the pictures to show; by default the page refers to diagnosis.html.
    """
    of_problem = diagnosis.problem_constants
    sections = [
        f"# {diagnosis.name} on {diagnosis.problem}",
        "; ".join(f"{key}: {value}" for key, value in diagnosis.settings.items()) + ".",
        "*Holds* means proven, or checked in full. *Not known* means that samples were checked and "
        "none contradicts the assumption. A theorem applies to a run only if all its assumptions "
        "on the problem, the map and the run hold.",
        "\n".join(
            f"- {label}: {_in_short(part)}" for label, part in diagnosis.verdicts_by_subject.items()
        ),
        "## The problem",
        _table(
            "constant",
            "value",
            rows=(("L_f", of_problem.smoothness), ("μ", of_problem.strong_convexity)),
        ),
        _verdicts(diagnosis.problem_verdicts),
        *_map(diagnosis),
        *(section for name, run in diagnosis.runs.items() for section in _run(name, run)),
        "## Bounds against gaps",
        _figure("bounds", figures),
        "Lines are means over the problems. The verdict on a run uses the a-priori bound. Its "
        "constants are known before the run, or are 1.25 times the largest sampled value. The "
        "pathwise bound uses the values along the run, and grows with a run that diverges. If "
        "an assumption does not hold, a bound is a number without a guarantee.",
        "## Energies",
        _figure("energies", figures),
        "The proofs say that these quantities fall, or grow slowly. Where the slack of the "
        "inequality is not drawn, it is negative: the step did worse than the lemma guarantees, "
        "which can happen if an assumption does not hold.",
        "## Error terms",
        "Mean absolute values. Runs without a curve make no error: with an exact inverse, or in a "
        "dual-stored method, they are exact mirror descent. Dashed lines compare errors of both "
        "kinds of update (section 5.1).",
        _figure("errors", figures),
        *_equivariance(diagnosis.equivariance),
    ]
    return "\n\n".join(sections) + "\n"


def _figure(name: str, suffix: str) -> str:
    if not suffix:
        return "Curves: [diagnosis.html](diagnosis.html)"
    return f"![{name}]({name}{suffix})"


def _in_short(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts that are not "holds" in one line."""
    failed = [verdict.assumption for verdict in verdicts if verdict.answer == ANSWERS[False]]
    unknown = [verdict.assumption for verdict in verdicts if verdict.answer == ANSWERS[None]]
    if failed:
        return f"**does not hold:** {'; '.join(failed)}."
    if unknown:
        return f"nothing was found against it; not known: {'; '.join(unknown)}."
    return "everything holds."


def _map(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.inconsistency:
        yield "## Inconsistency of the map"
        yield "Distance of the backward map from the inverse of the forward map, over samples."
        rows = []
        for where, inconsistency in diagnosis.inconsistency.items():
            for kind in ("primal", "relative primal", "dual", "relative dual"):
                distances = getattr(inconsistency, kind.replace(" ", "_"))
                rows.append((where, kind, f"{_mean(distances)}, {_largest(distances)}"))
        yield _table("at", "kind", "mean, largest", rows=rows)
    for storage, geometry in diagnosis.geometries.items():
        c = geometry.constants
        yield f"## The map, as {storage}-stored methods use it"
        yield f"**{geometry.identity_comparison}**"
        yield _table(
            "constant",
            "value",
            rows=(("α", c.alpha), ("L_ψ", c.smoothness), ("L_ψ*", c.dual_smoothness)),
        )
        yield _verdicts(geometry.verdicts)


def _run(name: str, run: Run) -> Iterator[str]:
    record = run.record
    bounded = run.bound_check
    theorem = theorem_of(run.method)
    stored = f", {storage_of(run.method)}-stored" if theorem else ""
    ended = ", ".join(sorted({str(status) for status in run.solution.statuses}))
    rows = [("gap, first and last", f"{_mean(record['gap'][0])}, {_mean(record['gap'][-1])}")]
    if bounded is not None:
        far = f"{_mean(record['divergence'][0])}, {_largest(record['divergence'])}"
        rows.append((f"{bounded.quantity}, last", _mean(bounded.measured[-1])))
        rows.append((f"its a-priori bound, {bounded.theorem}", _mean(bounded.bound[-1])))
        rows.append(
            ("its pathwise bound, from the values along the run", _mean(bounded.pathwise[-1]))
        )
        further = bounded.other_bounds.items()
        rows += [
            (name, each if isinstance(each, str) else _mean(each[-1])) for name, each in further
        ]
        rows.append(("divergence from the minimiser, first and largest (M_ψ)", far))
    if "energy" in record:
        rows.append(
            (
                "energy, first and last",
                f"{_mean(record['energy'][0])}, {_mean(record['energy'][-1])}",
            )
        )
    largest = {key: f"largest {label}" for key, label in _error_terms(run).items()}
    if theorem == "accelerated":
        largest["distance"] = "largest distance ‖z̃ − ẑ‖ from the exact iterate"
    largest["displacement"] = "σ², the largest ‖G + U‖_*²"
    rows += [(label, _largest(record[key])) for key, label in largest.items() if key in record]
    if run.updates is not None:
        rows += [
            (f"{UPDATES[key]}, last", _mean(series[-1]))
            for key, series in run.updates.series.items()
        ]
    yield f"## {name}"
    yield f"{type(unwrap(run.method)).__name__}{stored}; ended: {ended}. Means over the problems."
    yield _table("quantity", "value", rows=rows)
    yield _verdicts(run.verdicts)
    if run.advice is not None:
        head, *reasons = str(run.advice).splitlines()
        yield f"The theory supports: `{head}`. {' '.join(reasons)}"


def _equivariance(defects: Defects | None) -> Iterator[str]:
    if defects is None:
        return
    yield "## Equivariance"
    yield (
        f"Defect ‖Ω(g·x) − g·Ω(x)‖ / ‖Ω(x)‖ of the map under {defects.group}. A map that is tied "
        "along the orbits of the group is equivariant whatever it learns: its defect is rounding."
    )
    columns = defects.by_name.values()
    labels = dict.fromkeys(label for column in columns for label in column)
    rows = [
        (label, *(f"{column[label]:.2g}" if label in column else "" for column in columns))
        for label in labels
    ]
    yield _table("", *defects.by_name, rows=rows)


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    return _table(
        "assumption",
        "",
        "why",
        rows=[(v.assumption, SYMBOLS[v.answer], v.reason) for v in verdicts],
    )


def _table(*head: str, rows: Iterable[Sequence[object]]) -> str:
    return Table(head, [[str(cell) for cell in row] for row in rows]).markdown()


def _mean(numbers: Tensor) -> str:
    return f"{float(numbers.nanmean()):.3g}"


def _largest(numbers: Tensor) -> str:
    return f"{float(numbers.nan_to_num().abs().max()):.3g}"


def _error_terms(run: Run) -> dict[str, str]:
    """Return the error terms that are not zero throughout: {series: description}."""
    record = run.record
    labels = {"error": ERROR.get(theorem_of(run.method), ""), **TERMS}
    return {
        key: label
        for key, label in labels.items()
        if key in record and bool(record[key].nan_to_num().any())
    }


def figure_lines(run: Run) -> dict[str, list[Line]]:
    """Return the lines of a run in each figure."""
    record = run.record
    bounded = run.bound_check
    gaps = [Line("f(x_k) − f*", "-", (), record["gap"][1:])]
    energies = [
        Line(name, "-", (), record[name][1:]) for name in ("energy", "divergence") if name in record
    ]
    errors = [Line(label, "-", (), record[key].abs()) for key, label in _error_terms(run).items()]
    if bounded is not None:
        gaps = [
            Line(bounded.quantity, "-", (), bounded.measured),
            Line("a-priori bound", "--", (), bounded.bound),
            Line("pathwise bound", ":", (), bounded.pathwise),
        ]
        for name, series in bounded.other_bounds.items():
            if isinstance(series, Tensor):
                gaps.append(Line(name, "-.", (), series))
        if bounded.slack is not None:
            energies.append(Line("slack of the inequality", ":", (), bounded.slack))
    if run.updates is not None:
        iterations = [k + 1 for k in run.updates.iterations]
        for key, series in run.updates.series.items():
            errors.append(Line(UPDATES[key], "--", iterations, series))
    return {"bounds": gaps, "energies": energies, "errors": errors}
