"""The entry for networks, untuned, on tasks that were fixed before it was learned."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from mirrordescent._internal import cache
from mirrordescent.recipes.general_tasks import GeneralTask
from mirrordescent_experiments.code_hash import SOURCES
from mirrordescent_experiments.frozen import CONDITIONS, FROZEN, OF_ANY_LENGTH, SAME_BATCHES
from mirrordescent_experiments.frozen.contestants import OLD, OURS, UNKNOWN_LENGTH
from mirrordescent_experiments.frozen.judgement import result_of
from mirrordescent_experiments.frozen.runs import Comparison
from mirrordescent_experiments.ledger import Ledger
from mirrordescent_experiments.result import Result
from mirrordescent_experiments.scales import Say, Scale

SEEDS: dict[Scale, int] = {"quick": 2, "standard": 5, "paper": 10}
STORED = SOURCES / "docs" / "results" / "frozen-tasks" / "runs.json"
"""Runs that are stored with the sources."""


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Tune the rivals, run everybody, and judge."""
    comparison = comparison_at(scale, directory, say)
    measure(comparison)
    return result_of(comparison, scale)


def comparison_at(scale: Scale, directory: Path | None, say: Say) -> Comparison:
    """Return the comparison at a scale, with the runs that were made before."""
    tasks = sorted(FROZEN, key=lambda task: task.name in LAST)
    if scale == "quick":
        names = ("physics residual", "Poisson equation")
        tasks = [replace(task, steps=4) for task in FROZEN if task.name in names]
    path = None if scale == "quick" else ledger_path()
    return Comparison(Ledger(path, directory, say), tasks, SEEDS[scale])


LAST = ("tied GPT", "fine-tuning of MiniLM")
"""Tasks that are run after the others, since a run takes long."""


def measure(comparison: Comparison) -> None:
    """Make all runs, the cheap ones first."""
    names = [task.name for task in comparison.tasks]
    cheap = [task for task in comparison.tasks if task.name not in LAST]
    long = [task for task in comparison.tasks if task.name in LAST]
    conditions = [task for task in CONDITIONS if task.name.split(" with ")[0] in names]
    of_any_length = [task for task in comparison.tasks if task.name in OF_ANY_LENGTH]
    for task in cheap:
        comparison.run_task(task)
    for task in conditions:
        if task.name in SAME_BATCHES:
            comparison.losses(task, OURS)
        else:
            comparison.run_task(task)
    for some in (cheap, long):
        for task in some:
            if task in long:
                comparison.run_task(task)
            if task in of_any_length:
                run_any_length(comparison, task)
            comparison.losses(task, OLD)


def run_any_length(comparison: Comparison, task: GeneralTask) -> None:
    """Run the entry for half as many steps, and without the number of steps."""
    comparison.losses(task, OURS, task.steps // 2)
    comparison.losses(task, UNKNOWN_LENGTH)


def ledger_path() -> Path:
    """Return the file of runs, which begins with the runs that are stored with the sources."""
    path = cache.directory() / "frozen-tasks-v2.json"
    if STORED.exists() and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(STORED, path)
    return path
