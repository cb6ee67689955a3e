"""The page that shows what was restored."""

from collections.abc import Sequence

from mirrordescent.report import Comparison, Page, Panel, Picture, Section, Table
from mirrordescent.restore.jobs import Outcome
from mirrordescent.restore.planning import Plan, Task

COLUMNS = {  # what of a record is shown under which heading, and in which format
    "value": ("value", ".6g"), "iterations": ("iterations", ""), "relative gap": ("relative_gap", ".1e"),
    "seconds": ("seconds", ".1f"), "PSNR before": ("psnr_before", ".2f"), "PSNR": ("psnr", ".2f"),
    "SSIM": ("ssim", ".3f"),
}  # fmt: skip
TITLES: dict[Task, str] = {"denoise": "Denoised by total variation", "inpaint": "Inpainted by total variation"}


def page(task: Task, outcomes: Sequence[Outcome], plan: Plan, weight: float) -> Page:
    """Return pictures before and after, convergence, and a table."""
    shown = [outcome for outcome in outcomes if outcome.pictures]
    count = "a photograph" if len(outcomes) == 1 else f"{len(outcomes)} photographs"
    methods = " and ".join(dict.fromkeys(label for outcome in outcomes for label in outcome.record["iterations"]))
    lead = f"{count.capitalize()}, restored with {methods}, to a proven distance from the optimum."
    sections = [Section("Before and after", Comparison({o.name: _pictures(o) for o in shown}, "before", "after"))]
    if curves := [outcome.curve for outcome in shown if outcome.curve]:
        sections.append(
            Section("Convergence", Panel(curves), "The gap to a proven lower bound, which is no less than that to f*.")
        )
    sections.append(Section("Every photograph", Table(("file", "size", *COLUMNS), [_row(o) for o in outcomes])))
    chosen = {"method": plan.label, "iterations": plan.iterations, "tolerance": plan.tolerance}
    return Page(TITLES[task], lead, sections, {"task": task, "weight": weight, **chosen})


def _pictures(outcome: Outcome) -> dict[str, Picture]:
    measured = {"before": outcome.record["psnr_before"], "after": outcome.record["psnr"]}
    notes = {name: f"{psnr:.1f} dB" for name, psnr in measured.items() if psnr is not None}
    return {name: Picture(image, notes.get(name, "")) for name, image in outcome.pictures.items()}


def _row(outcome: Outcome) -> tuple[str, ...]:
    numbers = {**outcome.record, "iterations": " + ".join(map(str, outcome.record["iterations"].values()))}
    cells = ("–" if numbers[name] is None else format(numbers[name], form) for name, form in COLUMNS.values())
    return outcome.name, outcome.size, *cells
