"""The page of a diagnosis: Markdown with tables, and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mirrordescent.methods import AMD, ASMD, MD, SMD
from mirrordescent.theory.assumptions import Verdict

if TYPE_CHECKING:
    from mirrordescent.theory.diagnosis import Diagnosis, Geometry, Run
    from mirrordescent.theory.energies import Record
    from mirrordescent.theory.geometry import Storage

SYMBOLS = {"holds": "holds", "does not hold": "**does not hold**", "not known": "*not known*"}
COLUMNS, DPI = 3, 60
ERROR = {
    "MD": "‖U‖_*",
    "SMD": "‖U‖_*",
    "AMD": "⟨∇ψ(z̃) − ∇ψ(ẑ), z̃ − x*⟩, whose largest is M",
    "ASMD": "⟨∇f(x), U⟩, whose largest is K",
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


def write(diagnosis: Diagnosis, folder: Path) -> Path:
    """Write diagnosis.md, bounds.png, energies.png and errors.png; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    _draw_bounds(diagnosis, folder / "bounds.png")
    _draw_energies(diagnosis, folder / "energies.png")
    _draw_errors(diagnosis, folder / "errors.png")
    page = folder / "diagnosis.md"
    page.write_text(markdown(diagnosis))
    return page


def markdown(diagnosis: Diagnosis) -> str:
    """Return the page as text."""
    sections = [
        f"# {diagnosis.name} on {diagnosis.problem}",
        "; ".join(f"{key}: {value}" for key, value in diagnosis.settings.items()) + ".",
        _summary(diagnosis),
        "## The problem",
        _table(
            ("constant", "value"),
            (("L_f", diagnosis.of_problem.smoothness), ("μ", diagnosis.of_problem.strong_convexity)),
        ),
        _verdicts(diagnosis.problem_verdicts),
        "## Inconsistency of the map",
        "How far the way back is from the inverse of the way there, mean and largest over samples.",
        _inconsistency(diagnosis),
        *(section for storage, part in diagnosis.geometries.items() for section in _geometry(storage, part)),
        *(section for name, run in diagnosis.runs.items() for section in _run(name, run)),
        "## Bounds against gaps",
        "![bounds](bounds.png)",
        "Lines are means over the problems. Where assumptions do not hold, a bound is a number, not a promise.",
        "## Energies",
        "![energies](energies.png)",
        "What the proofs say must fall, or grow slowly. Where the slack of the inequality is not drawn it is negative: "
        "the step did worse than the lemma promises, which it may where an assumption fails.",
        "## Error terms",
        "Absolute values, in the mean. Runs without a curve make no error: with an exact inverse, or dual-stored, they "
        "are exact mirror descent. Dashed lines compare the errors of both kinds of update, section 5.1.",
        "![errors](errors.png)",
        *_equivariance(diagnosis),
    ]
    return "\n\n".join(sections) + "\n"


def _summary(diagnosis: Diagnosis) -> str:
    """Say in a line each what was found of the problem, of the map as each storage uses it, and of every run."""
    lines = [
        "In short; *holds* is proven or was checked in full, *not known* was sampled and nothing found against it. "
        "A theorem promises something of a run only if all that it assumes of problem, map and run holds.",
        "",
    ]
    return "\n".join(lines + [f"- {label}: {_in_short(part)}" for label, part in diagnosis.judged.items()])


def _in_short(verdicts: Sequence[Verdict]) -> str:
    failed, unknown = ([v.assumption for v in verdicts if v.answer == a] for a in ("does not hold", "not known"))
    if failed:
        return f"**does not hold:** {'; '.join(failed)}."
    if unknown:
        return f"nothing was found against it; not known: {'; '.join(unknown)}."
    return "everything holds."


def _geometry(storage: Storage, geometry: Geometry) -> Iterable[str]:
    constants = geometry.constants
    yield f"## The map, as {storage}-stored methods use it"
    yield _table(
        ("constant", "value"),
        (("α", constants.alpha), ("L_ψ", constants.smoothness), ("L_ψ*", constants.dual_smoothness)),
    )
    yield _verdicts(geometry.verdicts)


def _run(name: str, run: Run) -> Iterable[str]:
    ended = ", ".join(sorted({str(status) for status in run.solution.statuses}))
    record, bounded = run.record, run.bounded
    yield f"## {name}"
    yield f"{type(run.method).__name__}, {run.storage}-stored; ended: {ended}. Means over the problems."
    rows = [
        ("gap, first and last", f"{_mean(record['gap'][0])}, {_mean(record['gap'][-1])}"),
        (f"{bounded.what}, last, and its bound", f"{_mean(bounded.measured[-1])}, {_mean(bounded.bound[-1])}"),
        ("divergence from the minimiser, first and largest (M_ψ)", f"{_mean(record['divergence'][0])}, "
         f"{_largest(record['divergence'])}"),
    ]  # fmt: skip
    if "energy" in record:
        rows.append(("energy, first and last", f"{_mean(record['energy'][0])}, {_mean(record['energy'][-1])}"))
    rows += [(f"largest {label}", _largest(record[key])) for key, label in _errors(run).items()]
    if "distance" in record and isinstance(run.method, AMD):
        rows.append(("largest distance ‖z̃ − ẑ‖ from the exact iterate", _largest(record["distance"])))
    if "displacement" in record:
        rows.append(("σ², the largest ‖G + U‖_*²", _largest(record["displacement"])))
    if run.updates is not None:
        rows += [(f"{UPDATES[key]}, last", _mean(series[-1])) for key, series in run.updates.series.items()]
    yield _table(("quantity", "value"), rows)
    yield _verdicts(run.verdicts)
    head, *reasons = str(run.advice).splitlines()
    yield f"The theory supports: `{head}`. {' '.join(reasons)}"


def _inconsistency(diagnosis: Diagnosis) -> str:
    rows = []
    for where, found in diagnosis.inconsistency.items():
        for name in ("primal", "relative_primal", "dual", "relative_dual"):
            numbers = getattr(found, name)
            rows.append((where, name.replace("_", " "), f"{_mean(numbers)}, {_largest(numbers)}"))
    return _table(("at", "kind", "mean, largest"), rows)


def _equivariance(diagnosis: Diagnosis) -> Iterable[str]:
    defects = diagnosis.equivariance
    if defects is None:
        return
    yield "## Equivariance"
    yield (
        f"By how much the map fails to commute with {defects.group}: ‖Ω(g·x) − g·Ω(x)‖ / ‖Ω(x)‖. "
        "What is tied along the orbits of the group commutes with it whatever it learns: there the defect is rounding."
    )
    names = list(defects.by_name)
    whats = list(dict.fromkeys(what for found in defects.by_name.values() for what in found))
    rows = [(what, *(_number(defects.by_name[name].get(what)) for name in names)) for what in whats]
    yield _table(("", *names), rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    return _table(("assumption", "", "why"), [(v.assumption, SYMBOLS[v.answer], v.because) for v in verdicts])


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def _mean(numbers: Tensor) -> str:
    return f"{float(numbers.nanmean()):.3g}"


def _largest(numbers: Tensor) -> str:
    return f"{float(numbers.nan_to_num().abs().max()):.3g}"


def _errors(run: Run) -> dict[str, str]:
    """Return the error terms that are not zero throughout: {series: what it is}."""
    kind = next(kind for kind in (MD, SMD, AMD, ASMD) if isinstance(run.method, kind))
    return {key: label for key, label in {"error": ERROR[kind.__name__], **TERMS}.items() if _any(run.record, key)}


def _any(record: Record, key: str) -> bool:
    return key in record and bool(record[key].nan_to_num().any())


def _draw_bounds(diagnosis: Diagnosis, path: Path) -> None:
    figure, panels = _panels(diagnosis)
    for axes, run in panels:
        k = range(1, len(run.bounded.measured) + 1)
        axes.plot(k, _shown(run.bounded.measured), label=run.bounded.what)
        axes.plot(k, _shown(run.bounded.bound), "--", label="bound")
        _finish(axes, "k", "gap")
    figure.savefig(path, dpi=DPI)


def _draw_energies(diagnosis: Diagnosis, path: Path) -> None:
    figure, panels = _panels(diagnosis)
    for axes, run in panels:
        for name in ("energy", "divergence"):
            if name in run.record:
                series = run.record[name][1:]
                axes.plot(range(1, len(series) + 1), _shown(series), label=name)
        if run.slack is not None:
            axes.plot(range(1, len(run.slack) + 1), _shown(run.slack), ":", label="slack of the inequality")
        _finish(axes, "k", "energy")
    figure.savefig(path, dpi=DPI)


def _draw_errors(diagnosis: Diagnosis, path: Path) -> None:
    figure, panels = _panels(diagnosis)
    for axes, run in panels:
        for key, label in _errors(run).items():
            series = run.record[key].abs()
            axes.plot(range(1, len(series) + 1), _shown(series), label=label)
        if run.updates is not None:
            for key, series in run.updates.series.items():
                axes.plot([k + 1 for k in run.updates.iterations], _shown(series), "--", label=UPDATES[key])
        if not axes.lines:
            axes.text(0.5, 0.5, "no errors: the run is exact", ha="center", transform=axes.transAxes)
        _finish(axes, "k", "error terms")
    figure.savefig(path, dpi=DPI)


def _panels(diagnosis: Diagnosis) -> tuple[Any, list[tuple[Any, Run]]]:
    """Return a figure with axes for every run, three to a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(diagnosis.runs)
    columns, rows = min(count, COLUMNS), math.ceil(count / COLUMNS)
    figure = Figure(figsize=(5 * columns, 4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes in grid[count:]:
        axes.set_axis_off()
    panels = []
    for axes, (name, run) in zip(grid, diagnosis.runs.items(), strict=False):
        axes.set_title(name)
        panels.append((axes, run))
    return figure, panels


def _finish(axes: Any, x: str, y: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize="small")


def _shown(series: Tensor) -> list[float]:
    """Return the means, with gaps where a logarithmic axis cannot show them."""
    means = torch.nanmean(series.double(), 1)
    return torch.where(means > 0, means, torch.nan).tolist()
