"""The page that shows what was restored."""

from __future__ import annotations

from collections.abc import Sequence

from mirrordescent.report import Comparison, Curve, Page, Panel, Picture, Section, Table
from mirrordescent.restore.jobs import Outcome
from mirrordescent.restore.planning import Plan, Task

TITLES: dict[Task, str] = {"denoise": "Denoised by total variation", "inpaint": "Inpainted by total variation"}


def page(task: Task, outcomes: Sequence[Outcome], plan: Plan, weight: float) -> Page:
    """Return pictures before and after, convergence, and a table."""
    shown = [outcome for outcome in outcomes if outcome.pictures]
    count = "a photograph" if len(outcomes) == 1 else f"{len(outcomes)} photographs"
    lead = f"{count[0].upper()}{count[1:]}, restored with {plan.label}, to a proven distance from the optimum."
    sections = [Section("Before and after", Comparison({o.name: _pictures(o) for o in shown}, "before", "after"))]
    if curves := [_curve(outcome) for outcome in shown if outcome.trace and outcome.lower is not None]:
        sections.append(
            Section("Convergence", Panel(curves), "The gap to a proven lower bound, which is no less than that to f*.")
        )
    sections.append(Section("Every photograph", _table(outcomes)))
    settings = {
        "task": task,
        "weight": weight,
        "method": plan.label,
        "iterations": plan.iterations,
        "tolerance": plan.tolerance,
    }
    return Page(TITLES[task], lead, sections, settings)


def _pictures(outcome: Outcome) -> dict[str, Picture]:
    quality = outcome.quality
    notes = {} if quality is None else {"before": f"{quality.psnr_before:.1f} dB", "after": f"{quality.psnr:.1f} dB"}
    return {name: Picture(image, notes.get(name, "")) for name, image in outcome.pictures.items()}


def _curve(outcome: Outcome) -> Curve:
    assert outcome.trace is not None
    trace = outcome.trace
    return Curve(outcome.name, trace.iterations, trace.seconds, trace.values - (outcome.lower or 0.0))


def _table(outcomes: Sequence[Outcome]) -> Table:
    columns = ("file", "size", "value", "iterations", "relative gap", "seconds", "PSNR before", "PSNR", "SSIM")
    return Table(columns, [_row(outcome) for outcome in outcomes])


def _row(outcome: Outcome) -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    quality = outcome.quality
    return (
        outcome.name,
        outcome.size,
        f"{outcome.value:.6g}",
        " + ".join(map(str, outcome.steps.values())),
        f"{outcome.gap:.1e}",
        f"{outcome.found.seconds:.1f}",
        number(quality and quality.psnr_before, ".2f"),
        number(quality and quality.psnr, ".2f"),
        number(quality and quality.ssim, ".3f"),
    )
