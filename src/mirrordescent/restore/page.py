"""The page about restored photographs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mirrordescent.report import Comparison, Link, Page, Panel, Picture, Section, Strip, Table
from mirrordescent.restore.jobs import RestorationSettings
from mirrordescent.restore.outcome import Failure, Outcome
from mirrordescent.restore.planning import RestorationPlan, Task
from mirrordescent.restore.weight import WeightChoice

# Columns of the table: heading, name in a record, and format.
COLUMNS = {
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
    "denoise": "Denoised photographs",
    "inpaint": "Inpainted photographs",
    "deblur": "Sharpened photographs",
    "upsample": "Enlarged photographs",
}
GAPS = (
    "The gap is the proven distance from the best value of the objective. The picture with the "
    "best value need not be closest to the truth: that also depends on the weight."
)
WEIGHTS = (
    "A piece of the photograph, restored with other weights. The error is estimated without the "
    "truth. The weight that was used has the least estimated error."
)
SKIPPED = (
    "These files in the folders do not have the suffix of an image that can be read. Convert "
    "photographs among them to JPEG, PNG or TIFF."
)
CONVERGENCE = "The gap to a proven lower bound, which is at least the gap to f*."


def page(
    settings: RestorationSettings,
    outcomes: Sequence[Outcome],
    failures: Sequence[Failure],
    plan: RestorationPlan,
    skipped: Sequence[str] = (),
) -> Page:
    """Return the page: pictures before and after, weights, a table, convergence and failures."""
    sections = []
    shown = [outcome for outcome in outcomes if outcome.pictures]
    if shown:
        scenes = {}
        for outcome in shown:
            for scene, images in outcome.pictures.items():
                scenes[scene] = _pictures(outcome, images)
        sections.append(Section("Before and after", Comparison(scenes, "before", "after")))
    for outcome in shown:
        if outcome.choice is not None and outcome.choice.pictures:
            note = f"{outcome.name}: {WEIGHTS}"
            sections.append(Section("Other weights", _strip(outcome.choice), note))
            break
    sections.append(Section("Every photograph", _table(outcomes, settings.out), GAPS))
    curves = [outcome.curve for outcome in shown if outcome.curve]
    if curves:
        sections.append(Section("Convergence", Panel(curves), CONVERGENCE))
    if failures:
        rows = [(failure.name, failure.reason) for failure in failures]
        sections.append(Section("Not restored", Table(("file", "why"), rows)))
    if skipped:
        sections.append(
            Section("Left out", Table(("file",), [(name,) for name in skipped]), SKIPPED)
        )
    request = settings.request
    listed = {
        "task": settings.task,
        "prior": request.prior if isinstance(request.prior, (str, Path)) else "given",
        "noise": "estimated" if request.noise is None else request.noise,
        "strength": request.strength,
        "weight": request.weight or "chosen for every photograph",
        "method": plan.label,
        "iterations, at most": plan.iterations,
        "gap to reach": plan.tolerance,
        **request.variant,
    }
    return Page(TITLES[settings.task], _summary(outcomes), sections, listed)


def _summary(outcomes: Sequence[Outcome]) -> str:
    count = "A photograph" if len(outcomes) == 1 else f"{len(outcomes)} photographs"
    methods: dict[str, None] = {}
    for outcome in outcomes:
        methods.update(dict.fromkeys(outcome.record["iterations"]))
    if not methods:
        return f"{count}."
    return f"{count}, restored with {' and '.join(methods)}, with a proven gap to the optimum."


def _strip(choice: WeightChoice) -> Strip:
    """Return a piece of a photograph with all weights that were tried."""
    *restored, observed = choice.pictures
    shown = {"as it is": Picture(observed, f"error about {choice.noise:.4f}, the noise")}
    for tried, image in zip(choice.path, restored, strict=True):
        error = max(tried.risk, 0) ** 0.5
        shown[f"weight {tried.weight:.3g}"] = Picture(image, f"error about {error:.4f}")
    best = min(choice.path, key=lambda tried: tried.risk)
    return Strip(shown, f"weight {best.weight:.3g}")


def _pictures(outcome: Outcome, images: Mapping[str, Tensor]) -> dict[str, Picture]:
    qualities = {"before": outcome.record["psnr_before"], "after": outcome.record["psnr"]}
    pictures = {}
    for name, image in images.items():
        psnr = qualities.get(name)
        pictures[name] = Picture(image, "" if psnr is None else f"{psnr:.1f} dB")
    return pictures


def _table(outcomes: Sequence[Outcome], out: Path) -> Table:
    """Return all photographs, with the columns for which there are numbers."""
    columns = {
        heading: column
        for heading, column in COLUMNS.items()
        if any(outcome.record[column[0]] is not None for outcome in outcomes)
    }
    rows = []
    for outcome in outcomes:
        path = os.path.relpath(outcome.record["output"], out).replace(os.sep, "/")
        cells = [_cell(outcome, name, style) for name, style in columns.values()]
        rows.append((Link(outcome.name, path), *cells))
    return Table(("file", *columns), rows)


def _cell(outcome: Outcome, name: str, style: str) -> str:
    value = outcome.record[name]
    if name == "iterations":
        return " + ".join(map(str, value.values())) or "–"
    return "–" if value is None else format(value, style)
