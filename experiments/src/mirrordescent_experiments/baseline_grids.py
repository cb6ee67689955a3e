"""The appendix on baselines: GD, Adam and Nesterov with all step sizes of their grids."""

from __future__ import annotations

from pathlib import Path

from mirrordescent.contests.contest import TUNED_AT, Contest
from mirrordescent.contests.image_contests import imaging_contest
from mirrordescent.contests.svm_contests import load_features, starts
from mirrordescent.racing import TunableSolver
from mirrordescent_experiments.baselines import BASELINES
from mirrordescent_experiments.claims import ratio
from mirrordescent_experiments.imaging_experiments import TASKS
from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.result import Claim, Panel, Result, Table
from mirrordescent_experiments.scales import Say, Scale

SIZES: dict[Scale, tuple[int, int]] = {"quick": (1, 30), "standard": (4, 5000), "paper": (16, 5000)}
PAPER_CHOICES = {
    "denoise": {"GD": 1e-2, "Adam": 2e-3, "Nesterov": 1e-3},
    "inpaint": {"GD": 1e-2, "Adam": 1e-2, "Nesterov": 2e-3},
    "svm": {"GD": 1e-2, "Adam": 2e-2, "Nesterov": 5e-3},
}


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Run every step size on training problems, and name the best at iteration 100."""
    count, iterations = SIZES[scale]
    result = Result(
        "baseline-grids",
        "Step sizes of the baselines",
        {"scale": scale, "problems": count, "iterations": iterations},
    )
    rows = []
    for task, contest in _contests(scale, count, iterations, directory).items():
        for tunable in BASELINES:
            panel = Panel(
                [contest.run(f"{step:g}", tunable.make(step)) for step in tunable.settings]
            )
            result.panels[f"{tunable.name} {task}"] = panel
            best = _best(tunable, panel, min(TUNED_AT, iterations))
            rows.append((task, tunable.name, f"{best:g}", f"{PAPER_CHOICES[task][tunable.name]:g}"))
            if scale != "quick":
                result.claims += _claims(task, tunable, panel, best)
        say(f"{task} done")
    result.tables[f"Best step size at iteration {min(TUNED_AT, iterations)}"] = Table(
        ("task", "method", "here", "in the paper"), rows
    )
    return result


def _contests(
    scale: Scale, count: int, iterations: int, directory: Path | None
) -> dict[str, Contest]:
    contests = {
        name: imaging_contest(
            task.make(count, task.sizes[scale].side, True, directory), False, iterations
        )
        for name, task in TASKS.items()
    }
    return contests | {
        "svm": starts(
            load_features(directory, bundled=scale == "quick")[0], count, iterations, seed=1
        )
    }


def _best(tunable: TunableSolver, panel: Panel, at: int) -> float:
    gaps = {step: panel[f"{step:g}"].mean_at(at) for step in tunable.settings}
    return min(gaps, key=lambda step: gaps[step] if gaps[step] == gaps[step] else float("inf"))


def _claims(task: str, tunable: TunableSolver, panel: Panel, best: float) -> list[Claim]:
    index = tunable.settings.index(best)
    last = panel.curves[0].iterations[-1]
    claims = [
        Claim(
            f"{task}: the grid of {tunable.name} is wide enough, its best step lies inside",
            0 < index < len(tunable.settings) - 1,
            f"best {best:g} in {tunable.settings[0]:g} … {tunable.settings[-1]:g}",
        )
    ]
    if index > 0:
        curves = [panel[f"{step:g}"] for step in (tunable.settings[index - 1], best)]
        behind, ahead = (
            paired(ratio(*(curve.values[curve.iterations.index(k)] for curve in pair)))
            for k, pair in ((TUNED_AT, curves), (last, curves[::-1]))
        )
        measured = "; ".join(
            f"step {curve.name}: {curve.mean_at(TUNED_AT):.3g}, {curve.mean_at(last):.3g}"
            for curve in curves
        )
        claims.append(
            Claim.by(
                (
                    f"{task}: the next smaller step of {tunable.name} is behind at k = "
                    f"{TUNED_AT} and ahead at k = {last}"
                ),
                min(behind.low, ahead.low),
                min(behind.high, ahead.high),
                f"{measured}; behind by {behind}, ahead by {ahead} decades",
            )
        )
    return claims
