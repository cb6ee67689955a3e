"""The page that shows what was restored."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mirrordescent.report import Comparison, Link, Page, Panel, Picture, Section, Strip, Table
from mirrordescent.restore.jobs import Wanted
from mirrordescent.restore.outcome import Failure, Outcome
from mirrordescent.restore.planning import Plan, Task

COLUMNS = {  # what of a record is shown under which heading, and in which format
    "PSNR before": ("psnr_before", ".2f"),
    "PSNR": ("psnr", ".2f"),
    "SSIM": ("ssim", ".3f"),
    "noise": ("noise", ".3f"),
    "weight": ("weight", ".3g"),
    "gap": ("relative_gap", ".1e"),
    "iterations": ("iterations", ""),
    "seconds": ("seconds", ".1f"),
}
TITLES: dict[Task, str] = {
    "denoise": "Denoised by total variation",
    "inpaint": "Inpainted by total variation",
}
OPTIMUM = (
    "The gap says how near an answer is to the best value of the objective, of which a lower bound is proven. The best "
    "value of the objective need not be the picture nearest to the truth: that depends on the weight, too."
)
WEIGHTS = (
    "A piece of the photograph, restored with other weights. The error is estimated without knowing the truth; the "
    "weight that was used is where it is least."
)


def page(
    wanted: Wanted, outcomes: Sequence[Outcome], failures: Sequence[Failure], plan: Plan
) -> Page:
    """Return pictures before and after, the weights that were tried, convergence, and a table."""
    count = "a photograph" if len(outcomes) == 1 else f"{len(outcomes)} photographs"
    methods = " and ".join(
        dict.fromkeys(label for outcome in outcomes for label in outcome.record["iterations"])
    )
    by = f", restored with {methods}, to a proven distance from the optimum" if methods else ""
    sections = []
    if shown := [outcome for outcome in outcomes if outcome.pictures]:
        scenes = {
            scene: _pictures(o, images) for o in shown for scene, images in o.pictures.items()
        }
        sections.append(Section("Before and after", Comparison(scenes, "before", "after")))
    if tried := [
        outcome for outcome in shown if outcome.choice is not None and outcome.choice.pictures
    ]:
        sections.append(Section("Other weights", _strip(tried[0]), f"{tried[0].name}: {WEIGHTS}"))
    rows = [_row(outcome, wanted.out) for outcome in outcomes]
    columns = [
        k for k, (name, _) in COLUMNS.items() if any(o.record[name] is not None for o in outcomes)
    ]
    sections.append(
        Section(
            "Every photograph",
            Table(("file", *columns), [_cells(r, columns) for r in rows]),
            OPTIMUM,
        )
    )
    if curves := [outcome.curve for outcome in shown if outcome.curve]:
        note = "The gap to a proven lower bound, which is no less than that to f*."
        sections.append(Section("Convergence", Panel(curves), note))
    if failures:
        sections.append(
            Section("Not restored", Table(("file", "why"), [(f.name, f.reason) for f in failures]))
        )
    settings = {
        "task": wanted.task,
        "weight": wanted.weight or "chosen for every photograph",
        "method": plan.label,
        "iterations, at most": plan.iterations,
        "gap to reach": plan.tolerance,
    }
    return Page(
        TITLES[wanted.task], f"{count.capitalize()}{by}.", sections, {**settings, **wanted.variant}
    )


def _strip(outcome: Outcome) -> Strip:
    """Return a piece with every weight of the path."""
    choice = outcome.choice
    assert choice is not None
    *tried, observed = choice.pictures
    shown = {"as it is": Picture(observed, f"error about {choice.noise:.4f}, the noise")}
    for point, image in zip(choice.path, tried, strict=True):
        shown[f"weight {point.weight:.3g}"] = Picture(
            image, f"error about {max(point.risk, 0) ** 0.5:.4f}"
        )
    best = min(choice.path, key=lambda point: point.risk)
    return Strip(shown, f"weight {best.weight:.3g}")


def _pictures(outcome: Outcome, images: Mapping[str, Tensor]) -> dict[str, Picture]:
    measured = {"before": outcome.record["psnr_before"], "after": outcome.record["psnr"]}
    notes = {name: f"{psnr:.1f} dB" for name, psnr in measured.items() if psnr is not None}
    return {name: Picture(image, notes.get(name, "")) for name, image in images.items()}


def _row(outcome: Outcome, out: Path) -> dict[str, str | Link]:
    numbers = {
        **outcome.record,
        "iterations": " + ".join(map(str, outcome.record["iterations"].values())) or None,
    }
    cells: dict[str, str | Link] = {
        heading: "–" if numbers[name] is None else format(numbers[name], form)
        for heading, (name, form) in COLUMNS.items()
    }
    where = os.path.relpath(outcome.record["output"], out).replace(os.sep, "/")
    return {"file": Link(outcome.name, where), **cells}


def _cells(row: dict[str, str | Link], columns: Sequence[str]) -> tuple[str | Link, ...]:
    return tuple(row[name] for name in ("file", *columns))
