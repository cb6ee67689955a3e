"""The page of a diagnosis: Markdown with tables, and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from mirrordescent.methods.base import Theorem
from mirrordescent.report import Table
from mirrordescent.theory.assumptions import ANSWERS, Verdict
from mirrordescent.theory.diagnosis_results import Diagnosis, Run
from mirrordescent.theory.equivariance import Defects
from mirrordescent.theory.recording import storage_of, theorem_of, unwrap
from mirrordescent_lab.provenance import Provenance, mark

SYMBOLS = {"holds": "holds", "does not hold": "**does not hold**", "not known": "*not known*"}
COLUMNS = 3
DPI = 60
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
Line: TypeAlias = tuple[str, str, Sequence[int], Tensor]
"""What a figure shows of a run: a name, a style, iterations, and a series (points, batch)."""


def write(diagnosis: Diagnosis, folder: str | Path, provenance: Provenance | None = None) -> Path:
    """Write diagnosis.md, bounds.png, energies.png and errors.png to a folder; return the page."""
    page = Path(folder) / "diagnosis.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    for figure, quantity in (("bounds", "gap"), ("energies", "energy"), ("errors", "error terms")):
        _draw(diagnosis.runs, figure, quantity, page.with_name(f"{figure}.png"))
    marked = "" if provenance is None else f"\n{mark(provenance)}\n"
    page.write_text(markdown(diagnosis) + marked, encoding="utf-8")
    return page


def markdown(diagnosis: Diagnosis) -> str:
    """Return the page as text."""
    of_problem = diagnosis.problem_constants
    sections = [
        f"# {diagnosis.name} on {diagnosis.problem}",
        "; ".join(f"{key}: {value}" for key, value in diagnosis.settings.items()) + ".",
        "In short. *Holds* means proven or checked in full; *not known*, sampled with nothing found against it. "
        "A theorem promises something of a run only if all that it assumes of problem, map and run holds.",
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
        "![bounds](bounds.png)",
        "Lines are means over the problems. A run is judged by the a-priori bound: its constants are known before the "
        "run, or are the largest at the points sampled, times 1.25. The pathwise bound is made of what was met along "
        "the run, and grows with one that diverges. Where assumptions do not hold, a bound is a number, not a promise.",
        "## Energies",
        "![energies](energies.png)",
        "What the proofs say must fall, or grow slowly. Where the slack of the inequality is not drawn it is negative: "
        "the step did worse than the lemma promises, which it may where an assumption fails.",
        "## Error terms",
        "Absolute values, on average. Runs without a curve make no error: with an exact inverse, or dual-stored, they "
        "are exact mirror descent. Dashed lines compare the errors of both kinds of update, section 5.1.",
        "![errors](errors.png)",
        *_equivariance(diagnosis.equivariance),
    ]
    return "\n\n".join(sections) + "\n"


def _in_short(verdicts: Sequence[Verdict]) -> str:
    failed, unknown = (
        "; ".join(v.assumption for v in verdicts if v.answer == ANSWERS[a]) for a in (False, None)
    )
    if failed:
        return f"**does not hold:** {failed}."
    return (
        f"nothing was found against it; not known: {unknown}." if unknown else "everything holds."
    )


def _map(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.inconsistency:
        yield "## Inconsistency of the map"
        yield "How far the way back is from the inverse of the way there, mean and largest over samples."
        kinds = ("primal", "relative primal", "dual", "relative dual")
        found = diagnosis.inconsistency.items()
        at = [
            (where, kind, getattr(each, kind.replace(" ", "_")))
            for where, each in found
            for kind in kinds
        ]
        yield _table(
            "at",
            "kind",
            "mean, largest",
            rows=[(*names, f"{_mean(n)}, {_largest(n)}") for *names, n in at],
        )
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
            ("its pathwise bound, of what was met along the run", _mean(bounded.pathwise[-1]))
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
        f"By how much the map fails to commute with {defects.group}: ‖Ω(g·x) − g·Ω(x)‖ / ‖Ω(x)‖. "
        "What is tied along the orbits of the group commutes with it whatever it learns: there the defect is rounding."
    )
    columns = defects.by_name.values()
    whats = dict.fromkeys(what for found in columns for what in found)
    rows = [
        (what, *(f"{found[what]:.2g}" if what in found else "" for found in columns))
        for what in whats
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
    """Return the error terms that are not zero throughout: {series: what it is}."""
    record = run.record
    labels = {"error": ERROR.get(theorem_of(run.method), ""), **TERMS}
    return {
        key: label
        for key, label in labels.items()
        if key in record and bool(record[key].nan_to_num().any())
    }


def _lines(run: Run) -> dict[str, list[Line]]:
    """Return what each figure shows of a run."""
    record = run.record
    bounded = run.bound_check
    gaps: list[Line] = [("f(x_k) − f*", "-", (), record["gap"][1:])]
    energies: list[Line] = [
        (n, "-", (), record[n][1:]) for n in ("energy", "divergence") if n in record
    ]
    errors: list[Line] = [
        (label, "-", (), record[key].abs()) for key, label in _error_terms(run).items()
    ]
    if bounded is not None:
        both = [
            ("a-priori bound", "--", (), bounded.bound),
            ("pathwise bound", ":", (), bounded.pathwise),
        ]
        gaps = [(bounded.quantity, "-", (), bounded.measured), *both]
        gaps += [
            (name, "-.", (), each)
            for name, each in bounded.other_bounds.items()
            if isinstance(each, Tensor)
        ]
        if bounded.slack is not None:
            energies.append(("slack of the inequality", ":", (), bounded.slack))
    if run.updates is not None:
        at = [k + 1 for k in run.updates.iterations]
        errors += [(UPDATES[key], "--", at, series) for key, series in run.updates.series.items()]
    return {"bounds": gaps, "energies": energies, "errors": errors}


def _draw(runs: dict[str, Run], figure_name: str, quantity: str, path: Path) -> None:
    """Draw the means of some series of every run, three runs to a row."""
    from matplotlib.figure import Figure

    columns = min(len(runs), COLUMNS)
    rows = math.ceil(len(runs) / COLUMNS)
    figure = Figure(figsize=(5 * columns, 4 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes in grid[len(runs) :]:
        axes.set_axis_off()
    for axes, (name, run) in zip(grid, runs.items(), strict=False):
        for label, style, at, series in _lines(run)[figure_name]:
            means = torch.nanmean(series.double(), 1)
            shown = torch.where(
                means > 0, means, torch.nan
            )  # a logarithmic axis can show no others
            axes.plot(at or range(1, len(series) + 1), shown.tolist(), style, label=label)
        axes.set(title=name, xscale="log", yscale="log", xlabel="k", ylabel=quantity)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize="small")
        else:
            nothing = (
                "no errors: the run is exact"
                if run.bound_check is not None
                else "there is no theorem"
            )
            axes.text(0.5, 0.5, nothing, ha="center", transform=axes.transAxes)
    figure.savefig(path, dpi=DPI)
