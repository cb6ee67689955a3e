"""The page that shows what was restored."""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
    ratios = {"before": outcome.psnr_before, "after": outcome.psnr}
    notes = {name: f"{ratio:.1f} dB" for name, ratio in ratios.items() if ratio is not None}
    return {name: Picture(image, notes.get(name, "")) for name, image in outcome.pictures.items()}


def _curve(outcome: Outcome) -> Curve:
    assert outcome.trace is not None
    iterations, seconds, values = outcome.trace
    return Curve(outcome.name, iterations, seconds, torch.tensor(values).unsqueeze(1) - (outcome.lower or 0.0))


def _table(outcomes: Sequence[Outcome]) -> Table:
    columns = ("file", "size", "value", "iterations", "relative gap", "seconds", "PSNR before", "PSNR", "SSIM")
    return Table(columns, [_row(outcome) for outcome in outcomes])


def _row(outcome: Outcome) -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    return (
        outcome.name,
        f"{outcome.width}×{outcome.height}",
        f"{outcome.value:.6g}",
        " + ".join(map(str, outcome.steps.values())),
        f"{outcome.gap:.1e}",
        f"{outcome.seconds:.1f}",
        number(outcome.psnr_before, ".2f"),
        number(outcome.psnr, ".2f"),
        number(outcome.ssim, ".3f"),
    )
